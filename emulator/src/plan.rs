//! The stream plan: what travels, in which order, and what it costs. A value with a hash.
//!
//! The plan is the same for any number of systems, shards and SwarmX nodes; who does what is the
//! [placement](crate::placement). Every agent compiles it from the same resolved job and compares the hash, so that a
//! data frame needs only positions.
//!
//! Order of one *round* of a training step, on every link:
//! * down: [`StreamPlan::down_train`], the forward pass and then the backward pass, chunk by chunk; groups resident on
//!   the wafer are not sent a second time, groups a backward pass does not read (an embedding table) not for it;
//! * up: [`StreamPlan::up`], the gradients of each use of a group, last layer first.
//!
//! A step has as many rounds as the placement says, one after the other. An evaluation step has
//! [`StreamPlan::down_eval`] only.

use std::io::{BufWriter, Write as _};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::compile::CompileError;
use crate::graph::{Graph, LayerId, TensorId};
use crate::tree::LeafTree;

/// Index into [`StreamPlan::groups`].
pub type GroupId = usize;
/// Index into [`StreamPlan::chunks`]: plan order.
pub type ChunkId = usize;

/// Most elements of a chunk: 1 MiB of f32, the size at which a link costs least per byte.
pub const DEFAULT_CHUNK_ELEMENTS: usize = 1 << 18;

/// Most elements that a link carries in one frame: 4 MiB of f32.
pub const MAX_FRAME_ELEMENTS: usize = 1 << 20;

/// How weights travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// 4 bytes an element, little-endian.
    F32,
    /// 2 bytes an element, little-endian, rounded to nearest even.
    Bf16,
}

impl Encoding {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Tensors that are always used together, laid out one after the other without gaps: what a checkpoint file holds
/// and chunks are cut from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Name: that of the layer of first use, or of the tensor where it is shared between layers.
    pub name: String,
    /// Members and the element range each takes in the group.
    pub tensors: Vec<(TensorId, Range<usize>)>,
    /// Its chunks, in order.
    pub chunks: Range<ChunkId>,
    /// Number of elements.
    pub elements: usize,
}

/// A piece of a group: what travels in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The group it is cut from.
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
    /// Layers first to last.
    Forward,
    /// Layers last to first.
    Backward,
}

/// One chunk's turn on the way down: `chunk` is needed by `layer` in `pass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownSlot {
    /// Pass in which it is needed.
    pub pass: Pass,
    /// Layer that first needs it.
    pub layer: LayerId,
    /// The chunk.
    pub chunk: ChunkId,
}

/// One chunk's turn on the way up: the gradient of `chunk` from its use in `layer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpSlot {
    /// The layer whose backward pass made it.
    pub layer: LayerId,
    /// The chunk.
    pub chunk: ChunkId,
}

/// What the plan says of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerPlan {
    /// Groups used, in order.
    pub groups: Vec<GroupId>,
    /// Those of them whose weights the backward pass reads, in order; the others are not streamed for it.
    pub backward_groups: Vec<GroupId>,
    /// Recompute the layer's inside in the backward pass instead of saving it.
    pub recompute: bool,
    /// Floating-point operations of the forward pass, per sample.
    pub forward_flops: u64,
    /// Floating-point operations of the backward pass per sample, recomputation not counted.
    pub backward_flops: u64,
    /// Floating-point operations per sample of the operators carried out again when the layer is recomputed; 0 if not.
    pub recompute_flops: u64,
    /// Bytes kept between forward and backward per sample, as chosen by `recompute`.
    pub saved: MachineBytes,
    /// Bytes of working memory while the layer computes, per leaf.
    pub working: MachineBytes,
}

/// Bytes on the modelled machine and in this emulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineBytes {
    /// On the modelled wafer, in its number formats.
    pub wafer: u64,
    /// In the emulating process, f32.
    pub host: u64,
}

/// How a batch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafLayout {
    /// K.
    pub count: u32,
    /// Samples of each leaf.
    pub samples: u32,
}

impl LeafLayout {
    /// Samples of the whole batch.
    pub const fn batch(self) -> u64 {
        self.count as u64 * self.samples as u64
    }

    /// The tree that sums their gradients.
    pub const fn tree(self) -> LeafTree {
        LeafTree::new(self.count)
    }
}

