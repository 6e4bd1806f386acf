//! What the processes of a job say to each other and to whoever starts them: control messages, data frames, samples, the
//! coordinator's journal, the launch document.
//!
//! [`proto`] is generated from `proto/`. [`codec`] packs the engine's frames and messages, [`packet`] carries frames over
//! the links of the data tree; [`transport`] has the HTTP/2
//! settings both ends of every link must share; [`security`] authenticates every connection;
//! [`journal`] is how the coordinator's stream is dialled. [`launch`] is what a job's processes are started with and
//! how they end.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod codec;
pub mod journal;
pub mod launch;
pub mod packet;
pub mod security;
pub mod transport;

/// Generated services and messages.
#[allow(missing_docs, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("millrace.v1");
}
