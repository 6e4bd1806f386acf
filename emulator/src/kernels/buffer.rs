//! Scratch memory, aligned to cache lines.

use memmap2::MmapMut;

/// Elements of f32 in 64 bytes.
const ALIGNMENT_ELEMENTS: usize = 16;
/// Number of elements from which memory is mapped, so that it can use huge pages.
const MIN_MAPPED_ELEMENTS: usize = 1 << 20;
/// Elements of f32 in 2 MiB.
const HUGE_PAGE_ELEMENTS: usize = 512 * 1024;

/// Storage of the elements. Packing an operand touches another page with every row. With pages of 4 KiB, TLB misses
/// cost a system about a twentieth of its time, more in virtual machines.
#[derive(Debug)]
enum BufferMemory {
    Heap(Vec<f32>),
    Mapped(MmapMut),
}

impl BufferMemory {
    /// Zeros: at least `len` elements after the first aligned one.
    fn new(len: usize) -> Self {
        let map = || MmapMut::map_anon((len + HUGE_PAGE_ELEMENTS) * size_of::<f32>()).ok();
        // If memory can't be mapped, allocate it normally, so that lack of memory ends the process as usual.
        let Some(map) = (len >= MIN_MAPPED_ELEMENTS).then(map).flatten() else {
            return BufferMemory::Heap(vec![0.0; len + ALIGNMENT_ELEMENTS - 1]);
        };
        // A kernel without huge pages is slower, not wrong.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        BufferMemory::Mapped(map)
    }

    fn elements(&self) -> &[f32] {
        match self {
            BufferMemory::Heap(elements) => elements,
            // SAFETY: a map begins at a page, so it is aligned; it lives as long as `self`; and any bytes are valid
            // f32.
            BufferMemory::Mapped(map) => unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), map.len() / 4) },
        }
    }

    fn elements_mut(&mut self) -> &mut [f32] {
        match self {
            BufferMemory::Heap(elements) => elements,
            // SAFETY: as above; `self` is borrowed mutably.
            BufferMemory::Mapped(map) => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), map.len() / 4)
            },
        }
    }

    /// Index of the first element in use.
    fn start(&self) -> usize {
        let align = if matches!(self, BufferMemory::Heap(_)) { ALIGNMENT_ELEMENTS } else { HUGE_PAGE_ELEMENTS };
        self.elements().as_ptr().align_offset(align * size_of::<f32>()).min(align - 1)
    }
}

/// A growing array of f32 whose start is aligned to 64 bytes. It is scratch memory: growing discards the content.
#[derive(Debug)]
pub struct Buffer {
    memory: BufferMemory,
    start: usize,
    len: usize,
    capacity: usize,
}

impl Buffer {
    /// Creates an empty buffer without allocating.
    pub const fn new() -> Self {
        Buffer { memory: BufferMemory::Heap(Vec::new()), start: 0, len: 0, capacity: 0 }
    }

    /// Creates a buffer of `len` zeros.
    pub fn with_len(len: usize) -> Self {
        let mut buffer = Buffer::new();
        buffer.resize(len);
        buffer
    }

    /// Sets the length to `len` and returns the elements, whose values are unspecified. Allocates only if `len` exceeds
    /// the largest length so far.
    pub fn resize(&mut self, len: usize) -> &mut [f32] {
        if len > self.capacity {
            // Dropped first, so that old and new memory never exist at the same time.
            self.memory = BufferMemory::Heap(Vec::new());
            self.memory = BufferMemory::new(len);
            (self.start, self.capacity) = (self.memory.start(), len);
        }
        self.len = len;
        self.as_mut_slice()
    }

    /// The elements.
    pub fn as_slice(&self) -> &[f32] {
        &self.memory.elements()[self.start..self.start + self.len]
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.memory.elements_mut()[self.start..self.start + self.len]
    }

    /// Returns the number of elements it can hold without an allocation.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of memory held.
    pub const fn bytes(&self) -> usize {
        self.capacity * size_of::<f32>()
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_allocated_once() {
        for max_elements in [100, MIN_MAPPED_ELEMENTS, 3 * MIN_MAPPED_ELEMENTS + 1] {
            let mut buffer = Buffer::with_len(max_elements);
            assert!(buffer.as_slice().iter().all(|x| *x == 0.0));
            buffer.as_mut_slice().fill(1.0);
            let (address, bytes) = (buffer.as_slice().as_ptr(), buffer.bytes());
            for len in [1, 17, max_elements] {
                assert_eq!(buffer.resize(len).len(), len);
                assert_eq!(buffer.as_slice().as_ptr(), address);
                assert_eq!(address as usize % 64, 0);
            }
            assert!(buffer.as_slice().iter().all(|x| *x == 1.0));
            assert_eq!((buffer.capacity(), buffer.bytes()), (max_elements, bytes));
            buffer.resize(2 * max_elements);
            assert_eq!(buffer.as_slice().as_ptr() as usize % 64, 0);
            assert_eq!(buffer.as_slice().len(), 2 * max_elements);
        }
    }
}
