//! The position of every element of a checkpoint: files, tensors in files, and chunks of files.
//!
//! A [`Layout`] is the part of a stream plan that determines the bytes on disk: the graph (names, shapes, and what an
//! export needs), the groups and the chunks. It is stored in the checkpoint, so that a checkpoint can be read, verified
//! and exported without the job that wrote it.
//!
//! * Every tensor is in exactly one group, and groups have no gaps.
//! * The chunks of the groups, group by group, are all chunks in order, and divide each group without gaps.

use std::collections::HashMap;
use std::ops::Range;

use millrace_emulator::graph::{Graph, TensorId};
use millrace_emulator::optimizers::Optimizer;
use millrace_emulator::plan::{Chunk, ChunkId, Group, GroupId, StreamPlan};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::safetensors_header;
use crate::section::Section;

/// Bytes of an element on disk: parameters and moments are f32, whatever the encoding on links.
pub(crate) const ELEMENT_BYTES: u64 = 4;

/// The names of an optimizer's moments, in order. File names end with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moments(Vec<String>);

impl Moments {
    /// Creates moments with the given names.
    ///
    /// # Errors
    /// A name is empty, has characters other than `a-z`, `0-9` and `_`, or is repeated.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Result<Self> {
        let moments = Self(names.into_iter().map(Into::into).collect());
        moments.check().map_err(Error::argument)?;
        Ok(moments)
    }

    /// No moments: an imported or evaluated model, or SGD without momentum.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Returns the moments that an optimizer keeps.
    pub fn of_optimizer(optimizer: &dyn Optimizer) -> Self {
        Self(optimizer.state().iter().copied().map(String::from).collect())
    }

    /// Returns the names of the moments, in the order in which the optimizer stores them.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Returns the number of moments.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all sections: parameters, then every moment.
    pub fn sections(&self) -> impl Iterator<Item = Section> + use<> {
        (0..=self.0.len()).map(Section::from_index)
    }

    pub(crate) fn check(&self) -> Result<(), MomentsError> {
        for (at, name) in self.0.iter().enumerate() {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            if name.is_empty() || !name.bytes().all(plain) {
                return Err(MomentsError::Name(name.clone()));
            }
            if self.0[..at].contains(name) {
                return Err(MomentsError::Repeated(name.clone()));
            }
        }
        Ok(())
    }
}

/// Names that moments can't have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MomentsError {
    #[error("a moment named {0:?}")]
    Name(String),
    #[error("two moments named {0}")]
    Repeated(String),
}

/// A violation of the guarantees in the module documentation, or a document that is not a layout.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayoutError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("the tensor name {0:?} is empty, reserved or used twice")]
    TensorName(String),
    #[error("group {group} has no tensor {tensor}")]
    UnknownTensor { group: String, tensor: TensorId },
    #[error("{tensor} does not fit its range in group {group}")]
    Misplaced { group: String, tensor: String },
    #[error("{0} is in two groups")]
    InTwoGroups(String),
    #[error("{0} is in no group")]
    InNoGroup(String),
    #[error("group {0} has gaps")]
    Gaps(String),
    #[error("the chunks of group {0} are out of order")]
    ChunksOutOfOrder(String),
    #[error("the chunks of group {0} do not follow each other")]
    ChunksNotAdjacent(String),
    #[error("the chunks of group {0} do not cover the group")]
    ChunksIncomplete(String),
    #[error("some chunks belong to no group")]
    ChunksOfNoGroup,
}

/// The layout of a checkpoint; see the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layout {
    graph: Graph,
    groups: Vec<Group>,
    chunks: Vec<Chunk>,
}

/// One safetensors file of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct FileSpec {
    /// Relative to the checkpoint's directory, with `/`.
    pub path: String,
    /// The header: everything before the data.
    pub header: Vec<u8>,
    /// Length of header and data.
    pub bytes: u64,
}

impl Layout {
    /// Creates the layout of a plan.
    ///
    /// # Errors
    /// The plan violates the guarantees of the module documentation, which no compiled plan does.
    pub fn from_plan(plan: &StreamPlan) -> Result<Self> {
        let parts = (plan.graph.clone(), plan.groups.clone(), plan.chunks.clone());
        Self::new(parts.0, parts.1, parts.2).map_err(Error::argument)
    }

    /// Creates the layout of these parts, or returns why they are invalid.
    pub(crate) fn new(graph: Graph, groups: Vec<Group>, chunks: Vec<Chunk>) -> Result<Self, LayoutError> {
        check_groups(&graph, &groups)?;
        check_chunks(&groups, &chunks)?;
        Ok(Self { graph, groups, chunks })
    }

    pub(crate) fn from_json(text: &[u8]) -> Result<Self, LayoutError> {
        #[derive(Deserialize)]
        struct LayoutParts {
            graph: Graph,
            groups: Vec<Group>,
            chunks: Vec<Chunk>,
        }
        let parts: LayoutParts = serde_json::from_slice(text)?;
        Self::new(parts.graph, parts.groups, parts.chunks)
    }

    /// Returns the model.
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the groups in plan order: one file each.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the chunks in plan order.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<TensorId> {
        self.graph.tensors.iter().position(|tensor| tensor.name == name)
    }

    /// Returns the number of trained scalars.
    pub fn parameters(&self) -> u64 {
        self.groups.iter().map(|group| group.elements as u64).sum()
    }

