//! A data frame as the machines see it: where it belongs and what it carries.

use millrace_emulator::plan::ChunkId;
use millrace_emulator::tree::Node;

use crate::payload::Payload;
use crate::types::Epoch;

/// Where a frame belongs. Plan hash, encoding, length and checksum are checked by the link before a machine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKey {
    /// Epoch of the sender.
    pub epoch: Epoch,
    /// Turn within the epoch.
    pub iteration: u64,
    /// Round within the iteration.
    pub round: u32,
    /// Slot within the round: index into the plan's order for this direction.
    pub slot: u32,
    /// The chunk.
    pub chunk: ChunkId,
    /// Gradients: the leaves summed. Weights: every leaf of the batch.
    pub node: Node,
}

/// A chunk's weights, or a partial sum of its gradient.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Where it belongs.
    pub key: FrameKey,
    /// The numbers.
    pub payload: Payload,
    /// The payload's checksum, where a link has checked it: a payload that is passed on keeps the one it was sent with.
    pub checksum: Option<u64>,
}

impl Frame {
    /// A frame made here.
    pub fn new(key: FrameKey, payload: impl Into<Payload>) -> Self {
        Self { key, payload: payload.into(), checksum: None }
    }
}

/// A frame that can't be right: the peer runs another plan or has lost count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not the frame that comes next in plan order.
    #[error("expected iteration {want_iteration} round {want_round} slot {want_slot} on this link, got {got:?}")]
    OutOfOrder {
        /// Turn expected.
        want_iteration: u64,
        /// Round expected.
        want_round: u32,
        /// Slot expected.
        want_slot: u32,
        /// What came.
        got: FrameKey,
    },
    /// A frame nobody asked for.
    #[error("a frame came before the coordinator opened its iteration: {0:?}")]
    IterationNotOpened(FrameKey),
    /// A sum that is not as long as its chunk.
    #[error("a partial sum of chunk {chunk} has not the {elements} numbers of the plan")]
    Length {
        /// The chunk.
        chunk: ChunkId,
        /// Elements of the chunk.
        elements: usize,
    },
    /// Weights in a form that only partial sums have.
    #[error("weights of chunk {chunk} came as a sparse partial sum")]
    SparseWeights {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The leaves don't fit the tree.
    #[error("chunk {chunk}: {source}")]
    Partial {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: millrace_emulator::tree::PartialSumError,
    },
}
