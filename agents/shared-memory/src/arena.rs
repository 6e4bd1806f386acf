//! An arena: a memfd of slots, mapped by its owner and by the agents that read payloads in it.
//!
//! ```text
//! 0       magic, serial, bytes of a slot, number of slots: 8 bytes each
//! 64      counters of slot 0: references (4 bytes), fills (4 bytes); the next slot's counters follow 64 bytes later
//! data    slot 0, slot 1, ...; `data` is the end of the counters, rounded up to a page
//! ```
//!
//! Pages of slots that were never used take no memory, except those that share a huge page with a used one.
//!
//! The `unsafe` code of this file relies on three facts about the mapping, which [`Arena`] establishes: the size of the
//! file is sealed and is the one that the header states, so that every slot lies inside of it and stays accessible; the
//! counters are only accessed as atomics; a slot is written by its owner only, while its reference count is 1 and the
//! only reference is the owner's [`FreeSlot`]. Readers hold a reference and never write.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use millrace_engine::payload_memory::PayloadWriter;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};

use crate::location::{ArenaId, Location};
use crate::mapping::Mapping;

const MAGIC: u64 = u64::from_le_bytes(*b"MRARENA1");
/// Bytes of the header, and of the counters of a slot: one cache line, so that agents that count references of
/// different slots do not slow each other.
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// Maximum slots of an arena.
pub const MAX_SLOTS: usize = 4096;
/// Maximum bytes of an arena of another process.
const MAX_ARENA_BYTES: u64 = 1 << 40;
/// The seals of an accepted arena: its size can't change.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A mapped arena.
pub struct Arena {
    id: ArenaId,
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    /// The memory's file, by which other processes open it; `None` if another process owns the arena.
    file: Option<File>,
}

/// An arena of another process can't be mapped.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The owner has ended, or has freed the arena.
    #[error("the agent that shares it has ended or has begun another epoch")]
    Gone,
    /// This process may not open or map it.
    #[error(transparent)]
    Rejected(#[from] io::Error),
    /// It is not an arena of this version.
    #[error("it is not an arena of this build")]
    Invalid,
}

/// Computes the size of an arena; `None` if a number is too large.
fn arena_bytes(slot_bytes: usize, slots: usize) -> Option<u64> {
    if slots > MAX_SLOTS || !slot_bytes.is_multiple_of(PAGE_BYTES) {
        return None;
    }
    let data = (LINE_BYTES * (1 + slots)).next_multiple_of(PAGE_BYTES);
    let bytes = slot_bytes.checked_mul(slots)?.checked_add(data)? as u64;
    (bytes <= MAX_ARENA_BYTES).then_some(bytes)
}

impl Arena {
    /// Creates an arena of this process with `slots` slots of at least `slot_bytes` bytes.
    ///
    /// # Errors
    /// The system provides no memory file of this size, or the numbers are too large.
    pub fn create(serial: u64, slot_bytes: usize, slots: usize) -> io::Result<Self> {
        let slot_bytes = slot_bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = arena_bytes(slot_bytes, slots).ok_or(io::ErrorKind::InvalidInput)?;
        // Beyond this limit of the process the system would end it by a signal.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < bytes) {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "the limit of file sizes (ulimit -f) is too low"));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("millrace", flags)?);
        file.set_len(bytes)?;
        rustix::fs::fcntl_add_seals(&file, SIZE_SEALS | SealFlags::SEAL)?;
        let memory = Mapping::new(&file, bytes)?;
        let descriptor = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
        let id = ArenaId { process: std::process::id(), descriptor, serial };
        let arena = Self { id, memory, slot_bytes, slots, file: Some(file) };
        for (word, value) in [MAGIC, serial, slot_bytes as u64, slots as u64].into_iter().enumerate() {
            header_word(&arena.memory, word).store(value, Ordering::Relaxed);
        }
        Ok(arena)
    }

