//! The control plane inside a job: one stream between each agent and the coordinator.

pub mod client;
pub mod job;
pub mod server;
pub mod spans;
