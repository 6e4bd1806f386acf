//! The memory in which an agent creates payloads, and the memory of other agents from which it reads them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use millrace_engine::payload_memory::{HeapMemory, PayloadMemory, PayloadWriter};

use crate::MachineId;
use crate::arena::{Arena, FreeSlot, OpenError};
use crate::location::{ArenaId, Location};

/// Maximum arenas of other agents that are mapped at a time: more than agents of a job are on one machine.
const MAX_MAPPED_ARENAS: usize = 4096;

/// The payload memory of one agent. Clones are the same memory.
#[derive(Clone, Default)]
pub struct SharedMemory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Where memory can be shared; `None` if sharing is disabled.
    machine: Option<MachineId>,
    next_serial: u64,
    /// The arena of the current epoch.
    own: Option<Arc<Arena>>,
    /// All arenas of the current epoch, by the address of their end.
    by_end: BTreeMap<usize, Arc<Arena>>,
    mapped: BTreeMap<ArenaId, Arc<Arena>>,
}

/// A payload in another agent's memory can't be read. The link over which its location arrived ends.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The arena can't be mapped.
    #[error("the memory of another agent can't be mapped: {0}")]
    Arena(#[source] OpenError),
    /// The slot does not exist, or has no longer the payload.
    #[error("received the location of a payload that does not exist")]
    Slot,
    /// Too many arenas.
    #[error("received payloads in more than {MAX_MAPPED_ARENAS} arenas in one epoch")]
    TooManyArenas,
    /// Sharing is disabled on this agent.
    #[error("received the location of a payload on a link without shared memory")]
    Disabled,
}

impl SharedMemory {
    /// Creates payload memory that can be shared on this machine. Nothing is shared before the first epoch.
    /// `first_serial` is a random number, which distinguishes the arenas of this process from those of others.
    pub fn new(first_serial: u64) -> Self {
        let machine = MachineId::read();
        Self(Arc::new(Mutex::new(State { machine, next_serial: first_serial, ..State::default() })))
    }

    /// Creates payload memory on the heap only.
    pub fn disabled() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the machine on which payloads can be shared; `None` if sharing is disabled. Links compare it with that
    /// of their peer.
    pub fn machine(&self) -> Option<MachineId> {
        self.state().machine.clone()
    }

    /// Begins an epoch with an arena of its own, of `slots` slots for payloads of at most `slot_bytes` bytes. If it
    /// can't be created, disables sharing.
    pub fn begin_epoch(&self, slot_bytes: usize, slots: usize) {
        let mut state = self.state();
        (state.own, state.by_end, state.mapped) = (None, BTreeMap::new(), BTreeMap::new());
        if state.machine.is_none() {
            return;
        }
        let serial = state.next_serial;
        state.next_serial = serial.wrapping_add(1);
        match Arena::create(serial, slot_bytes, slots) {
            Ok(arena) => {
                let arena = Arc::new(arena);
                state.by_end.insert(arena.end_address(), arena.clone());
                state.own = Some(arena);
            }
            Err(error) => state.disable(&error),
        }
    }

    /// Returns the location of a payload in shared memory, with a reference for the receiver of the location; `None` if
    /// the payload does not lie in an arena of the current epoch.
    pub fn share(&self, payload: &Bytes) -> Option<Location> {
        let state = self.state();
        let (_, arena) = state.by_end.range(payload.as_ptr() as usize + 1..).next()?;
        arena.share(payload)
    }

    /// Returns the payload at a location, and takes over the location's reference to it.
    ///
    /// # Errors
    /// See [`ReceiveError`]. If this process can't map the memory of others, sharing is disabled from then on.
    pub fn receive(&self, location: &Location) -> Result<Bytes, ReceiveError> {
        let arena = self.state().arena(location.arena)?;
        arena.receive(location).map(Bytes::from_owner).ok_or(ReceiveError::Slot)
    }

    /// Takes a free slot of the own arena, if there is one and it is large enough.
    fn free_slot(&self, bytes: usize) -> Option<FreeSlot> {
        let state = self.state();
        let arena = state.own.as_ref().filter(|arena| arena.is_owned() && bytes <= arena.slot_bytes())?;
        arena.take_free_slot()
    }
}