    /// Maps the arena of another process, or another mapping of one of this process.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(id: ArenaId) -> Result<Self, OpenError> {
        let path = format!("/proc/{}/fd/{}", id.process, id.descriptor);
        // Any file may have this descriptor by now; opening one that is not in memory must not block.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenError::Gone,
            _ => OpenError::Rejected(error),
        })?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| OpenError::Gone)?;
        let bytes = file.metadata()?.len();
        if !seals.contains(SIZE_SEALS) || !(PAGE_BYTES as u64..=MAX_ARENA_BYTES).contains(&bytes) {
            return Err(OpenError::Invalid);
        }
        let memory = Mapping::new(&file, bytes)?;
        let word = |word| header_word(&memory, word).load(Ordering::Relaxed);
        let size = |word: u64| usize::try_from(word).map_err(|_| OpenError::Invalid);
        if word(0) != MAGIC {
            return Err(OpenError::Invalid);
        }
        if word(1) != id.serial {
            return Err(OpenError::Gone);
        }
        let (slot_bytes, slots) = (size(word(2))?, size(word(3))?);
        if arena_bytes(slot_bytes, slots) != Some(bytes) {
            return Err(OpenError::Invalid);
        }
        Ok(Self { id, memory, slot_bytes, slots, file: None })
    }

    /// Returns the identity by which other processes open the arena.
    #[cfg(test)]
    const fn id(&self) -> ArenaId {
        self.id
    }

    /// Returns the capacity of a slot.
    pub const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns whether this process owns the arena.
    pub const fn is_owned(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the first address after the arena, by which it is found from an address in it.
    pub fn end_address(&self) -> usize {
        self.memory.as_mut_ptr() as usize + self.memory.len()
    }

    /// Returns the slot with `address`; `None` if the address lies in no slot.
    fn slot_at(&self, address: usize) -> Option<usize> {
        let data = self.data_offset();
        let offset = address.checked_sub(self.memory.as_mut_ptr() as usize + data)?;
        let slot = offset / self.slot_bytes;
        (slot < self.slots).then_some(slot)
    }

    /// Returns a location of `payload`, with a reference for its receiver; `None` if it is not the beginning of a slot
    /// of this arena. The caller holds a reference to the slot, because it has the payload.
    pub fn share(&self, payload: &[u8]) -> Option<Location> {
        let slot = self.slot_at(payload.as_ptr() as usize)?;
        if !std::ptr::eq(self.slot_pointer(slot), payload.as_ptr()) || payload.len() > self.slot_bytes {
            return None;
        }
        let [references, fills] = self.counters(slot);
        references.fetch_add(1, Ordering::Relaxed);
        let fill = fills.load(Ordering::Relaxed);
        Some(Location { arena: self.id, slot: slot as u32, fill, length: payload.len() as u64 })
    }

    /// Takes over the reference of a location; `None` if its slot does not exist or was filled again in the meantime.
    pub fn receive(self: &Arc<Self>, location: &Location) -> Option<SlotBytes> {
        let slot = location.slot as usize;
        let length = usize::try_from(location.length).ok().filter(|length| *length <= self.slot_bytes)?;
        if slot >= self.slots {
            return None;
        }
        let [references, fills] = self.counters(slot);
        if references.load(Ordering::Acquire) == 0 || fills.load(Ordering::Relaxed) != location.fill {
            return None;
        }
        let reference = SlotReference { arena: self.clone(), slot, fill: location.fill };
        Some(SlotBytes { reference, length })
    }

    /// Takes a free slot, the first one, whose memory is most likely to be in a cache; `None` if none is free. Only the
    /// owner calls this, one thread at a time.
    pub fn take_free_slot(self: &Arc<Self>) -> Option<FreeSlot> {
        let slot = (0..self.slots).find(|slot| self.counters(*slot)[0].load(Ordering::Relaxed) == 0)?;
        // Orders the reads of earlier readers, who released their references, before the writes that follow.
        fence(Ordering::Acquire);
        let [references, fills] = self.counters(slot);
        references.store(1, Ordering::Relaxed);
        let fill = fills.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if fill == 1 {
            let start = self.slot_offset(slot);
            self.memory.use_huge_pages(start..start + self.slot_bytes);
        }
        Some(FreeSlot { reference: SlotReference { arena: self.clone(), slot, fill }, written: 0 })
    }

    fn data_offset(&self) -> usize {
        self.memory.len() - self.slot_bytes * self.slots
    }

    /// Returns the first byte of a slot, from the beginning of the arena.
    ///
    /// # Panics
    /// If there is no such slot.
    fn slot_offset(&self, slot: usize) -> usize {
        assert!(slot < self.slots);
        self.data_offset() + slot * self.slot_bytes
    }

    /// Returns the address of a slot.
    ///
    /// # Panics
    /// If there is no such slot.
    fn slot_pointer(&self, slot: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(self.slot_offset(slot))
    }

    /// Returns the number of references of a slot, and how many times it was filled.
    ///
    /// # Panics
    /// If there is no such slot.
    fn counters(&self, slot: usize) -> [&AtomicU32; 2] {
        assert!(slot < self.slots);
        let counter = |index: usize| {
            let pointer = self.memory.as_mut_ptr().wrapping_add(LINE_BYTES * (1 + slot) + 4 * index);
            // SAFETY: the offset is a multiple of 4 from the start of a page and below `data_offset`, because the slot
            // exists; the mapping lives as long as `self`, and all processes access these bytes as atomics only.
            unsafe { AtomicU32::from_ptr(pointer.cast()) }
        };
        [counter(0), counter(1)]
    }
}

