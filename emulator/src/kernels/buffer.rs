//! Scratch memory, aligned to cache lines.

/// Elements of f32 in 64 bytes.
const ALIGN: usize = 16;

/// A growing array of f32 whose start is aligned to 64 bytes. Its content is scratch: growing forgets it.
#[derive(Debug, Default)]
pub struct Buffer {
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// An empty buffer; allocates nothing.
    pub const fn new() -> Self {
        Buffer { memory: Vec::new(), start: 0, len: 0 }
    }

    /// A buffer of `len` zeros.
    pub fn with_len(len: usize) -> Self {
        let mut buffer = Buffer::new();
        buffer.resize(len);
        buffer
    }

    /// Makes the length `len`, and returns the elements, whose values are unspecified. Allocates only beyond the
    /// largest length so far.
    pub fn resize(&mut self, len: usize) -> &mut [f32] {
        if self.start + len > self.memory.len() {
            // Dropped first, so that old and new never exist at once.
            self.memory = Vec::new();
            self.memory = vec![0.0; len + ALIGN - 1];
            self.start = self.memory.as_ptr().align_offset(ALIGN * size_of::<f32>()).min(ALIGN - 1);
        }
        self.len = len;
        self.as_mut_slice()
    }

    /// The elements.
    pub fn as_slice(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.len]
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        self.memory.capacity() * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_allocated_once() {
        let mut buffer = Buffer::with_len(100);
        assert_eq!(buffer.as_slice(), [0.0; 100]);
        let bytes = buffer.bytes();
        for len in [1, 17, 100] {
            assert_eq!(buffer.resize(len).len(), len);
            assert_eq!(buffer.as_slice().as_ptr() as usize % 64, 0);
        }
        assert_eq!(buffer.bytes(), bytes);
        buffer.resize(1000);
        assert_eq!(buffer.as_slice().as_ptr() as usize % 64, 0);
        assert_eq!(buffer.as_slice().len(), 1000);
    }
}
