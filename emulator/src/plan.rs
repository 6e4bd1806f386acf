//! The stream plan: which chunks are sent in which order, and what a step costs. A value with a hash.
//!
//! The plan does not depend on the number of systems, shards and SwarmX nodes; the [placement](crate::placement)
//! assigns work to agents. Every agent compiles the plan from the same resolved job and compares the hash, so that a
//! data frame only needs positions.
//!
//! Order of one *round* of a training step, on every link:
//! * down: [`StreamPlan::down_train`], the forward pass and then the backward pass, chunk by chunk. Groups resident on
//!   the wafer are sent only once. Groups that the backward pass does not read (an embedding table) are not sent for
//!   it.
//! * up: [`StreamPlan::up`], the gradients of each use of a group, last layer first.
//!
//! The placement decides the number of rounds of a step; rounds follow one another. An evaluation step only has
//! [`StreamPlan::down_eval`].

use std::io::{BufWriter, Write as _};
use std::ops::Range;

use millrace_params::Precision;
use serde::{Deserialize, Serialize};

use crate::graph::{Graph, LayerId, TensorId};
use crate::tree::LeafTree;

/// Index into [`StreamPlan::groups`].
pub type GroupId = usize;
/// Index into [`StreamPlan::chunks`]: plan order.
pub type ChunkId = usize;

/// Default maximum elements of a chunk: 1 MiB of f32, the size with the lowest cost per byte on a link.
pub const DEFAULT_CHUNK_ELEMENTS: usize = 1 << 18;

/// Maximum elements of one frame: 4 MiB of f32.
pub const MAX_FRAME_ELEMENTS: usize = 1 << 20;

/// Encoding of weights on links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// 4 bytes per element, little-endian.
    F32,
    /// 2 bytes per element, little-endian, rounded to nearest even.
    Bf16,
}

impl Encoding {
    /// Returns the bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Returns the encoding of matrices on links. Groups of vectors are encoded as f32 in either precision, see
/// [`StreamPlan::chunk_encoding`].
impl From<Precision> for Encoding {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

/// Returns the precision of a plan whose matrices have this encoding.
impl From<Encoding> for Precision {
    fn from(encoding: Encoding) -> Self {
        match encoding {
            Encoding::F32 => Self::F32,
            Encoding::Bf16 => Self::Bf16,
        }
    }
}

/// Shape of a tensor of optimizer state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateShape {
    /// That of the tensor of weights.
    #[default]
    Full,
    /// One number for each row: all dimensions but the last. That of a vector is full.
    Rows,
    /// One number for each column: all dimensions but the second last. A vector has none.
    Columns,
}

impl StateShape {
    /// Returns the dimensions of the state of a tensor with these dimensions; one that is 0 if it has none.
    pub fn dimensions(self, tensor: &[usize]) -> Vec<usize> {
        match (self, tensor) {
            (Self::Columns, [] | [_]) => vec![0],
            (Self::Full, _) | (Self::Rows, [] | [_]) => tensor.to_vec(),
            (Self::Rows, [rows @ .., _]) => rows.to_vec(),
            (Self::Columns, [matrices @ .., _, columns]) => [matrices, &[*columns]].concat(),
        }
    }

    /// Returns the number of elements of the state of a tensor with these dimensions.
    pub fn elements(self, tensor: &[usize]) -> usize {
        if tensor.contains(&0) { 0 } else { self.dimensions(tensor).iter().product() }
    }
}

/// Tensors that are always used together, laid out contiguously without gaps. A checkpoint file stores groups; chunks
/// are pieces of groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Name of the layer of first use, or of the tensor if layers share it.
    pub name: String,
    /// Tensors and the element range of each in the group.
    pub tensors: Vec<(TensorId, Range<usize>)>,
    /// Its chunks, in order.
    pub chunks: Range<ChunkId>,
    /// Number of elements.
    pub elements: usize,
}

impl Group {
    /// Returns the number of elements of optimizer state of this shape.
    pub fn state_elements(&self, graph: &Graph, shape: StateShape) -> usize {
        match shape {
            StateShape::Full => self.elements,
            StateShape::Rows | StateShape::Columns => {
                self.tensors.iter().map(|(tensor, _)| shape.elements(&graph.tensors[*tensor].shape)).sum()
            }
        }
    }

    /// Returns the tensors, with the range of each in optimizer state of this shape.
    pub fn state_tensors(&self, graph: &Graph, shape: StateShape) -> Vec<(TensorId, Range<usize>)> {
        if shape == StateShape::Full {
            return self.tensors.clone();
        }
        let mut end = 0;
        let range = |(tensor, _): &(TensorId, Range<usize>)| {
            let start = end;
            end += shape.elements(&graph.tensors[*tensor].shape);
            (*tensor, start..end)
        };
        self.tensors.iter().map(range).collect()
    }
}

