//! Reads a checkpoint with another plan than the one that wrote it.
//!
//! Tensors are matched by name and must have the same shapes; groups and chunks may differ. Everything is verified, in
//! whole chunks of the checkpoint.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use millrace_emulator::plan::{ChunkId, GroupId, StreamPlan};

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

/// Reads the chunks of a plan; see the module documentation.
#[derive(Debug)]
pub struct PlanReader {
    from: Checkpoint,
    layout: Layout,
    /// Position of each of the plan's tensors in the checkpoint; `None` if it does not have the tensor in that shape.
    places: Vec<Option<(GroupId, Range<usize>)>>,
    /// The checkpoint's section for each section of the plan; `None` if it does not have it.
    sections: Vec<Option<Section>>,
    missing_tensors: Vec<String>,
    cache: RangeCache,
}

impl PlanReader {
    /// Creates a reader of `from` by the chunks of `plan`. Moments are matched by name.
    ///
    /// # Errors
    /// [`Error::ModelMismatch`] if strict, with the first tensor that is missing, has another shape or is unknown to
    /// the plan.
    pub fn new(from: Checkpoint, plan: &StreamPlan, moments: &Moments, strictness: LoadStrictness) -> Result<Self> {
        let layout = Layout::from_plan(plan)?;
        if strictness == LoadStrictness::Strict {
            let found = from.layout().graph().tensors.iter();
            let found = found.map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()));
            if let Some(difference) = first_difference(&layout, found) {
                return Err(Error::ModelMismatch { path: from.path().to_owned(), difference });
            }
        }
        let all = from.layout().tensor_ranges();
        let tensors = from.layout().graph().tensors.iter().zip(all);
        let known: HashMap<_, _> =
            tensors.map(|(tensor, location)| ((&tensor.name, &tensor.shape), location)).collect();
        let wanted = layout.graph().tensors.iter();
        let places = wanted.map(|tensor| known.get(&(&tensor.name, &tensor.shape)).cloned()).collect();
        let known = |name: &String| from.moments().names().iter().position(|held| held == name).map(Section::Moment);
        let sections = std::iter::once(Some(Section::Parameters)).chain(moments.names().iter().map(known)).collect();
        let missing_tensors = moments.names().iter().filter(|name| known(name).is_none()).cloned().collect();
        Ok(Self { layout, places, sections, missing_tensors, cache: RangeCache::default(), from })
    }

    /// Returns the plan's tensors that the checkpoint does not have; empty unless the reader uses
    /// [`LoadStrictness::AllowMissing`].
    pub fn missing_tensors(&self) -> Vec<&str> {
        let tensors = self.layout.graph().tensors.iter().zip(&self.places);
        tensors.filter(|(_, location)| location.is_none()).map(|(tensor, _)| tensor.name.as_str()).collect()
    }

    /// Returns the checkpoint.
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.from
    }

    /// Returns the plan's moments that the checkpoint does not have (an imported model has none); they are read as
    /// zeros.
    pub fn missing_moments(&self) -> &[String] {
        &self.missing_tensors
    }

    /// Reads a chunk of the plan. `section` counts the moments given to [`PlanReader::new`]. Parameters of a missing
    /// tensor keep their value in `out`; its moments, and missing moments, are zeros.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a chunk that contains it does not match its digest.
    pub fn read_chunk(&mut self, chunk: ChunkId, section: Section, out: &mut [f32]) -> Result<()> {
        let located = self.layout.chunks().get(chunk).zip(self.sections.get(section.index()));
        let (chunk_place, source) = located.ok_or_else(|| Error::argument(format!("{section} of chunk {chunk}")))?;
        if out.len() != chunk_place.elements {
            let given = out.len();
            return Err(Error::argument(format!(
                "{given} elements for chunk {chunk}, which has {}",
                chunk_place.elements
            )));
        }
        if section != Section::Parameters {
            out.fill(0.0);
        }
        let Some(source) = *source else { return Ok(()) };
        let end = chunk_place.start + chunk_place.elements;
        for (tensor, lies) in &self.layout.groups()[chunk_place.group].tensors {
            let (first, last) = (lies.start.max(chunk_place.start), lies.end.min(end));
            if let (true, Some((group, there))) = (first < last, &self.places[*tensor]) {
                let range = there.start + first - lies.start..there.start + last - lies.start;
                self.cache.read(
                    &self.from,
                    *group,
                    range,
                    source,
                    &mut out[first - chunk_place.start..last - chunk_place.start],
                )?;
            }
        }
        Ok(())
    }
}

/// Returns the first difference between the model of `expected` and the tensors found: in the order of the model, then
/// additional tensors.
fn first_difference<'a>(
    expected: &Layout,
    found: impl Iterator<Item = (&'a str, &'a [usize])>,
) -> Option<ModelDifference> {
    let found: Vec<_> = found.collect();
    let by_name: HashMap<_, _> = found.iter().copied().collect();
    let tensors = &expected.graph().tensors;
    let differs = tensors.iter().find_map(|tensor| match by_name.get(tensor.name.as_str()) {
        None => Some(ModelDifference::Missing { name: tensor.name.clone() }),
        Some(shape) => (*shape != tensor.shape).then(|| ModelDifference::Shape {
            name: tensor.name.clone(),
            found: shape.to_vec(),
            expected: tensor.shape.clone(),
        }),
    });
    differs.or_else(|| {
        let known: HashSet<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let extra = found.iter().find(|(name, _)| !known.contains(name));
        extra.map(|(name, _)| ModelDifference::Unknown { name: (*name).to_owned() })
    })
}
