//! The control plane inside a job: every agent keeps one stream to the coordinator.

pub mod agent;
pub mod job;
pub mod server;
