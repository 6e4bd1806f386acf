//! The process backend: jobs in a database, agents as processes of this machine, one control loop over both.
//!
//! ```text
//!   REST ──► Local (Backend) ──► Objects (SQL, streams) ◄── Machine (World) ──► Crew: coordinator, memoryx, ...
//!                                      │      ▲                ▲
//!                                      ▼      └─ record ◄──────┼── journal
//!                              millrace_control ───────────────┘
//! ```

mod backend;
mod bucket_model_dirs;
mod claim;
mod directories;
mod fetching_site;
mod inputs;
mod job_files;
mod objects;
mod observe;
mod path_error;
mod priorities;
mod start_checkpoint;
mod volumes;
mod world;

pub use backend::{ProcessBackend, ProcessSettings};
pub use bucket_model_dirs::BucketModelDirs;
pub use claim::DataDirClaim;
pub use directories::ServerDirectories;
pub use objects::{NewObject, ObjectStore};
pub use path_error::PathError;
pub use volumes::{ServerVolume, VOLUME_SYNTAX, collect_unique as all_volumes, parse_volume};
pub use world::ProcessWorld;
