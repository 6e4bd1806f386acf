//! Tests of whole runs with the built program: every role is a process, connected over loopback.

mod bad_input;
mod bits;
mod checkpoints;
mod disk;
mod ends;
mod first_use;
mod harness;
mod identities;
mod job;
mod membership;
mod outputs;
mod pods;
mod ports;
mod strangers;
mod successor;
