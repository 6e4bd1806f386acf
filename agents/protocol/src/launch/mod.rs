//! Defines what the program that starts a job's processes shares with them: the coordinator's launch document, the
//! environment of a role process, and the exit codes.
//!
//! A role is started as `PROGRAM role ROLE …` with [`ROLE_ENV`] and [`ALLOCATOR_ENVIRONMENT`] in its environment. Its
//! flags are listed in `docs/reference/commands.md`.

mod document;
mod exit;
mod version;

pub use document::{AgentCounts, LaunchDocument, ResumeOptions};
pub use exit::Exit;
pub use version::{DocumentError, V1, VERSION};

/// Environment variable of every role process: [`STARTED_BY_LAUNCHER`] if a local launcher holds the other end of the
/// process's standard input, any other value otherwise. It is required so that no argument of a user can turn a program
/// into a role by accident.
pub const ROLE_ENV: &str = "MILLRACE_ROLE_PROCESS";
/// Value of [`ROLE_ENV`] for processes of a local launcher.
pub const STARTED_BY_LAUNCHER: &str = "launcher";

/// Environment variable with the directory of the role's identity, see
/// [`Credentials::read`](crate::security::Credentials::read). Equivalent to its flag `--identity`.
pub const IDENTITY_ENV: &str = "MILLRACE_IDENTITY";
/// Environment variable: `off` if connections between agents are authenticated but not encrypted. Equivalent to the
/// role's flag `--data_encryption`.
pub const DATA_ENCRYPTION_ENV: &str = "MILLRACE_DATA_ENCRYPTION";

/// Environment variables for a role process. By default glibc returns memory of the size of a chunk to the system as
/// soon as it is freed, which costs a page fault for every 4 KiB of the next chunk. Other allocators ignore the
/// variables.
pub const ALLOCATOR_ENVIRONMENT: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "268435456")];
