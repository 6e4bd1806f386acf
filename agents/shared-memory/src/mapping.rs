//! A shared mapping of a memory file that may have huge pages.
//!
//! With pages of 4 KiB, a payload of 1 MiB costs 256 TLB misses in each process that reads it. In a virtual machine
//! they take longer than the reading itself. By default, Linux gives memory files small pages and maps them at
//! addresses where huge pages are impossible. So a [`Mapping`] begins at a multiple of a huge page, and the owner of
//! the file requests huge pages by [`Mapping::use_huge_pages`].

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;

/// Bytes of a huge page, 2 MiB on x86-64 and on arm64 with small pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The first bytes of a file, mapped for reading and writing. Unmapped when dropped.
pub struct Mapping {
    /// Addresses around the mapping, which are released with it.
    reserved: *mut u8,
    reserved_len: usize,
    start: *mut u8,
    len: usize,
}

// SAFETY: a mapping is memory of the process, valid on every thread until `Mapping` is dropped. How the bytes are
// accessed is the user's responsibility, as for any raw pointer.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, at least one.
    ///
    /// # Errors
    /// The system can't map them.
    pub fn new(file: &File, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let reserved_len = len.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses replaces no memory of the process.
        let reserved = unsafe { libc::mmap(ptr::null_mut(), reserved_len, libc::PROT_NONE, flags, -1, 0) };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let reserved: *mut u8 = reserved.cast();
        let start = reserved.wrapping_add(reserved.align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES));
        let mapping = Self { reserved, reserved_len, start, len };
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the addresses that are replaced, `len` bytes from `start` on, are part of those reserved above,
        // because `start` is at most a huge page after the first one.
        let mapped = unsafe { libc::mmap(start.cast(), len, access, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapping) }
    }

    /// Returns the address of the first byte.
    pub const fn as_mut_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Returns the number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Requests huge pages for the bytes `range`, and for those that share a huge page with them. Where the system has
    /// none (Linux before 6.1, another system, no free memory of that size) nothing changes.
    pub fn use_huge_pages(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        {
            /// Linux has it on every architecture, `libc` not in every C library.
            const MADV_COLLAPSE: libc::c_int = 25;
            let first = range.start / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            let last = range.end.next_multiple_of(HUGE_PAGE_BYTES).min(self.len / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
            if first < last {
                // SAFETY: the range is inside of the mapping, and the advice changes pages, not their content.
                unsafe { libc::madvise(self.as_mut_ptr().wrapping_add(first).cast(), last - first, MADV_COLLAPSE) };
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the addresses belong to `self`, and no reference to them outlives it, by the users' contract.
        unsafe { libc::munmap(self.reserved.cast(), self.reserved_len) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn file_is_mapped_at_a_huge_page_and_keeps_its_content() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 3 * HUGE_PAGE_BYTES + 4096]).unwrap();
        let mapping = Mapping::new(&file, file.metadata().unwrap().len()).unwrap();
        assert_eq!(mapping.as_mut_ptr() as usize % HUGE_PAGE_BYTES, 0);
        for range in [0..1, HUGE_PAGE_BYTES - 1..2 * HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES..3 * HUGE_PAGE_BYTES + 4096] {
            mapping.use_huge_pages(range);
        }
        // SAFETY: the bytes are inside of the mapping, which no one else uses.
        let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.as_mut_ptr(), mapping.len()) };
        assert!(bytes.iter().all(|byte| *byte == 7));
        bytes[HUGE_PAGE_BYTES + 5] = 9;
        let mut read = [0];
        file.read_exact_at(&mut read, HUGE_PAGE_BYTES as u64 + 5).unwrap();
        assert_eq!(read, [9]);
        assert!(Mapping::new(&file, 0).is_err() && Mapping::new(&file, u64::MAX).is_err());
    }
}
