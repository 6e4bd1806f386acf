//! The process backend: jobs in a database, agents as processes of this machine, one control loop over both.
//!
//! ```text
//!   REST ──► Local (Backend) ──► Objects (SQL, streams) ◄── Machine (World) ──► Crew: coordinator, memoryx, ...
//!                                      │      ▲                ▲
//!                                      ▼      └─ record ◄──────┼── journal
//!                              millrace_control ───────────────┘
//! ```

mod claim;
mod inputs;
mod local;
mod objects;
mod observe;
mod priorities;
mod site;
mod volumes;
mod world;

pub use local::{Local, Settings};
pub use site::Directories;
pub use volumes::{SYNTAX as VOLUME_SYNTAX, ServerVolume, all as all_volumes, parse as parse_volume};
