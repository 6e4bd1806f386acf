//! State machines of the five roles, without I/O.
//!
//! Each role is a state machine that receives events and returns commands. The drivers in `millrace-agents` carry
//! frames and messages between them over gRPC. The simulation in `tests/` carries them in memory, in any order that a
//! network may choose, and injects failures.
//!
//! * [`coordinator`]: membership, epochs, steps, the two-phase commit, checkpoints.
//! * [`shard`]: a MemoryX shard: what to stream, what to gather, what it has prepared and committed.
//! * [`chunk_store`]: a shard's chunks: when to apply an update, what a snapshot contains.
//! * [`swarm`]: a SwarmX node: copies chunks down and joins partial sums on the way up.
//! * [`system`]: a CS-2: the order in which it receives, computes and sends.
//! * [`slots`], [`credit`]: positions on a link, and the credits for sending.
//! * [`frame`], [`payload`]: the data on links; partial sums, dense and sparse.
//! * [`payload_memory`]: the memory in which payloads are created.
//!
//! Guarantees:
//! * No state machine uses a clock, a socket or a random number.
//! * A message of an older epoch has no effect.
//! * A leaf is never counted twice.
//! * If one shard has committed a step, all shards will commit it.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod chunk_store;
pub mod coordinator;
pub mod credit;
pub mod frame;
pub mod message;
pub mod payload;
pub mod payload_memory;
pub mod shard;
pub mod slots;
pub mod swarm;
pub mod system;
pub mod types;
