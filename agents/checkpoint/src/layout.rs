//! The position of every element of a checkpoint: files, tensors in files, and chunks of files.
//!
//! A [`Layout`] is the part of a stream plan that determines the bytes on disk: the graph (names, shapes, and what an
//! export needs), the groups and the chunks. It is stored in the checkpoint, so that a checkpoint can be read, verified
//! and exported without the job that wrote it.
//!
//! * Every tensor is in exactly one group, and groups have no gaps.
//! * The chunks of the groups, group by group, are all chunks in order, and divide each group without gaps.
//! * A moment has the shape of the weights, or one number for each row or column; see [`StateShape`]. The latter
//!   belongs to the first chunk of the group.

use std::collections::HashMap;
use std::ops::Range;

use millrace_emulator::graph::{Graph, TensorId};
use millrace_emulator::optimizers::Optimizer;
use millrace_emulator::plan::{Chunk, ChunkId, Group, GroupId, StateShape, StreamPlan};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::safetensors_header;
use crate::section::Section;

/// Bytes of an element on disk: parameters and moments are f32, whatever the encoding on links.
pub(crate) const ELEMENT_BYTES: u64 = 4;

/// The optimizer's moments, in order. File names end with their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moments(Vec<Moment>);

/// A tensor of optimizer state for each tensor of weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "MomentDocument", into = "MomentDocument")]
struct Moment {
    name: String,
    shape: StateShape,
}

/// A moment in a manifest: a name alone if it has the shape of the weights.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum MomentDocument {
    Name(String),
    Shaped { name: String, shape: StateShape },
}

impl From<MomentDocument> for Moment {
    fn from(document: MomentDocument) -> Self {
        match document {
            MomentDocument::Name(name) => Self { name, shape: StateShape::Full },
            MomentDocument::Shaped { name, shape } => Self { name, shape },
        }
    }
}

impl From<Moment> for MomentDocument {
    fn from(Moment { name, shape }: Moment) -> Self {
        if shape == StateShape::Full { Self::Name(name) } else { Self::Shaped { name, shape } }
    }
}

