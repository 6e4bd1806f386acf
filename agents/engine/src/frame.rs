//! A data frame as the machines see it: where it belongs and its payload.

use bytes::{Bytes, BytesMut};
use millrace_emulator::plan::ChunkId;
use millrace_emulator::tree::Node;

use crate::types::Epoch;

/// Where a frame belongs. Plan hash, encoding, length and checksum are checked by the link before a machine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Epoch of the sender.
    pub epoch: Epoch,
    /// Turn within the epoch.
    pub turn: u64,
    /// Round within the turn.
    pub round: u32,
    /// Slot within the round: index into the plan's order for this direction.
    pub slot: u32,
    /// The chunk.
    pub chunk: ChunkId,
    /// Gradients: the leaves summed. Weights: every leaf of the batch.
    pub node: Node,
}

/// A chunk's weights, or a partial sum of its gradient (f32, little-endian).
#[derive(Clone, Debug)]
pub struct Frame {
    /// Where it belongs.
    pub place: Place,
    /// The bytes.
    pub payload: Bytes,
    /// The payload's checksum, where a link has checked it: a payload that is passed on keeps the one it was sent with.
    pub checksum: Option<u64>,
}

impl Frame {
    /// A frame made here.
    pub const fn new(place: Place, payload: Bytes) -> Self {
        Self { place, payload, checksum: None }
    }
}

/// A frame that can't be right: the peer runs another plan or has lost count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not the frame that comes next in plan order.
    #[error("expected turn {want_turn} round {want_round} slot {want_slot} on this link, got {got:?}")]
    OutOfOrder {
        /// Turn expected.
        want_turn: u64,
        /// Round expected.
        want_round: u32,
        /// Slot expected.
        want_slot: u32,
        /// What came.
        got: Place,
    },
    /// A frame nobody asked for.
    #[error("a frame came before the coordinator opened its turn: {0:?}")]
    NotOpened(Place),
    /// Two sums of one chunk differ in length.
    #[error("partial sums of chunk {chunk} have {left} and {right} bytes")]
    Length {
        /// The chunk.
        chunk: ChunkId,
        /// Bytes of one.
        left: usize,
        /// Bytes of the other.
        right: usize,
    },
    /// The leaves don't fit the tree.
    #[error("chunk {chunk}: {source}")]
    Partial {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        source: millrace_emulator::tree::PartialError,
    },
}

/// `left + right`, element by element, f32 little-endian; the shorter length wins (callers have compared them).
pub fn add_payloads(left: Bytes, right: &[u8]) -> Bytes {
    let mut sum = left.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    add_into(&mut sum, right);
    sum.freeze()
}

/// `left += right`, f32 little-endian.
pub fn add_into(left: &mut [u8], right: &[u8]) {
    let (left, _) = left.as_chunks_mut::<4>();
    let (right, _) = right.as_chunks::<4>();
    for (left, right) in left.iter_mut().zip(right) {
        *left = (f32::from_le_bytes(*left) + f32::from_le_bytes(*right)).to_le_bytes();
    }
}