/// The plan. See the module text.
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
    /// Chunks, in plan order: group after group.
    pub chunks: Vec<Chunk>,
    /// One per layer of the graph.
    pub layers: Vec<LayerPlan>,
    /// Groups that stay on the wafer from their forward to their backward use.
    pub resident: Vec<GroupId>,
    /// How weights travel; groups of vectors are an exception, see [`StreamPlan::chunk_encoding`].
    pub encoding: Encoding,
    /// Most leaves one system can hold at once; the placement makes rounds of a batch that needs more.
    pub leaves_per_round: u32,
    /// Down order of a training round.
    pub down_train: Vec<DownSlot>,
    /// Down order of an evaluation round.
    pub down_eval: Vec<DownSlot>,
    /// Up order of a training round.
    pub up: Vec<UpSlot>,
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
    /// The hash of everything the plan says.
    pub fn hash(&self) -> PlanHash {
        // JSON is written a few bytes at a time, which a hasher is slow at.
        let mut writer = BufWriter::with_capacity(1 << 16, HashWriter(blake3::Hasher::new()));
        // A plain tree of numbers and strings written into a hasher: neither can fail.
        let written = serde_json::to_writer(&mut writer, self).is_ok() && writer.flush().is_ok();
        debug_assert!(written);
        let mut first = [0; 8];
        first.copy_from_slice(&writer.get_ref().0.finalize().as_bytes()[..8]);
        PlanHash(u64::from_le_bytes(first))
    }

    /// Number of trained scalars.
    pub fn parameters(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.elements as u64).sum()
    }

    /// Checks that links can carry its chunks; a plan of more than 1.1e12 parameters has larger ones and is for
    /// planning only.
    ///
    /// # Errors
    /// [`CompileError::TooLargeToStream`].
    pub fn check_streamable(&self) -> Result<(), CompileError> {
        match self.chunks.iter().map(|chunk| chunk.elements).max() {
            Some(elements) if elements > MAX_FRAME_ELEMENTS => {
                Err(CompileError::TooLargeToStream { parameters: self.parameters() })
            }
            _ => Ok(()),
        }
    }

    /// The element range of `chunk` in its group.
    pub fn chunk_range(&self, chunk: ChunkId) -> Range<usize> {
        let Chunk { start, elements, .. } = self.chunks[chunk];
        start..start + elements
    }

    /// How the weights of `chunk` travel: those of a group of vectors in f32, others in the plan's encoding.
    pub fn chunk_encoding(&self, chunk: ChunkId) -> Encoding {
        let group = &self.groups[self.chunks[chunk].group];
        let vectors = group.tensors.iter().all(|(tensor, _)| self.graph.tensors[*tensor].is_vector());
        if vectors { Encoding::F32 } else { self.encoding }
    }

    /// The parts of tensors `chunk` is made of: tensor, first element in the tensor, range in the chunk.
    pub fn chunk_pieces(&self, chunk: ChunkId) -> Vec<(TensorId, usize, Range<usize>)> {
        let range = self.chunk_range(chunk);
        let group = &self.groups[self.chunks[chunk].group];
        group
            .tensors
            .iter()
            .filter_map(|(tensor, place)| {
                let (start, end) = (place.start.max(range.start), place.end.min(range.end));
                (start < end).then(|| (*tensor, start - place.start, start - range.start..end - range.start))
            })
            .collect()
    }

    /// How many slots a window of `bytes` has: the most of which any run, in either direction and from one round into
    /// the next, fits into it as f32. At least one: a chunk larger than the window must pass.
    pub fn slots_within(&self, bytes: u64) -> u64 {
        let bytes_of = |chunk: ChunkId| self.chunks[chunk].elements as u64 * 4;
        let down: Vec<u64> = self.down_train.iter().map(|slot| bytes_of(slot.chunk)).collect();
        let up: Vec<u64> = self.up.iter().map(|slot| bytes_of(slot.chunk)).collect();
        shortest_run_exceeding(bytes, &down).min(shortest_run_exceeding(bytes, &up)).saturating_sub(1).max(1) as u64
    }

    /// Whether `group` stays on the wafer between its uses.
    pub fn is_resident(&self, group: GroupId) -> bool {
        self.resident.contains(&group)
    }
}

/// Length of the shortest run of `sizes`, which repeat without end, that sums to more than `limit`; one more than there
/// are sizes if none does.
fn shortest_run_exceeding(limit: u64, sizes: &[u64]) -> usize {
    let (mut shortest, mut sum, mut from) = (sizes.len() + 1, 0, 0);
    for (at, size) in sizes.iter().chain(sizes).enumerate() {
        sum += size;
        while sum > limit && from <= at {
            shortest = shortest.min(at + 1 - from);
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
    fn a_window_is_what_fits_at_the_densest_place() {
        let sizes = [1, 5, 5, 1, 1];
        assert_eq!(shortest_run_exceeding(4, &sizes), 1, "a chunk alone is too much");
        assert_eq!(shortest_run_exceeding(10, &sizes), 3, "1, 5, 5 is the densest");
        assert_eq!(shortest_run_exceeding(12, &[5, 1, 1, 5]), 5, "from one round into the next: 1, 5, 5, 1, 1");
        assert_eq!(shortest_run_exceeding(100, &sizes), 6, "all fit");
        assert_eq!(shortest_run_exceeding(0, &[]), 1);
    }
}
