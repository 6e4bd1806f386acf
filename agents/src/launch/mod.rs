//! Runs a whole job on one machine with [`run_local`]: starts the five roles as processes and supervises them until all
//! have ended.
//!
//! The roles are the running program itself, started again ([`role_process`](crate::role_process)), so any program can
//! run a job:
//!
//! ```no_run
//! use millrace_agents::launch::{LaunchDocument, LocalRun, run_local};
//! use millrace_agents::role_process;
//!
//! fn main() -> std::process::ExitCode {
//!     if let Some(exit) = role_process() {
//!         return exit;
//!     }
//!     let launch = std::fs::read_to_string("launch.json").expect("a launch document");
//!     run_local(LocalRun::new(LaunchDocument::from_json(&launch).expect("JSON of a launch")), None).into()
//! }
//! ```
//!
//! A program that runs many jobs keeps the processes of each as a [`ProcessGroup`], which replaces lost processes, too,
//! and decides itself how to react when one is given up.
//!
//! ```text
//!   launcher ──stdin: identity, launch document──► coordinator-0 ──stdout: "listening …", then copied──► stdout
//!      │                                                    ▲ control, journal
//!      ├──stdin: identity──► memoryx-0..  swarmx-0..  activation-0..  cs2-0..
//!      └──Stop over the journal's port, when interrupted or when a role is given up
//! ```
//!
//! * No process remains, however the launcher or a role ends: a role ends when its standard input closes.
//! * Each process has its own identity, which no other process can read: the launcher is the certificate authority of
//!   its run.
//! * A role that dies or does not respond is replaced, by the rules of [`millrace_replacement`]; the others continue.
//!   If a role is given up, the run ends, and the launcher prints its name and its last lines.
//! * Ctrl-C in a terminal reaches the launcher only, because every role has its own process group.

mod children;
mod coordinator_start;
mod coordinator_watch;
mod issuer;
mod local_run;
mod process;
mod process_group;
mod ready;
mod replacements;
mod role_commands;
mod run;
mod supervise;
#[cfg(test)]
pub(crate) mod testing;

pub use local_run::{LaunchError, LocalRun};
pub use millrace_protocol::launch::{Exit, LaunchDocument};
pub use process_group::{ProcessGroup, ProcessStatus};
pub use ready::{ListenAddresses, announce, announce_ready, announce_unresponsive, print_failure};
pub use run::{run_local, supervise};
pub use supervise::ProcessExit;
