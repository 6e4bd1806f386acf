//! A data frame: its key and its payload.

use millrace_emulator::plan::ChunkId;
use millrace_emulator::tree::Node;

use crate::payload::Payload;
use crate::types::Epoch;

/// Position of a frame. The link checks plan hash, encoding, length and checksum before a state machine receives the
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKey {
    /// Epoch of the sender.
    pub epoch: Epoch,
    /// Iteration within the epoch.
    pub iteration: u64,
    /// Round within the iteration.
    pub round: u32,
    /// Slot within the round: index into the plan's order for this direction.
    pub slot: u32,
    /// The chunk.
    pub chunk: ChunkId,
    /// Gradients: the leaves of the sum. Weights: every leaf of the batch.
    pub node: Node,
}

/// A chunk's weights, or a partial sum of its gradient.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its position.
    pub key: FrameKey,
    /// Its data.
    pub payload: Payload,
    /// Checksum of the payload, if the payload itself arrived over a link, which has checked it. A forwarded payload
    /// keeps the checksum it was received with.
    pub checksum: Option<u64>,
}

impl Frame {
    /// Creates a frame with a new payload.
    pub fn new(key: FrameKey, payload: impl Into<Payload>) -> Self {
        Self { key, payload: payload.into(), checksum: None }
    }
}

/// An invalid frame: the peer has another plan or has lost its position.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is not the next one in plan order.
    #[error("expected iteration {want_iteration} round {want_round} slot {want_slot} on this link, got {got:?}")]
    OutOfOrder { want_iteration: u64, want_round: u32, want_slot: u32, got: FrameKey },
    /// The frame belongs to an iteration that is not opened.
    #[error("received a frame of an iteration that is not opened: {0:?}")]
    IterationNotOpened(FrameKey),
    /// A sum has another length than its chunk.
    #[error("a partial sum of chunk {chunk} does not have {elements} elements")]
    Length { chunk: ChunkId, elements: usize },
    /// Weights have the sparse form, which only partial sums may have.
    #[error("received weights of chunk {chunk} as a sparse partial sum")]
    SparseWeights { chunk: ChunkId },
    /// The leaves do not fit the tree.
    #[error("chunk {chunk}: {source}")]
    Partial { chunk: ChunkId, source: millrace_emulator::tree::PartialSumError },
}
