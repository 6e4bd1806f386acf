//! Reading a checkpoint by another plan than the one that wrote it.
//!
//! Tensors are matched by name and must have the same shapes; how either plan groups them and cuts chunks does not
//! matter. Everything read is verified, by whole chunks of the checkpoint.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use millrace_emulator::plan::{ChunkId, GroupId, StreamPlan};

use crate::error::{Error, ModelDifference, Result};
use crate::layout::{Layout, Moments, Section};
use crate::read::{Checkpoint, RangeCache};

/// How closely the tensors of a checkpoint must be those of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStrictness {
    /// The same names and shapes, none missing and none besides.
    Strict,
    /// What fits is taken: tensors of the plan that the checkpoint does not have in the same shape are
    /// [absent](PlanReader::missing_tensors), tensors it has besides are ignored.
    AllowMissing,
}

/// See the module text.
#[derive(Debug)]
pub struct PlanReader {
    from: Checkpoint,
    layout: Layout,
    /// Where each of the plan's tensors lies in the checkpoint; `None` when it is not there in that shape.
    places: Vec<Option<(GroupId, Range<usize>)>>,
    /// Which of the checkpoint's sections each of the plan's is; `None` when the checkpoint does not have it.
    sections: Vec<Option<Section>>,
    missing_tensors: Vec<String>,
    cache: RangeCache,
}

impl PlanReader {
    /// A reader of `from` by the chunks of `plan`. Moments are matched by name.
    ///
    /// # Errors
    /// [`Error::ModelMismatch`], where strict, with the first tensor that is missing, of another shape or unknown to
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
        let known: HashMap<_, _> = tensors.map(|(tensor, place)| ((&tensor.name, &tensor.shape), place)).collect();
        let wanted = layout.graph().tensors.iter();
        let places = wanted.map(|tensor| known.get(&(&tensor.name, &tensor.shape)).cloned()).collect();
        let known = |name: &String| from.moments().names().iter().position(|held| held == name).map(Section::Moment);
        let sections = std::iter::once(Some(Section::Parameters)).chain(moments.names().iter().map(known)).collect();
        let missing_tensors = moments.names().iter().filter(|name| known(name).is_none()).cloned().collect();
        Ok(Self { layout, places, sections, missing_tensors, cache: RangeCache::default(), from })
    }

    /// The plan's tensors that the checkpoint does not have; none unless the reader is
    /// [`LoadStrictness::AllowMissing`].
    pub fn missing_tensors(&self) -> Vec<&str> {
        let tensors = self.layout.graph().tensors.iter().zip(&self.places);
        tensors.filter(|(_, place)| place.is_none()).map(|(tensor, _)| tensor.name.as_str()).collect()
    }

    /// The checkpoint.
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.from
    }

    /// The plan's moments that the checkpoint does not have (an imported model has none); they read as zeros.
    pub fn missing_moments(&self) -> &[String] {
        &self.missing_tensors
    }

    /// Reads a chunk of the plan. `section` counts the moments given to [`PlanReader::new`]. Parameters of an absent
    /// tensor are left as they are in `out`, its moments and absent moments are zeros.
    ///
    /// # Errors
    /// [`Error::Damaged`] when a chunk it lies in does not match its digest.
    pub fn read_chunk(&mut self, chunk: ChunkId, section: Section, out: &mut [f32]) -> Result<()> {
        let place = self.layout.chunks().get(chunk).zip(self.sections.get(section.index()));
        let (place, source) = place.ok_or_else(|| Error::Argument(format!("{section} of chunk {chunk}")))?;
        if out.len() != place.elements {
            let given = out.len();
            return Err(Error::Argument(format!("{given} elements for chunk {chunk}, which has {}", place.elements)));
        }
        if section != Section::Parameters {
            out.fill(0.0);
        }
        let Some(source) = *source else { return Ok(()) };
        let end = place.start + place.elements;
        for (tensor, lies) in &self.layout.groups()[place.group].tensors {
            let (first, last) = (lies.start.max(place.start), lies.end.min(end));
            if let (true, Some((group, there))) = (first < last, &self.places[*tensor]) {
                let range = there.start + first - lies.start..there.start + last - lies.start;
                self.cache.read(
                    &self.from,
                    *group,
                    range,
                    source,
                    &mut out[first - place.start..last - place.start],
                )?;
            }
        }
        Ok(())
    }
}

/// The first difference between the model of `expected` and the tensors found, in the model's order; then what was
/// found besides.
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
