//! Payloads in memory that the agents of one machine share.
//!
//! An agent creates its payloads in an *arena*, an anonymous file (memfd) that it maps. Instead of a payload a link
//! carries its [`Location`]; the receiver maps the arena and reads the payload in place. A node of the SwarmX tree
//! passes a location on without reading or copying what is there.
//!
//! ```text
//!   memoryx-0                        swarmx-0                       cs2-0, cs2-1
//!   create ─► slot 3 of its arena    receive ─► Bytes in slot 3     receive ─► Bytes in slot 3
//!   share ──── Location ───────────► share ───── Location ────────► drop: the last one frees slot 3
//! ```
//!
//! A slot has a reference count in the shared memory. Each [`share`](SharedMemory::share) adds a reference, which
//! belongs to the receiver of the location; it is returned when the receiver drops the last `Bytes` of the payload.
//! The owner of the arena writes a slot only while its count is zero.
//!
//! * An arena belongs to an epoch ([`SharedMemory::begin_epoch`]). What an agent that was killed still referenced is
//!   freed with the arena, because a lost agent begins a new epoch.
//! * Memory of other agents that was mapped can't become inaccessible: an arena is accepted only if its size is sealed.
//! * A location is hostile input until [`receive`](SharedMemory::receive) has checked it.
//! * If memory can't be created or mapped, [`SharedMemory`] creates payloads on the heap, and links carry them.
//! * A payload that is changed while it is read, by a defect, is found by the checksum of its frame.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![warn(missing_docs)]

mod arena;
mod location;
mod machine;
mod mapping;
mod memory;

pub use location::{LOCATION_BYTES, Location};
pub use machine::MachineId;
pub use memory::{ReceiveError, SharedMemory};
