//! Tests of whole runs with the built program: every role is a process, connected over loopback.

mod bad_input;
mod bert;
mod checkpoints;
mod disk;
mod first_use;
mod generate;
mod graphs;
mod harness;
mod hdf5;
mod identities;
mod images;
mod job;
mod membership;
mod network_faults;
mod next_job;
mod outputs;
mod phases;
mod pods;
mod ports;
mod proxy;
mod replacement;
mod reproducibility;
mod t5;
mod termination;
mod traces;
mod unauthorized_peers;
