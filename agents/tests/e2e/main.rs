//! Whole runs of the built program: every role a process, talking over loopback.

#[cfg(feature = "tls")]
#[path = "../../protocol/tests/authority/mod.rs"]
mod authority;
mod bad_input;
mod bits;
mod checkpoints;
mod disk;
mod ends;
mod harness;
mod job;
mod membership;
mod outputs;
mod pods;
mod ports;
mod successor;
#[cfg(feature = "tls")]
mod tls;
