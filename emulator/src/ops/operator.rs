//! The static properties of an operator, which the compiler needs.

use super::{OpError, Signature};
use crate::graph::Shape;

/// Work of an operator on one sample.
///
/// Only matrix products count, a multiply-add as two operations: pointwise work is bound by memory bandwidth, and this
/// is the convention of the field. Products of the backward pass that repeat the forward pass (attention scores,
/// logits) are not counted, so recomputation does not increase a rate based on these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// Operations of the forward pass.
    pub forward: u64,
    /// Operations of the backward pass.
    pub backward: u64,
    /// Numbers of the forward pass that are summed over the cores that share a feature dimension.
    pub forward_sums: u64,
    /// The same for the backward pass, without gradients of tensors, which all samples share.
    pub backward_sums: u64,
}

impl Flops {
    /// Returns the work of a product of `rows x inputs` with a matrix, with `outputs` result columns. Its backward pass
    /// is two such products; the one with the matrix sums over `outputs`.
    pub(super) fn product(rows: u64, inputs: u64, outputs: u64) -> Self {
        let forward = [rows, inputs, outputs].into_iter().fold(2u64, u64::saturating_mul);
        Self {
            forward,
            backward: forward.saturating_mul(2),
            forward_sums: rows.saturating_mul(outputs),
            backward_sums: rows.saturating_mul(inputs),
        }
    }
}

/// What the backward pass of an operator needs in addition to the gradient of its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedForBackward {
    /// Indices of the inputs that are needed.
    pub inputs: &'static [usize],
    /// Whether the output is needed.
    pub output: bool,
    /// Extra f32 numbers per sample (means, log-sum-exps).
    pub floats: u64,
}

/// How the backward pass of an operator computes the gradient of one of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientForm {
    /// There is no gradient.
    None,
    /// The gradient of the output, unchanged: nothing is computed.
    Same,
    /// Overwrites the gradient of the output.
    Overwrite,
    /// Written to separate memory.
    Store,
    /// Written to separate memory, or added to its previous content.
    StoreOrAdd,
}

/// The rows of its inputs that a row of an operator's output, or a row's part of a loss, is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowDependency {
    /// All rows, or the inputs do not have as many rows as the output.
    All,
    /// The row of the same number and those before it.
    Earlier,
    /// The row of the same number only.
    Same,
}

/// The static properties of an operator. Shapes are per sample; [the module](super) defines *saved*.
///
/// All methods except [`Operator::output`] may assume a signature that `output` accepts.
pub trait Operator: std::fmt::Debug + Send + Sync {
    /// Shape of the output, `None` for a loss.
    ///
    /// # Errors
    /// Values, tensors or attributes do not match.
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError>;

    /// Work on one sample.
    fn flops(&self, io: &Signature<'_>) -> Flops {
        let _ = io;
        Flops::default()
    }

    /// Returns what the backward pass needs from the forward pass.
    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let _ = io;
        SavedForBackward::default()
    }

    /// Returns the number of entries of the table that the integers of input `input` index, and that each must
    /// therefore be less than; `None` if they index nothing.
    fn index_bound(&self, io: &Signature<'_>, input: usize) -> Option<usize> {
        let _ = (io, input);
        None
    }

    /// Returns whether negative integers of input `input` are ignored rather than invalid.
    fn ignores_negative(&self, input: usize) -> bool {
        let _ = input;
        false
    }

    /// Returns the position at which a loss may have one more input, its weight: a number that each sample contributes
    /// to the divisor of the loss, see [`WeightedLoss`](crate::graph::WeightedLoss).
    fn weight_input(&self) -> Option<usize> {
        None
    }

    /// Returns whether the backward pass computes a gradient of input `input`.
    fn has_input_gradient(&self, input: usize) -> bool {
        let _ = input;
        true
    }

    /// Returns how the backward pass computes the gradient of input `input`.
    fn gradient(&self, input: usize) -> GradientForm {
        if self.has_input_gradient(input) { GradientForm::Store } else { GradientForm::None }
    }

    /// Returns the rows of its inputs that a row of the output is computed from. Text is generated row by row.
    fn row_dependency(&self) -> RowDependency {
        RowDependency::All
    }

    /// Returns whether the gradient of input 0 may overwrite that input. The backward pass then first computes the
    /// gradients of tensors, for which it reads the input, and afterwards the gradient of the input, for which it does
    /// not.
    fn gradient_replaces_input(&self) -> bool {
        false
    }

    /// Returns the inputs that the output may overwrite if nothing reads them later. Each element of such an input is
    /// read before its position is written.
    fn in_place_inputs(&self) -> &'static [usize] {
        &[]
    }

    /// Returns whether the backward pass reads tensor `param` itself, in addition to computing its gradient.
    fn backward_reads_param(&self, param: usize) -> bool {
        let _ = param;
        false
    }

    /// Returns whether the emulation reads the first tensor, a matrix, in packed form only: its transpose in the
    /// forward pass, the matrix in the backward pass.
    fn packs_matrix(&self) -> bool {
        false
    }

    /// Returns the f32 numbers per sample needed only during computation, in the pass that needs more of them.
    fn scratch(&self, io: &Signature<'_>) -> u64 {
        let _ = io;
        0
    }
}

/// Checks that a dropout probability is in `[0, 1)`.
pub(super) fn check_rate(name: &'static str, rate: f32) -> Result<(), OpError> {
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(OpError::Attribute { name, value: rate, range: "at least 0 and less than 1" })
}

/// Checks that a bound of soft-capping is a positive number.
pub(super) fn check_softcap(softcap: Option<f32>) -> Result<(), OpError> {
    match softcap {
        Some(value) if !(value.is_finite() && value > 0.0) => {
            Err(OpError::Attribute { name: "softcap", value, range: "greater than 0" })
        }
        _ => Ok(()),
    }
}

/// The default of attributes that are omitted if they are 1.
pub(super) const fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
pub(super) const fn is_one(attribute: &usize) -> bool {
    *attribute == 1
}
