//! The control plane inside a job: one stream between each agent and the coordinator.

pub mod agent;
pub mod job;
pub mod server;