impl Moments {
    /// Creates moments with the given names, each with the shape of the weights.
    ///
    /// # Errors
    /// A name is empty, has characters other than `a-z`, `0-9` and `_`, or is repeated.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::with_shapes(names.into_iter().map(|name| (name, StateShape::Full)))
    }

    /// Creates moments with the given names and shapes.
    ///
    /// # Errors
    /// See [`Moments::new`].
    pub fn with_shapes<S: Into<String>>(moments: impl IntoIterator<Item = (S, StateShape)>) -> Result<Self> {
        let moments = moments.into_iter().map(|(name, shape)| Moment { name: name.into(), shape });
        let moments = Self(moments.collect());
        moments.check().map_err(Error::argument)?;
        Ok(moments)
    }

    /// No moments: an imported or evaluated model, or SGD without momentum.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Returns the moments that an optimizer keeps.
    pub fn of_optimizer(optimizer: &dyn Optimizer) -> Self {
        let shapes = optimizer.whole_tensor_state().unwrap_or_default();
        let shape = |index: usize| shapes.get(index).copied().unwrap_or_default();
        let names = optimizer.state().iter().enumerate();
        Self(names.map(|(index, name)| Moment { name: (*name).to_owned(), shape: shape(index) }).collect())
    }

    /// Adds a moment with the shape of the weights, unless there is one of this name.
    #[must_use]
    pub fn with_full(mut self, name: &str) -> Self {
        if self.names().all(|other| other != name) {
            self.0.push(Moment { name: name.to_owned(), shape: StateShape::Full });
        }
        self
    }

    /// Returns the names of the moments, in the order in which the optimizer stores them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|moment| moment.name.as_str())
    }

    /// Returns the number of moments.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether every moment has the shape of the weights.
    pub(crate) fn are_full(&self) -> bool {
        self.0.iter().all(|moment| moment.shape == StateShape::Full)
    }

    /// Returns the shape of a section's tensors.
    pub fn shape(&self, section: Section) -> StateShape {
        match section {
            Section::Parameters => StateShape::Full,
            Section::Moment(index) => self.0.get(index).map_or(StateShape::Full, |moment| moment.shape),
        }
    }

    /// Returns the section of these moments that has the name and the shape of moment `index` of `other`.
    pub(crate) fn section_like(&self, other: &Self, index: usize) -> Option<Section> {
        self.0.iter().position(|moment| Some(moment) == other.0.get(index)).map(Section::Moment)
    }

    /// Returns all sections: parameters, then every moment.
    pub fn sections(&self) -> impl Iterator<Item = Section> + use<> {
        (0..=self.0.len()).map(Section::from_index)
    }

    pub(crate) fn check(&self) -> Result<(), MomentsError> {
        for (index, Moment { name, .. }) in self.0.iter().enumerate() {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            if name.is_empty() || !name.bytes().all(plain) {
                return Err(MomentsError::Name(name.clone()));
            }
            if self.0[..index].iter().any(|moment| moment.name == *name) {
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

    /// Returns the number of elements of a group in sections of this shape.
    pub(crate) fn section_elements(&self, group: GroupId, shape: StateShape) -> usize {
        self.groups[group].state_elements(&self.graph, shape)
    }

    /// Returns the tensors of a group in sections of this shape, with their element ranges.
    pub(crate) fn section_tensors(&self, group: GroupId, shape: StateShape) -> Vec<(TensorId, Range<usize>)> {
        self.groups[group].state_tensors(&self.graph, shape)
    }

    /// Returns the elements of a chunk in its group's section of this shape. State of rows or columns belongs to the
    /// first chunk of its group; the other chunks have none.
    pub(crate) fn chunk_range(&self, chunk: ChunkId, shape: StateShape) -> Option<Range<usize>> {
        let Chunk { group, start, elements } = *self.chunks.get(chunk)?;
        Some(match shape {
            StateShape::Full => start..start + elements,
            StateShape::Rows | StateShape::Columns => {
                let all = self.section_elements(group, shape);
                if chunk == self.groups[group].chunks.start { 0..all } else { all..all }
            }
        })
    }

    /// Returns the group of every tensor, and its element range in that group's section of this shape.
    pub(crate) fn tensor_ranges(&self, shape: StateShape) -> Vec<(GroupId, Range<usize>)> {
        let mut ranges = vec![(0, 0..0); self.graph.tensors.len()];
        for group in 0..self.groups.len() {
            for (tensor, range) in self.section_tensors(group, shape) {
                ranges[tensor] = (group, range);
            }
        }
        ranges
    }

    /// Returns the chunks of `group` that overlap `range` of its section of this shape, with their elements in it.
    pub(crate) fn overlapping(
        &self,
        group: GroupId,
        range: Range<usize>,
        shape: StateShape,
    ) -> impl Iterator<Item = (ChunkId, Range<usize>)> {
        let mut ids = self.groups[group].chunks.clone();
        if shape != StateShape::Full {
            ids.end = ids.end.min(ids.start + 1);
        }
        let chunks = &self.chunks[ids.clone()];
        let first = match shape {
            StateShape::Full => chunks.partition_point(|chunk| chunk.start + chunk.elements <= range.start),
            StateShape::Rows | StateShape::Columns => 0,
        };
        (ids.start + first..ids.end)
            .map(move |chunk| (chunk, self.chunk_range(chunk, shape).unwrap_or_default()))
            .take_while(move |(_, elements)| elements.start < range.end)
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
        let extensions = std::iter::once(None).chain(moments.names().map(Some));
        let sections = moments.sections().map(|section| moments.shape(section)).zip(extensions);
        sections
            .flat_map(|(shape, extension)| (0..self.groups.len()).map(move |group| self.file(group, shape, extension)))
            .collect()
    }

    fn file(&self, group: GroupId, shape: StateShape, moment: Option<&str>) -> FileSpec {
        let members = self.section_tensors(group, shape).into_iter().map(|(tensor, range)| {
            let tensor = &self.graph.tensors[tensor];
            (tensor.name.as_str(), shape.dimensions(&tensor.shape), range.start as u64 * ELEMENT_BYTES)
        });
        // A vector has no state of columns.
        let members = members.filter(|(_, dimensions, _)| shape == StateShape::Full || !dimensions.contains(&0));
        let header = safetensors_header::write(members);
        let bytes = header.len() as u64 + self.section_elements(group, shape) as u64 * ELEMENT_BYTES;
        FileSpec { path: file_name(group, &self.groups[group].name, moment), header, bytes }
    }
}

/// Returns names such as `parameters/00003-h.3.safetensors` and `optimizer/00003-h.3.m.safetensors`. The number
/// distinguishes names that differ only in characters that a file system may not support.
fn file_name(id: GroupId, group: &str, moment: Option<&str>) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = group.chars().map(plain).take(100).collect();
    match moment {
        None => format!("parameters/{id:05}-{name}.safetensors"),
        Some(moment) => format!("optimizer/{id:05}-{name}.{moment}.safetensors"),
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
        let group_chunks = (group.chunks.start == next).then(|| chunks.get(group.chunks.clone())).flatten();
        let group_chunks = group_chunks.ok_or_else(|| LayoutError::ChunksOutOfOrder(group.name.clone()))?;
        let mut end = 0usize;
        for chunk in group_chunks {
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