impl PayloadMemory for SharedMemory {
    fn create(&self, max_bytes: usize, write: &mut dyn FnMut(&mut dyn PayloadWriter)) -> Bytes {
        let Some(mut slot) = self.free_slot(max_bytes) else { return HeapMemory.create(max_bytes, write) };
        write(&mut slot);
        Bytes::from_owner(slot.into_bytes())
    }
}

impl State {
    /// Returns an arena; maps it if it is not mapped yet.
    fn arena(&mut self, id: ArenaId) -> Result<Arc<Arena>, ReceiveError> {
        if self.machine.is_none() {
            return Err(ReceiveError::Disabled);
        }
        if let Some(arena) = self.mapped.get(&id) {
            return Ok(arena.clone());
        }
        if self.mapped.len() >= MAX_MAPPED_ARENAS {
            return Err(ReceiveError::TooManyArenas);
        }
        let arena = Arc::new(Arena::open(id).map_err(|error| {
            if let OpenError::Rejected(error) = &error {
                self.disable(error);
            }
            ReceiveError::Arena(error)
        })?);
        self.by_end.insert(arena.end_address(), arena.clone());
        self.mapped.insert(id, arena.clone());
        Ok(arena)
    }

    fn disable(&mut self, error: &std::io::Error) {
        (self.machine, self.own) = (None, None);
        tracing::warn!("memory can't be shared with the other agents of this machine, which is slower: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(memory: &SharedMemory, length: usize) -> Bytes {
        memory.create(length, &mut |writer| writer.put(&vec![length as u8; length]))
    }

    #[test]
    fn payloads_are_shared_as_long_as_slots_are_free() {
        let [owner, reader] = [SharedMemory::new(1), SharedMemory::new(2)];
        assert_eq!(owner.machine(), reader.machine());
        assert!(owner.share(&create(&owner, 10)).is_none(), "no epoch has begun");
        [&owner, &reader].into_iter().for_each(|memory| memory.begin_epoch(4096, 2));
        let payloads = [10, 20, 30].map(|length| create(&owner, length));
        let locations = [0, 1, 2].map(|index| owner.share(&payloads[index]));
        let [Some(first), Some(second), None] = locations else { panic!("{locations:?}") };
        assert!(owner.share(&create(&owner, 5000)).is_none(), "larger than a slot");
        let received = [first, second].map(|location| reader.receive(&location).unwrap());
        assert_eq!((&received[0], &received[1]), (&payloads[0], &payloads[1]));
        assert_ne!(received[0].as_ptr(), payloads[0].as_ptr());
        drop((payloads, received));
        assert!(owner.share(&create(&owner, 40)).is_some(), "all slots are free again");
    }

    #[test]
    fn epoch_frees_what_a_lost_reader_references() {
        let owner = SharedMemory::new(1);
        owner.begin_epoch(4096, 1);
        let lost = owner.share(&create(&owner, 10)).unwrap();
        assert!(owner.share(&create(&owner, 10)).is_none());
        owner.begin_epoch(4096, 1);
        assert!(owner.share(&create(&owner, 10)).is_some());
        let reader = SharedMemory::new(2);
        reader.begin_epoch(4096, 1);
        assert!(matches!(reader.receive(&lost), Err(ReceiveError::Arena(_))));
        assert!(reader.machine().is_some(), "a peer that is in another epoch is no reason to disable sharing");
    }

    #[test]
    fn memory_that_can_not_be_created_or_mapped_disables_sharing() {
        let memory = SharedMemory::new(1);
        memory.begin_epoch(1 << 60, 1);
        assert_eq!((memory.machine(), create(&memory, 3).len()), (None, 3));
        assert!(matches!(
            SharedMemory::disabled().receive(&{
                let owner = SharedMemory::new(1);
                owner.begin_epoch(4096, 1);
                owner.share(&create(&owner, 1)).unwrap()
            }),
            Err(ReceiveError::Disabled)
        ));
    }
}
