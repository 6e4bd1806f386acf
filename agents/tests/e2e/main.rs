//! Whole runs of the built program: every role a process, talking over loopback.

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
