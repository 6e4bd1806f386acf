//! The memory in which an agent creates payloads: its own heap, or memory that it shares with other agents.
//!
//! A state machine that creates payloads has a [`PayloadMemory`] and does not depend on which one it is. The drivers
//! of agents on one machine use `millrace-shared-memory`, everything else [`HeapMemory`].

use bytes::Bytes;

/// Creates payloads.
pub trait PayloadMemory: Send + Sync {
    /// Creates a payload of at most `max_bytes` bytes, which `write` writes.
    fn create(&self, max_bytes: usize, write: &mut dyn FnMut(&mut dyn PayloadWriter)) -> Bytes;
}

/// Receives the bytes of a payload, in order.
pub trait PayloadWriter {
    /// Appends bytes. Bytes beyond the maximum of the payload are dropped.
    fn put(&mut self, bytes: &[u8]);

    /// Appends numbers, little-endian.
    fn put_f32(&mut self, numbers: &[f32]) {
        if cfg!(target_endian = "little") {
            self.put(bytemuck::cast_slice(numbers));
        } else {
            numbers.iter().for_each(|x| self.put(&x.to_le_bytes()));
        }
    }

    /// Returns the number of bytes written.
    fn written(&self) -> usize;

    /// Discards what was written.
    fn clear(&mut self);
}

/// Creates each payload as an allocation of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapMemory;

/// A payload of [`HeapMemory`]. Fresh memory is written once and never zeroed before.
struct HeapWriter {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl PayloadWriter for HeapWriter {
    fn put(&mut self, bytes: &[u8]) {
        let room = self.max_bytes - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn written(&self) -> usize {
        self.bytes.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
    }
}

impl PayloadMemory for HeapMemory {
    fn create(&self, max_bytes: usize, write: &mut dyn FnMut(&mut dyn PayloadWriter)) -> Bytes {
        let mut writer = HeapWriter { bytes: Vec::with_capacity(max_bytes), max_bytes };
        write(&mut writer);
        let HeapWriter { mut bytes, .. } = writer;
        if bytes.len() <= max_bytes / 2 {
            bytes.shrink_to_fit();
        }
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian() {
        let numbers = [1.0, -0.0, f32::NAN, 3.5e-39];
        let bytes = HeapMemory.create(16, &mut |out| out.put_f32(&numbers));
        assert!(bytes.iter().copied().eq(numbers.iter().flat_map(|x| x.to_le_bytes())));
    }
}
