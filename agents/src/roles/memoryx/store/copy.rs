//! Copies cells between replicas of a shard: weights and moments, with the bits that a checkpoint would have.

use bytes::{Bytes, BytesMut};
use millrace_emulator::numerics::little_endian;
use millrace_emulator::plan::ChunkId;
use millrace_engine::chunk_store::StoreError;

use super::{ChunkArrays, ShardStore};

impl ShardStore {
    /// Returns the cells of this shard, in order, with the bytes of each.
    pub fn cells(&self) -> impl Iterator<Item = (ChunkId, usize)> {
        let saved = 1 + self.ops().moments.len();
        let bytes = move |cell| 4 * self.ops().lengths(cell).into_iter().take(saved).sum::<usize>();
        self.chunks.owned_chunks().map(move |cell| (cell, bytes(cell)))
    }

    /// Returns weights and moments of a cell, which must have exactly `step` updates: f32, little-endian. Blocks like
    /// [`ShardStore::read`].
    ///
    /// # Errors
    /// Those of [`ShardStore::read`], and if the cell is at another step.
    pub fn copy(&self, cell: ChunkId, step: u64) -> Result<Bytes, StoreError> {
        self.wait_for_copies(|| self.chunks.read_at(cell, step, |numbers| self.saved_bytes(numbers)))
    }

    /// Returns what a checkpoint stores of a cell.
    fn saved_bytes(&self, numbers: &mut ChunkArrays) -> Bytes {
        let saved = 1 + self.ops().moments.len();
        let mut bytes = BytesMut::zeroed(4 * numbers.lengths.iter().take(saved).sum::<usize>());
        let mut rest = &mut bytes[..];
        for array in numbers.arrays().take(saved) {
            let (part, others) = rest.split_at_mut(4 * array.len());
            little_endian::write_f32(array, part);
            rest = others;
        }
        bytes.freeze()
    }

    /// Sets weights and moments of a cell from a copy with `step` updates.
    ///
    /// # Errors
    /// The cell belongs to another shard, or `copy` has another length.
    pub fn fill_from_copy(&self, cell: ChunkId, step: u64, copy: &[u8]) -> Result<(), StoreError> {
        let saved = 1 + self.ops().moments.len();
        self.chunks.fill(cell, step, |numbers| {
            let mut rest = copy;
            for array in numbers.arrays().take(saved) {
                let elements = array.len();
                let bytes = rest.split_off(..4 * elements);
                little_endian::read_f32(bytes.ok_or(StoreError::WrongLength { chunk: cell, elements })?, array);
            }
            Ok(())
        })?
    }
}
