//! Weights that are zero: which elements of which tensors, as a function of seed, tensor and element.
//!
//! At first, an element is zero if its hash is among the smallest of its parameter, as many as
//! `round(sparsity * elements)`. The hash is a bijection of the element, so the number is exact, and nothing is stored:
//! the masks of a resumed run are those of the run before. A *parameter* is one of the public model zoo, such as the
//! rows of queries in a tensor of queries, keys and values.
//!
//! Weights are masked when they are drawn or loaded, gradients when they are complete, so that weights and moments of
//! these elements stay zero under every optimizer.
//!
//! Unless the job is static, the masks change during training by SET or RigL. They are then state of MemoryX, which is
//! kept beside that of the optimizer and saved as [`MASK_STATE`].

use std::ops::Range;

use millrace_params::{JobSpec, MaskUpdate, ParameterFilter, SparsitySpec};

use crate::graph::{Graph, Tensor, TensorId, TensorRole};
use crate::numerics::random::{hash64, key};
use crate::optimizers::{PLANNED_STATE_TENSORS, optimizer};
use crate::plan::StateShape;

mod names;
mod update;

pub use update::MaskArrays;

/// Name of the state in which checkpoints have masks that change.
pub const MASK_STATE: &str = "mask";

/// Operator number for masks, so that no key of dropout or of initial values equals a mask's key.
const MASK_OPERATOR_ID: u64 = u64::MAX - 1;

/// Elements whose hashes are counted at once, by their upper bits.
const BUCKET_BITS: u32 = 16;

/// Returns how the masks of a job change; `None` if they do not.
pub fn mask_update(job: &JobSpec) -> Option<&MaskUpdate> {
    job.sparsity.as_ref()?.update.as_ref()
}

/// Returns the shapes of the state of a job that updates whole tensors: that of the optimizer, and masks that change.
/// `None` if it updates single elements.
pub fn whole_tensor_state(job: &JobSpec) -> Option<Vec<StateShape>> {
    let optimizer = optimizer(&job.optimizer.kind);
    let optimizer_state = optimizer.whole_tensor_state();
    if mask_update(job).is_none() {
        return optimizer_state.map(<[_]>::to_vec);
    }
    let full = || vec![StateShape::Full; optimizer.state().len()];
    let mut shapes = optimizer_state.map_or_else(full, <[_]>::to_vec);
    shapes.push(StateShape::Full);
    Some(shapes)
}

/// Returns the number of state tensors of a job that updates single elements beyond those of every plan.
pub fn extra_state_tensors(job: &JobSpec) -> u32 {
    let state = if whole_tensor_state(job).is_some() { &[] } else { optimizer(&job.optimizer.kind).state() };
    state.len().saturating_sub(PLANNED_STATE_TENSORS) as u32
}

/// A sparsity that does not fit the model.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SparsityError {
    #[error("sparsity: the pattern \"{pattern}\" matches no parameter of the model")]
    NoMatch { pattern: String },
    #[error("sparsity: a pattern can't be compiled: {0}")]
    Pattern(String),
}

/// The zeros of a job's tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparsityMasks {
    /// By tensor; without elements for a dense one.
    tensors: Vec<Vec<MaskedParameter>>,
}

/// The zeros of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MaskedParameter {
    /// Its elements in the tensor.
    elements: Range<usize>,
    /// Number of zeros.
    zeros: u64,
    /// Largest hash of an element that is zero; `None` until [`SparsityMasks::find_bounds`] has found it.
    bound: Option<u64>,
}

impl SparsityMasks {
    /// Finds the parameters that are sparse. Their zeros are only counted; see [`SparsityMasks::find_bounds`].
    ///
    /// # Errors
    /// A pattern matches nothing.
    pub fn new(job: &JobSpec, graph: &Graph) -> Result<Self, SparsityError> {
        let Some(spec) = &job.sparsity else { return Ok(Self::default()) };
        let filter = spec.filter().map_err(|error| SparsityError::Pattern(error.to_string()))?;
        let mut used = vec![false; filter.patterns().count()];
        let mut of_tensor = |tensor| masked_parameters(job, spec, &filter, tensor, &mut used);
        let tensors = graph.tensors.iter().map(&mut of_tensor).collect();
        match filter.patterns().zip(used).find(|(_, used)| !used) {
            Some((pattern, _)) => Err(SparsityError::NoMatch { pattern: pattern.to_owned() }),
            None => Ok(Self { tensors }),
        }
    }

    /// Returns the number of weights that are zero.
    pub fn zeros(&self) -> u64 {
        self.tensors.iter().flatten().map(|parameter| parameter.zeros).sum()
    }

