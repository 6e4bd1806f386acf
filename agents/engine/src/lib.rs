//! Decisions of the five roles without I/O.
//!
//! Each role is a machine: events in, commands out. The drivers in `millrace-agents` carry frames and messages between
//! them over gRPC; the simulation in `tests/` carries them in memory, in any order a network may choose, and crashes
//! what may crash.
//!
//! * [`coordinator`]: membership, epochs, steps, the two-phase commit, checkpoints.
//! * [`shard`]: a MemoryX shard: what to stream, what to gather, what it has promised.
//! * [`chunk_store`]: a shard's chunks: when an update is applied, what a snapshot holds.
//! * [`swarm`]: a SwarmX node: copies chunks down, joins partial sums on the way up.
//! * [`system`]: a CS-2: in which order it receives, computes and sends.
//! * [`slots`], [`credit`]: positions on a link and the credits that admit them.
//! * [`frame`], [`payload`]: what links carry; sums of partial sums, with and without their zeros.
//!
//! Invariants: no machine looks at a clock, a socket or a random number; a message of an older epoch changes nothing; a
//! leaf is never counted twice; what one shard has committed, all will commit.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod chunk_store;
pub mod coordinator;
pub mod credit;
pub mod frame;
pub mod message;
pub mod payload;
pub mod shard;
pub mod slots;
pub mod swarm;
pub mod system;
pub mod types;