/// Returns a number of the header. `memory` has at least a page.
fn header_word(memory: &Mapping, word: usize) -> &AtomicU64 {
    assert!(8 * word < LINE_BYTES && memory.len() >= LINE_BYTES);
    // SAFETY: the offset is a multiple of 8 from the start of a page and inside of the mapping, as asserted; the result
    // does not outlive the mapping, and all processes access these bytes as atomics only.
    unsafe { AtomicU64::from_ptr(memory.as_mut_ptr().wrapping_add(8 * word).cast()) }
}

/// A reference to a slot, which it returns when it is dropped.
struct SlotReference {
    arena: Arc<Arena>,
    slot: usize,
    /// How many times the slot had been filled when the reference was taken.
    fill: u32,
}

impl SlotReference {
    /// Returns whether the slot still has the payload it had when the reference was taken. Always true, unless an agent
    /// returned a reference that it did not hold.
    fn is_intact(&self) -> bool {
        self.arena.counters(self.slot)[1].load(Ordering::Acquire) == self.fill
    }
}

impl Drop for SlotReference {
    /// Ends the process if the payload was overwritten during its use: what the agent computed from it is wrong, and
    /// must not be sent. The others continue without it.
    fn drop(&mut self) {
        if !self.is_intact() {
            tracing::error!("a payload in shared memory was overwritten while it was read; the agent ends");
            std::process::abort();
        }
        // Orders the reads through this reference before the owner's next writes.
        self.arena.counters(self.slot)[0].fetch_sub(1, Ordering::Release);
    }
}

/// A payload in a slot, for reading.
pub struct SlotBytes {
    reference: SlotReference,
    length: usize,
}

impl AsRef<[u8]> for SlotBytes {
    fn as_ref(&self) -> &[u8] {
        let SlotReference { arena, slot, .. } = &self.reference;
        // SAFETY: `length` is at most the size of a slot, so the bytes lie in the mapping, which lives as long as
        // `self`. The reference keeps the owner from writing the slot. (A defect in another agent could break that; the
        // reference then ends the process, and no value of these bytes is invalid.)
        unsafe { std::slice::from_raw_parts(arena.slot_pointer(*slot), self.length) }
    }
}

/// A slot that its owner writes.
pub struct FreeSlot {
    reference: SlotReference,
    written: usize,
}

impl FreeSlot {
    /// Ends writing.
    pub fn into_bytes(self) -> SlotBytes {
        SlotBytes { reference: self.reference, length: self.written }
    }
}

impl PayloadWriter for FreeSlot {
    fn put(&mut self, bytes: &[u8]) {
        let SlotReference { arena, slot, .. } = &self.reference;
        let bytes = &bytes[..bytes.len().min(arena.slot_bytes - self.written)];
        let target = arena.slot_pointer(*slot).wrapping_add(self.written);
        // SAFETY: `written + bytes.len()` is at most the size of a slot, so the target lies in the mapping. Nothing
        // else accesses the slot: its only reference is this one, which was taken when the count was zero. `bytes` is
        // therefore not part of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        self.written += bytes.len();
    }

    fn written(&self) -> usize {
        self.written
    }