/// A piece of a group, sent in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The group it is part of.
    pub group: GroupId,
    /// First element in the group.
    pub start: usize,
    /// Number of elements.
    pub elements: usize,
}

/// Forward or backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// Layers in ascending order.
    Forward,
    /// Layers in descending order.
    Backward,
}

/// One slot of the weight stream: `chunk` is needed by `layer` in `pass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownSlot {
    /// Pass in which it is needed.
    pub pass: Pass,
    /// First layer that needs it.
    pub layer: LayerId,
    /// The chunk.
    pub chunk: ChunkId,
}

/// One slot of the gradient stream: the gradient of `chunk` from its use in `layer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpSlot {
    /// The layer whose backward pass computes it.
    pub layer: LayerId,
    /// The chunk.
    pub chunk: ChunkId,
}

/// The plan of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerPlan {
    /// Groups used, in order.
    pub groups: Vec<GroupId>,
    /// The groups whose weights the backward pass reads, in order; the others are not streamed for it.
    pub backward_groups: Vec<GroupId>,
    /// Whether the backward pass recomputes the layer's inner values instead of saving them.
    pub recompute: bool,
    /// Floating-point operations of the forward pass, per sample.
    pub forward_flops: u64,
    /// Floating-point operations of the backward pass per sample, without recomputation.
    pub backward_flops: u64,
    /// Floating-point operations per sample of the operators that recomputation repeats; 0 if not recomputed.
    pub recompute_flops: u64,
    /// Bytes held between forward and backward pass per sample, according to `recompute`. If samples are divided into
    /// tiles, those of the modelled machine are held by an activation server instead of the wafer.
    pub saved: MachineBytes,
    /// Bytes of working memory during computation, per leaf.
    pub working: MachineBytes,
}

/// Bytes on the modelled machine and in this emulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineBytes {
    /// On the modelled wafer, in its number formats.
    pub wafer: u64,
    /// In the emulating process, in f32.
    pub host: u64,
}

/// Division of a batch into leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafLayout {
    /// Number of leaves (K).
    pub count: u32,
    /// Samples of each leaf.
    pub samples: u32,
}

impl LeafLayout {
    /// Returns the samples of the whole batch.
    pub const fn batch(self) -> u64 {
        self.count as u64 * self.samples as u64
    }

    /// Returns the tree that sums the gradients of the leaves.
    pub const fn tree(self) -> LeafTree {
        LeafTree::new(self.count)
    }
}

/// The stream plan; see the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamPlan {
    /// The model.
    pub graph: Graph,
    /// Tokens of a sample.
    pub sequence: usize,
    /// Leaves of a training step.
    pub leaves: LeafLayout,
    /// Leaves of an evaluation step.
    pub eval_leaves: LeafLayout,
    /// Groups, in order of first use.
    pub groups: Vec<Group>,
    /// Chunks in plan order: group by group.
    pub chunks: Vec<Chunk>,
    /// Plans of the layers of the graph.
    pub layers: Vec<LayerPlan>,
    /// Groups that stay on the wafer from their forward to their backward use.
    pub resident: Vec<GroupId>,
    /// Encoding of weights on links. Groups of vectors are an exception, see [`StreamPlan::chunk_encoding`].
    pub encoding: Encoding,
    /// Maximum leaves that one system can hold at once. The placement divides a larger batch into rounds.
    pub leaves_per_round: u32,
    /// Number of tiles that the modelled wafer divides each sample into; 1 if it holds whole samples.
    #[serde(default = "one_tile", skip_serializing_if = "is_one_tile")]
    pub tiles: u32,
    /// Shapes of the optimizer's state if it updates whole tensors: a shard then owns all chunks of a group and updates
    /// them together. `None` if it updates single elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_tensor_state: Option<Vec<StateShape>>,
    /// State tensors of an optimizer of single elements beyond [`PLANNED_STATE_TENSORS`](crate::optimizers).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extra_state_tensors: u32,
    /// Order of weights in a training round.
    pub down_train: Vec<DownSlot>,
    /// Order of weights in an evaluation round.
    pub down_eval: Vec<DownSlot>,
    /// Order of gradients in a training round.
    pub up: Vec<UpSlot>,
}

const fn one_tile() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_one_tile(tiles: &u32) -> bool {
    *tiles == 1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A plan's hash: the first eight bytes of the blake3 of its canonical JSON, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlanHash(pub u64);

impl std::fmt::Display for PlanHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cs_{:016x}", self.0)
    }
}

