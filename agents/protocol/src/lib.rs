//! Defines the wire and document formats that the processes of a job share with each other and with the programs that
//! start them.
//!
//! * [`proto`]: control services and messages, generated from `proto/`.
//! * [`codec`]: encodes the engine's frames and control messages as bytes.
//! * [`packet`]: sends and receives frames and grants over the links of the data tree.
//! * [`replica`]: the copy of a MemoryX shard that one replica sends to another.
//! * [`transport`]: the HTTP/2 settings that both ends of every connection must share.
//! * [`security`]: authenticates every connection.
//! * [`journal`]: connects to the coordinator's journal and encodes its entries.
//! * [`blobs`]: connects to the server of uploads on a cluster.
//! * [`error_chain`](fn@error_chain): renders an error with its causes, for a log, a status or an answer.
//! * [`launch`]: the command line, the launch document, the environment and the exit codes of a job's processes.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod blobs;
pub mod codec;
mod error_chain;
pub mod journal;
pub mod launch;
pub mod packet;
pub mod replica;
pub mod samples;
pub mod security;
pub mod transport;

pub use error_chain::error_chain;

/// Services and messages generated from `proto/` by `cargo xtask generate`.
#[allow(missing_docs, clippy::pedantic)]
#[rustfmt::skip]
pub mod proto;