    /// Finds the largest hash of a zero in each of these tensors; reads every hash twice.
    pub fn find_bounds(&mut self, seed: u64, tensors: impl IntoIterator<Item = TensorId>) {
        for tensor in tensors {
            let Some(parameters) = self.tensors.get_mut(tensor) else { continue };
            for parameter in parameters.iter_mut().filter(|parameter| parameter.bound.is_none()) {
                parameter.bound = bound(mask_key(seed, tensor), parameter.elements.clone(), parameter.zeros);
            }
        }
    }

    /// Sets the zeros of elements `first .. first + values.len()` of a tensor. [`SparsityMasks::find_bounds`] must have
    /// been called for the tensor.
    #[cfg(feature = "kernels")]
    pub fn apply(&self, simd: crate::kernels::Simd, seed: u64, tensor: TensorId, first: usize, values: &mut [f32]) {
        let end = first + values.len();
        for MaskedParameter { elements, bound, .. } in self.tensors.get(tensor).into_iter().flatten() {
            let (start, end) = (elements.start.max(first), elements.end.min(end));
            if let (true, Some(bound)) = (start < end, *bound) {
                let values = &mut values[start - first..end - first];
                zero_small_hashes(simd, mask_key(seed, tensor), start as u64, bound, values);
            }
        }
    }
}

#[cfg(feature = "kernels")]
crate::kernels::isa::simd_fn! {
    /// Sets the values whose hash is at most `bound` to 0. Element `first` is the first.
    fn zero_small_hashes(key: u64, first: u64, bound: u64, values: &mut [f32]) {
        for (element, value) in (first..).zip(values) {
            *value = if hash64(key, element) <= bound { 0.0 } else { *value };
        }
    }
}

const fn mask_key(seed: u64, tensor: TensorId) -> u64 {
    key(seed, tensor as u64, MASK_OPERATOR_ID)
}

/// Returns the sparse parameters in a tensor, and marks the patterns that match.
fn masked_parameters(
    job: &JobSpec,
    spec: &SparsitySpec,
    filter: &ParameterFilter,
    tensor: &Tensor,
    used: &mut [bool],
) -> Vec<MaskedParameter> {
    let elements = tensor.elements();
    let rows = tensor.shape.first().copied().unwrap_or(1).max(1);
    let full_tensor = (tensor.name.clone(), 0..elements);
    let zoo = names::zoo_parameters(&job.model, &tensor.name, rows).into_iter();
    let width = elements / rows;
    let mut parameters: Vec<_> =
        zoo.map(|parameter| (parameter.name, parameter.rows.start * width..parameter.rows.end * width)).collect();
    let mut matches = |name: &str| {
        let found = filter.first_match(name);
        found.into_iter().for_each(|index| used[index] = true);
        found.is_some()
    };
    if filter.is_empty() {
        let is_sparse = tensor.shape.len() > 1 && tensor.role == TensorRole::Weight && tensor.name != "lm_head.weight";
        parameters.retain(|_| is_sparse);
        if is_sparse && parameters.is_empty() {
            parameters.push(full_tensor);
        }
    } else if matches(&full_tensor.0) {
        // Our own name stands for all parameters in the tensor.
        if parameters.is_empty() {
            parameters.push(full_tensor);
        }
    } else {
        parameters.retain(|(name, _)| matches(name));
    }
    let masked = |(_, elements): (String, Range<usize>)| {
        let zeros = (spec.sparsity * elements.len() as f64).round() as u64;
        MaskedParameter { elements, zeros, bound: None }
    };
    parameters.into_iter().map(masked).filter(|parameter| parameter.zeros > 0).collect()
}

/// Returns the `zeros`-th smallest hash of the elements; `None` if there are fewer or `zeros` is 0.
fn bound(key: u64, elements: Range<usize>, zeros: u64) -> Option<u64> {
    let hashes = || elements.clone().map(|element| hash64(key, element as u64));
    let bucket = |hash: u64| (hash >> (u64::BITS - BUCKET_BITS)) as usize;
    let mut counts = vec![0u64; 1 << BUCKET_BITS];
    hashes().for_each(|hash| counts[bucket(hash)] += 1);
    let mut before = 0;
    let last = counts.iter().position(|count| {
        before += count;
        before >= zeros
    })?;
    let rank = zeros.checked_sub(before - counts[last] + 1)?;
    let mut candidates: Vec<u64> = hashes().filter(|hash| bucket(*hash) == last).collect();
    candidates.sort_unstable();
    candidates.get(rank as usize).copied()
}

#[cfg(test)]
mod tests;
