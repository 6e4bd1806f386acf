//! The control plane inside a job: one stream between each agent and the coordinator.

pub mod client;
pub mod job;
pub mod server;
pub mod spans;

/// Locked by tests that install a subscriber. While two subscribers exist, a call site is enabled if either enables
/// it, and its span is then not disabled for the other one.
#[cfg(test)]
static TEST_SUBSCRIBER: std::sync::Mutex<()> = std::sync::Mutex::new(());