    fn clear(&mut self) {
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arc<Arena> {
        Arc::new(Arena::create(7, 5000, 3).unwrap())
    }

    fn written(arena: &Arc<Arena>, byte: u8) -> SlotBytes {
        let mut slot = arena.take_free_slot().unwrap();
        slot.put(&[byte; 10]);
        slot.put(&[0; 10_000]);
        assert_eq!(slot.written(), 8192);
        slot.clear();
        slot.put(&[byte; 100]);
        slot.into_bytes()
    }

    #[test]
    fn slot_is_written_again_only_after_its_last_reference() {
        let arena = arena();
        let other = Arc::new(Arena::open(arena.id()).unwrap());
        let first = written(&arena, 1);
        let location = arena.share(first.as_ref()).unwrap();
        let received = other.receive(&location).unwrap();
        assert_eq!(received.as_ref(), [1; 100]);
        drop(first);
        let others = [written(&arena, 2), written(&arena, 3)];
        assert!(arena.take_free_slot().is_none(), "the reader has the first slot");
        assert_eq!(received.as_ref(), [1; 100]);
        drop(received);
        assert_eq!(written(&arena, 4).as_ref(), [4; 100]);
        assert!(other.receive(&location).is_none(), "the slot has no references");
        let again = written(&arena, 5);
        assert!(other.receive(&location).is_none(), "the slot was filled again");
        drop((others, again));
    }

    #[test]
    fn overwriting_during_use_is_noticed() {
        let arena = arena();
        let payload = written(&arena, 1);
        let location = arena.share(payload.as_ref()).unwrap();
        let other = Arc::new(Arena::open(arena.id()).unwrap());
        let received = other.receive(&location).unwrap();
        assert!(received.reference.is_intact());
        // A defect: an agent returns two references that it does not hold.
        arena.counters(0)[0].fetch_sub(2, Ordering::Relaxed);
        let overwriting = written(&arena, 2);
        assert!(!received.reference.is_intact() && !payload.reference.is_intact());
        assert!(overwriting.reference.is_intact());
        // Dropping them would end the process.
        std::mem::forget((received, payload));
    }

    #[test]
    fn reader_passes_location_on() {
        let arena = arena();
        let payload = written(&arena, 9);
        let node = Arc::new(Arena::open(arena.id()).unwrap());
        let at_node = node.receive(&arena.share(payload.as_ref()).unwrap()).unwrap();
        drop(payload);
        let child = Arc::new(Arena::open(arena.id()).unwrap());
        let at_child = child.receive(&node.share(at_node.as_ref()).unwrap()).unwrap();
        drop(at_node);
        // Outlives its owner.
        drop(arena);
        assert_eq!(at_child.as_ref(), [9; 100]);
        assert!(child.share(&at_child.as_ref()[1..]).is_none(), "not the beginning of a slot");
        assert!(child.share(&[0; 4]).is_none());
    }

    #[test]
    fn invalid_locations_are_rejected() {
        let arena = arena();
        let payload = written(&arena, 1);
        let good = arena.share(payload.as_ref()).unwrap();
        for bad in [
            Location { slot: 3, ..good },
            Location { slot: u32::MAX, ..good },
            Location { slot: 1, ..good },
            Location { fill: 0, ..good },
            Location { length: 8193, ..good },
            Location { length: u64::MAX, ..good },
        ] {
            assert!(arena.receive(&bad).is_none(), "{bad:?}");
        }
        assert!(arena.receive(&good).is_some());
    }

    #[test]
    fn only_arenas_with_sealed_size_are_mapped() {
        let arena = arena();
        let opened = |id| Arena::open(id).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(opened(ArenaId { serial: 8, ..arena.id() }).contains("another epoch"));
        assert!(opened(ArenaId { descriptor: 1 << 20, ..arena.id() }).contains("another epoch"));
        let id = arena.id();
        drop(arena);
        assert!(matches!(Arena::open(id), Err(OpenError::Gone | OpenError::Invalid)));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("unsealed", flags).unwrap());
        file.set_len(1 << 20).unwrap();
        let descriptor = file.as_raw_fd() as u32;
        let id = ArenaId { process: std::process::id(), descriptor, serial: 0 };
        assert!(matches!(Arena::open(id), Err(OpenError::Invalid)));
        rustix::fs::fcntl_add_seals(&file, SIZE_SEALS).unwrap();
        assert!(matches!(Arena::open(id), Err(OpenError::Invalid)), "no header");
    }

    #[test]
    fn too_large_arenas_are_rejected() {
        for (slot_bytes, slots) in [(1 << 50, 1), (usize::MAX - 4096, 2), (4096, MAX_SLOTS + 1)] {
            assert!(Arena::create(0, slot_bytes, slots).is_err());
        }
    }
}