    /// Returns the group of every tensor, and its element range in that group.
    pub(crate) fn tensor_ranges(&self) -> Vec<(GroupId, Range<usize>)> {
        let mut places = vec![(0, 0..0); self.graph.tensors.len()];
        for (group, members) in self.groups.iter().enumerate() {
            for (tensor, range) in &members.tensors {
                places[*tensor] = (group, range.clone());
            }
        }
        places
    }

    /// Returns the chunks of `group` that overlap `range`, with their elements in the group.
    pub(crate) fn overlapping(
        &self,
        group: GroupId,
        range: Range<usize>,
    ) -> impl Iterator<Item = (ChunkId, Range<usize>)> {
        let ids = self.groups[group].chunks.clone();
        let chunks = &self.chunks[ids.clone()];
        let first = chunks.partition_point(|chunk| chunk.start + chunk.elements <= range.start);
        chunks[first..]
            .iter()
            .take_while(move |chunk| chunk.start < range.end)
            .enumerate()
            .map(move |(at, chunk)| (ids.start + first + at, chunk.start..chunk.start + chunk.elements))
    }

    /// Returns the names of the tensors in elements `range` of `group`.
    pub(crate) fn tensor_names(&self, group: GroupId, range: &Range<usize>) -> Vec<String> {
        let inside = |location: &Range<usize>| location.start < range.end && range.start < location.end;
        let members = self.groups[group].tensors.iter().filter(|(_, location)| inside(location));
        members.map(|(tensor, _)| self.graph.tensors[*tensor].name.clone()).collect()
    }

    /// Returns the file of a chunk's section, as an index into [`Layout::files`].
    pub(crate) fn file_of(&self, group: GroupId, section: Section) -> usize {
        section.index() * self.groups.len() + group
    }

    /// Returns every file, section by section, group by group.
    pub(crate) fn files(&self, moments: &Moments) -> Vec<FileSpec> {
        let endings = std::iter::once(None).chain(moments.names().iter().map(Some));
        let with_groups =
            endings.flat_map(|ending| self.groups.iter().enumerate().map(move |(at, group)| (ending, at, group)));
        with_groups
            .map(|(moment, at, group)| {
                let header = safetensors_header::write(group.tensors.iter().map(|(tensor, range)| {
                    let tensor = &self.graph.tensors[*tensor];
                    (tensor.name.as_str(), tensor.shape.as_slice(), range.start as u64 * ELEMENT_BYTES)
                }));
                let bytes = header.len() as u64 + group.elements as u64 * ELEMENT_BYTES;
                FileSpec { path: file_name(at, &group.name, moment), header, bytes }
            })
            .collect()
    }
}

/// Returns names such as `parameters/00003-h.3.safetensors` and `optimizer/00003-h.3.m.safetensors`. The number
/// distinguishes names that differ only in characters that a file system may not support.
fn file_name(at: GroupId, group: &str, moment: Option<&String>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = group.chars().map(plain).take(100).collect();
    match moment {
        None => format!("parameters/{at:05}-{name}.safetensors"),
        Some(moment) => format!("optimizer/{at:05}-{name}.{moment}.safetensors"),
    }
}

fn check_groups(graph: &Graph, groups: &[Group]) -> Result<(), LayoutError> {
    let mut names = HashMap::new();
    for tensor in &graph.tensors {
        if tensor.name.is_empty()
            || tensor.name == safetensors_header::METADATA_KEY
            || names.insert(&tensor.name, ()).is_some()
        {
            return Err(LayoutError::TensorName(tensor.name.clone()));
        }
    }
    let mut placed = vec![false; graph.tensors.len()];
    for group in groups {
        let mut end = 0;
        for (id, range) in &group.tensors {
            let unknown = || LayoutError::UnknownTensor { group: group.name.clone(), tensor: *id };
            let tensor = graph.tensors.get(*id).ok_or_else(unknown)?;
            let elements = tensor.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
            if range.start != end || range.end < range.start || elements != Some(range.end - range.start) {
                return Err(LayoutError::Misplaced { group: group.name.clone(), tensor: tensor.name.clone() });
            }
            if std::mem::replace(&mut placed[*id], true) {
                return Err(LayoutError::InTwoGroups(tensor.name.clone()));
            }
            end = range.end;
        }
        if end != group.elements || end as u64 > u64::MAX / 16 {
            return Err(LayoutError::Gaps(group.name.clone()));
        }
    }
    match placed.iter().position(|placed| !placed) {
        Some(tensor) => Err(LayoutError::InNoGroup(graph.tensors[tensor].name.clone())),
        None => Ok(()),
    }
}

fn check_chunks(groups: &[Group], chunks: &[Chunk]) -> Result<(), LayoutError> {
    let mut next = 0;
    for (id, group) in groups.iter().enumerate() {
        let cut = (group.chunks.start == next).then(|| chunks.get(group.chunks.clone())).flatten();
        let cut = cut.ok_or_else(|| LayoutError::ChunksOutOfOrder(group.name.clone()))?;
        let mut end = 0usize;
        for chunk in cut {
            if chunk.group != id || chunk.start != end || chunk.elements == 0 {
                return Err(LayoutError::ChunksNotAdjacent(group.name.clone()));
            }
            end = end.saturating_add(chunk.elements);
        }
        if end != group.elements {
            return Err(LayoutError::ChunksIncomplete(group.name.clone()));
        }
        next = group.chunks.end;
    }
    if next == chunks.len() { Ok(()) } else { Err(LayoutError::ChunksOfNoGroup) }
}
