//! The five roles as processes, the local launcher and the millrace-agent command line.
//!
//! * [`launch`]: a whole job on one machine; the entry point for any program that wants to run one.
//! * `roles`: the drivers of the five roles, each one process: they carry what `millrace-engine` decides.
//! * `control`: every agent's stream to the coordinator; `links`: the data tree.
//! * [`cli`]: the command line.
//! * [`host`]: what this machine has.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod checkpoints;
pub mod cli;
mod control;
pub mod epoch;
mod failure;
pub mod host;
mod http;
pub mod input;
pub mod launch;
mod links;
mod member;
mod roles;

pub use launch::role_process;