impl StreamPlan {
    /// Returns the hash of the whole plan.
    pub fn hash(&self) -> PlanHash {
        // JSON is written a few bytes at a time, which is slow with a hasher.
        let mut writer = BufWriter::with_capacity(1 << 16, HashWriter(blake3::Hasher::new()));
        // Serializing a plain tree of numbers and strings into a hasher can't fail.
        let written = serde_json::to_writer(&mut writer, self).is_ok() && writer.flush().is_ok();
        debug_assert!(written);
        let mut first = [0; 8];
        first.copy_from_slice(&writer.get_ref().0.finalize().as_bytes()[..8]);
        PlanHash(u64::from_le_bytes(first))
    }

    /// Returns the chunks that are owned and updated together with `chunk`.
    pub fn chunks_updated_with(&self, chunk: ChunkId) -> Range<ChunkId> {
        match self.whole_tensor_state {
            Some(_) => self.groups[self.chunks[chunk].group].chunks.clone(),
            None => chunk..chunk + 1,
        }
    }

    /// Returns the number of trained scalars.
    pub fn parameters(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.elements as u64).sum()
    }

    /// Returns the element range of `chunk` in its group.
    pub fn chunk_range(&self, chunk: ChunkId) -> Range<usize> {
        let Chunk { start, elements, .. } = self.chunks[chunk];
        start..start + elements
    }

    /// Returns the encoding of the weights of `chunk`: f32 for a group of vectors, otherwise the plan's encoding.
    pub fn chunk_encoding(&self, chunk: ChunkId) -> Encoding {
        let group = &self.groups[self.chunks[chunk].group];
        let vectors = group.tensors.iter().all(|(tensor, _)| self.graph.tensors[*tensor].is_vector());
        if vectors { Encoding::F32 } else { self.encoding }
    }

    /// Returns the parts of tensors in `chunk`: tensor, first element in the tensor, range in the chunk.
    pub fn chunk_pieces(&self, chunk: ChunkId) -> Vec<(TensorId, usize, Range<usize>)> {
        let range = self.chunk_range(chunk);
        let group = &self.groups[self.chunks[chunk].group];
        group
            .tensors
            .iter()
            .filter_map(|(tensor, tensor_range)| {
                let (start, end) = (tensor_range.start.max(range.start), tensor_range.end.min(range.end));
                (start < end).then(|| (*tensor, start - tensor_range.start, start - range.start..end - range.start))
            })
            .collect()
    }

    /// Returns how many slots fit into a window of `bytes` as f32, for the largest consecutive slots in either
    /// direction, including across rounds. At least one: a chunk larger than the window must be sendable.
    pub fn slots_within(&self, bytes: u64) -> u64 {
        let bytes_of = |chunk: ChunkId| self.chunks[chunk].elements as u64 * 4;
        let down: Vec<u64> = self.down_train.iter().map(|slot| bytes_of(slot.chunk)).collect();
        let up: Vec<u64> = self.up.iter().map(|slot| bytes_of(slot.chunk)).collect();
        shortest_run_exceeding(bytes, &down).min(shortest_run_exceeding(bytes, &up)).saturating_sub(1).max(1) as u64
    }

    /// Returns whether `group` stays on the wafer between its uses.
    pub fn is_resident(&self, group: GroupId) -> bool {
        self.resident.contains(&group)
    }
}

/// Returns the length of the shortest run of `sizes`, repeated cyclically, that sums to more than `limit`; the number
/// of sizes plus one if there is none.
fn shortest_run_exceeding(limit: u64, sizes: &[u64]) -> usize {
    let (mut shortest, mut sum, mut from) = (sizes.len() + 1, 0, 0);
    for (index, size) in sizes.iter().chain(sizes).enumerate() {
        sum += size;
        while sum > limit && from <= index {
            shortest = shortest.min(index + 1 - from);
            sum -= sizes[from % sizes.len()];
            from += 1;
        }
    }
    shortest
}

struct HashWriter(blake3::Hasher);

impl std::io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::shortest_run_exceeding;

    #[test]
    fn window_fits_at_densest_layers() {
        let sizes = [1, 5, 5, 1, 1];
        assert_eq!(shortest_run_exceeding(4, &sizes), 1, "a chunk alone is too much");
        assert_eq!(shortest_run_exceeding(10, &sizes), 3, "1, 5, 5 is the densest");
        assert_eq!(shortest_run_exceeding(12, &[5, 1, 1, 5]), 5, "from one round into the next: 1, 5, 5, 1, 1");
        assert_eq!(shortest_run_exceeding(100, &sizes), 6, "all fit");
        assert_eq!(shortest_run_exceeding(0, &[]), 1);
    }
}
