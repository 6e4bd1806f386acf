//! Arrays of numbers in memory that is aligned to cache lines and, if it is large, has huge pages.

use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

/// Elements of f32 in 64 bytes.
const ALIGNMENT_ELEMENTS: usize = 16;
/// Elements of f32 in 2 MiB. Memory of at least this size is mapped.
const HUGE_PAGE_ELEMENTS: usize = 512 * 1024;

/// Storage of the elements. Packing an operand touches another page with every row. With pages of 4 KiB, TLB misses
/// cost a system about a twentieth of its time, in a virtual machine up to half of it.
#[derive(Debug)]
enum BufferMemory {
    Heap(Vec<f32>),
    Mapped(MmapMut),
    /// `len` elements from `first` on of a map that several buffers share. No two of them have an element in common.
    Part {
        map: Arc<MmapRaw>,
        first: usize,
        len: usize,
    },
}

/// Maps zeros: at least `len` elements after the first one that begins a huge page. Returns the index of that one.
fn map_zeros(len: usize) -> Option<(MmapMut, usize)> {
    let map = MmapMut::map_anon((len + HUGE_PAGE_ELEMENTS) * size_of::<f32>()).ok()?;
    let start = aligned_start(map.as_ptr().cast(), HUGE_PAGE_ELEMENTS);
    // Only the pages that are used as a whole: of the last one, the system would provide all of the memory. A kernel
    // without huge pages is slower, not wrong.
    #[cfg(target_os = "linux")]
    {
        let [offset, bytes] =
            [start, len / HUGE_PAGE_ELEMENTS * HUGE_PAGE_ELEMENTS].map(|count| count * size_of::<f32>());
        let _ = map.advise_range(memmap2::Advice::HugePage, offset, bytes);
    }
    Some((map, start))
}

/// Returns the index of the first element, from the one at `address` on, whose address is a multiple of `align`
/// elements.
fn aligned_start(address: *const f32, align: usize) -> usize {
    address.align_offset(align * size_of::<f32>()).min(align - 1)
}

impl BufferMemory {
    /// Zeros: at least `len` elements after the first aligned one.
    fn new(len: usize) -> Self {
        // If memory can't be mapped, allocate it normally, so that lack of memory ends the process as usual.
        match (len >= HUGE_PAGE_ELEMENTS).then(|| map_zeros(len)).flatten() {
            Some((map, _)) => BufferMemory::Mapped(map),
            None => BufferMemory::Heap(vec![0.0; len + ALIGNMENT_ELEMENTS - 1]),
        }
    }

    fn elements(&self) -> &[f32] {
        match self {
            BufferMemory::Heap(elements) => elements,
            // SAFETY: a map begins at a page, so it is aligned; it lives as long as `self`; and any bytes are valid
            // f32.
            BufferMemory::Mapped(map) => unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), map.len() / 4) },
            // SAFETY: as above; the part is inside of the map, and only this buffer refers to it.
            BufferMemory::Part { map, first, len } => unsafe {
                std::slice::from_raw_parts(map.as_ptr().cast::<f32>().add(*first), *len)
            },
        }
    }

    fn elements_mut(&mut self) -> &mut [f32] {
        match self {
            BufferMemory::Heap(elements) => elements,
            // SAFETY: as above; `self` is borrowed mutably.
            BufferMemory::Mapped(map) => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), map.len() / 4)
            },
            // SAFETY: as above.
            BufferMemory::Part { map, first, len } => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().cast::<f32>().add(*first), *len)
            },
        }
    }

    /// Index of the first element in use.
    fn start(&self) -> usize {
        let align = match self {
            BufferMemory::Mapped(_) => HUGE_PAGE_ELEMENTS,
            BufferMemory::Heap(_) | BufferMemory::Part { .. } => ALIGNMENT_ELEMENTS,
        };
        aligned_start(self.elements().as_ptr(), align)
    }
}

/// An array of f32 whose start is aligned to 64 bytes. Growing discards the content.
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

    /// Creates buffers of zeros of these lengths, one after the other in the same memory, which is freed when the last
    /// one is dropped. Buffers that are smaller than a huge page then have huge pages, too.
    pub fn in_one_memory(lengths: &[usize]) -> Vec<Buffer> {
        let aligned = |len: &usize| len.next_multiple_of(ALIGNMENT_ELEMENTS);
        let Some((map, mut first)) = map_zeros(lengths.iter().map(aligned).sum()) else {
            return lengths.iter().map(|len| Buffer::with_len(*len)).collect();
        };
        let map = Arc::new(MmapRaw::from(map));
        let buffer = |len: &usize| {
            let memory = BufferMemory::Part { map: Arc::clone(&map), first, len: *len };
            first += aligned(len);
            Buffer { memory, start: 0, len: *len, capacity: *len }
        };
        lengths.iter().map(buffer).collect()
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

    /// Like [`Buffer::resize`], with huge pages for fewer elements, too.
    pub fn resize_in_huge_pages(&mut self, len: usize) -> &mut [f32] {
        if len > self.capacity {
            self.resize(len.next_multiple_of(HUGE_PAGE_ELEMENTS));
        }
        self.resize(len)
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
        for max_elements in [100, HUGE_PAGE_ELEMENTS, 3 * HUGE_PAGE_ELEMENTS + 1] {
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

    #[test]
    fn buffers_in_one_memory_have_no_element_in_common() {
        let lengths = [0, 5, HUGE_PAGE_ELEMENTS, 17, 1];
        let mut buffers = Buffer::in_one_memory(&lengths);
        for (number, (buffer, len)) in buffers.iter_mut().zip(lengths).enumerate() {
            assert_eq!((buffer.as_slice().len(), buffer.capacity()), (len, len));
            assert_eq!(buffer.as_slice().as_ptr() as usize % 64, 0);
            assert!(buffer.as_slice().iter().all(|x| *x == 0.0));
            buffer.as_mut_slice().fill(number as f32);
        }
        let dropped = buffers.remove(2);
        drop(dropped);
        buffers[2].resize(40).fill(7.0);
        assert_eq!(
            buffers.iter().map(|buffer| buffer.as_slice().iter().sum()).collect::<Vec<f32>>(),
            [0.0, 5.0, 280.0, 4.0]
        );
    }
}
