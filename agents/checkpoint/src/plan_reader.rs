//! Reads a checkpoint with another plan than the one that wrote it.
//!
//! Tensors are matched by name and must have the same shapes; groups and chunks may differ. Everything is verified, in
//! whole chunks of the checkpoint.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use millrace_emulator::graph::Graph;
use millrace_emulator::plan::{ChunkId, GroupId, StateShape, StreamPlan};

use crate::error::{Error, ModelDifference, Result};
use crate::layout::{Layout, Moments};
use crate::read::{Checkpoint, RangeCache};
use crate::section::Section;

/// How exactly the tensors of a checkpoint must match those of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStrictness {
    /// The same names and shapes, none missing and none additional.
    Strict,
    /// Matching tensors are loaded. Tensors of the plan that the checkpoint does not have in the same shape are
    /// [missing](PlanReader::missing_tensors); additional tensors of the checkpoint are ignored.
    AllowMissing,
}

/// Group and elements of a tensor.
type TensorLocation = Option<(GroupId, Range<usize>)>;

/// Reads the chunks of a plan; see the module documentation.
#[derive(Debug)]
pub struct PlanReader {
    from: Checkpoint,
    layout: Layout,
    moments: Moments,
    /// Position of each of the plan's tensors in the checkpoint's sections of a shape; `None` if it does not have the
    /// tensor in the shape of the plan.
    locations: HashMap<StateShape, Vec<TensorLocation>>,
    /// The checkpoint's section for each section of the plan; `None` if it does not have it.
    sections: Vec<Option<Section>>,
    missing_moments: Vec<String>,
    cache: RangeCache,
}

impl PlanReader {
    /// Creates a reader of `from` by the chunks of `plan`. Moments are matched by name and shape.
    ///
    /// # Errors
    /// [`Error::ModelMismatch`] if strict, with the first tensor that is missing, has another shape or is unknown to
    /// the plan.
    pub fn new(from: Checkpoint, plan: &StreamPlan, moments: &Moments, strictness: LoadStrictness) -> Result<Self> {
        let layout = Layout::from_plan(plan)?;
        if strictness == LoadStrictness::Strict {
            let found = from.layout().graph().tensors.iter();
            let found = found.map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()));
            if let Some(difference) = first_difference(layout.graph(), found) {
                return Err(Error::ModelMismatch { path: from.path().to_owned(), difference });
            }
        }
        let shapes = moments.sections().map(|section| moments.shape(section));
        let locations = shapes.map(|shape| (shape, locate_tensors(&layout, from.layout(), shape))).collect();
        let section_of = |index: usize| from.moments().section_like(moments, index);
        let sections = std::iter::once(Some(Section::Parameters)).chain((0..moments.len()).map(section_of)).collect();
        let missing = moments.names().enumerate().filter(|(index, _)| section_of(*index).is_none());
        let missing_moments = missing.map(|(_, name)| name.to_owned()).collect();
        let (moments, cache) = (moments.clone(), RangeCache::default());
        Ok(Self { layout, moments, locations, sections, missing_moments, cache, from })
    }

    /// Returns the plan's tensors that the checkpoint does not have; empty unless the reader uses
    /// [`LoadStrictness::AllowMissing`].
    pub fn missing_tensors(&self) -> Vec<&str> {
        let tensors = self.layout.graph().tensors.iter().zip(&self.locations[&StateShape::Full]);
        tensors.filter(|(_, location)| location.is_none()).map(|(tensor, _)| tensor.name.as_str()).collect()
    }

    /// Returns the checkpoint.
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.from
    }

    /// Returns whether the checkpoint has a section of the plan.
    pub fn has_section(&self, section: Section) -> bool {
        self.sections.get(section.index()).is_some_and(Option::is_some)
    }

    /// Returns the plan's moments that the checkpoint does not have (an imported model has none); they are read as
    /// zeros.
    pub fn missing_moments(&self) -> &[String] {
        &self.missing_moments
    }

    /// Reads a chunk of the plan. `section` counts the moments given to [`PlanReader::new`]. Parameters of a missing
    /// tensor keep their value in `out`; its moments, and missing moments, are zeros.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a chunk that contains it does not match its digest.
    pub fn read_chunk(&mut self, chunk: ChunkId, section: Section, out: &mut [f32]) -> Result<()> {
        let shape = self.moments.shape(section);
        let located = self.layout.chunk_range(chunk, shape).zip(self.sections.get(section.index()));
        let (range, source) = located.ok_or_else(|| Error::argument(format!("{section} of chunk {chunk}")))?;
        if out.len() != range.len() {
            let (found, expected) = (out.len(), range.len());
            return Err(Error::argument(format!(
                "{found} elements for {section} of chunk {chunk}, which has {expected}"
            )));
        }
        if section != Section::Parameters {
            out.fill(0.0);
        }
        let Some(source) = *source else { return Ok(()) };
        for (tensor, tensor_range) in self.layout.section_tensors(self.layout.chunks()[chunk].group, shape) {
            let (first, last) = (tensor_range.start.max(range.start), tensor_range.end.min(range.end));
            if let (true, Some((group, source_range))) = (first < last, &self.locations[&shape][tensor]) {
                let elements =
                    source_range.start + first - tensor_range.start..source_range.start + last - tensor_range.start;
                let out = &mut out[first - range.start..last - range.start];
                self.cache.read(&self.from, *group, elements, source, out)?;
            }
        }
        Ok(())
    }
}

/// Returns the location of each tensor of `target` in the sections of this shape of `source`.
fn locate_tensors(target: &Layout, source: &Layout, shape: StateShape) -> Vec<TensorLocation> {
    let tensors = source.graph().tensors.iter().zip(source.tensor_ranges(shape));
    let by_name: HashMap<_, _> = tensors.map(|(tensor, location)| ((&tensor.name, &tensor.shape), location)).collect();
    let tensors = target.graph().tensors.iter();
    tensors.map(|tensor| by_name.get(&(&tensor.name, &tensor.shape)).cloned()).collect()
}

/// Returns the first difference between the tensors of `expected` and those found: in the order of the model, then
/// additional tensors.
pub(crate) fn first_difference<'a>(
    expected: &Graph,
    found: impl Iterator<Item = (&'a str, &'a [usize])>,
) -> Option<ModelDifference> {
    let found: Vec<_> = found.collect();
    let by_name: HashMap<_, _> = found.iter().copied().collect();
    let tensors = &expected.tensors;
    let differs = tensors.iter().find_map(|tensor| match by_name.get(tensor.name.as_str()) {
        None => Some(ModelDifference::Missing { name: tensor.name.clone() }),
        Some(shape) => (*shape != tensor.shape).then(|| ModelDifference::Shape {
            name: tensor.name.clone(),
            found: shape.to_vec(),
            expected: tensor.shape.clone(),
        }),
    });
    differs.or_else(|| {
        let expected_names: HashSet<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let extra = found.iter().find(|(name, _)| !expected_names.contains(name));
        extra.map(|(name, _)| ModelDifference::Unknown { name: (*name).to_owned() })
    })
}
