//! Defines what the program that starts a job's processes shares with them: the command line of a role, its
//! environment, the coordinator's launch document, and the exit codes.
//!
//! A role is started as `PROGRAM role ROLE …` ([`RoleCommand`]) with [`ROLE_ENV`] and [`ALLOCATOR_ENVIRONMENT`] in its
//! environment. Its flags are listed in `docs/reference/commands.md`. On a cluster, an init container fetches the
//! uploads of a job before that ([`FetchCommand`]).

mod document;
mod fetch;
mod loader_container;
mod role_command;
mod version;

pub use document::{AgentCounts, LaunchDocument, ResumeOptions};
pub use fetch::{FETCH_SUBCOMMAND, FetchCommand, FetchDocument, FetchedFile, MAX_FETCH_DOCUMENT_BYTES};
pub use loader_container::{LOADER_PROGRAM_FILE, loader_command, loader_socket};
pub use millrace_outcome::Exit;
pub use role_command::{
    DocumentSource, InvalidArgument, MAX_ADDRESS_BYTES, MAX_PATH_BYTES, MAX_ROOTS, PACKAGE_PYTHON, ROLE_SUBCOMMAND,
    RoleCommand, RoleCommandError, V1JournalFiles,
};
pub use version::{DocumentError, V1, VERSION};

/// Environment variable of every role process: [`STARTED_BY_LAUNCHER`] if a local launcher holds the other end of the
/// process's standard input, any other value otherwise. It is required so that no argument of a user can turn a program
/// into a role by accident.
pub const ROLE_ENV: &str = "MILLRACE_ROLE_PROCESS";
/// Value of [`ROLE_ENV`] for processes of a local launcher.
pub const STARTED_BY_LAUNCHER: &str = "launcher";

/// Environment variable of a coordinator that prints its failure for its launcher, on standard output: the launcher
/// copies that output and shows the failure after it. Without it, the failure is printed to standard error.
pub const FAILURE_ON_STDOUT_ENV: &str = "MILLRACE_FAILURE_ON_STDOUT";

/// Environment variable with the directory of the role's identity, see
/// [`Credentials::read`](crate::security::Credentials::read). Equivalent to [`RoleCommand::identity`].
pub const IDENTITY_ENV: &str = "MILLRACE_IDENTITY";
/// Environment variable: `off` if connections between agents are authenticated but not encrypted. Equivalent to
/// [`RoleCommand::data_encryption`].
pub const DATA_ENCRYPTION_ENV: &str = "MILLRACE_DATA_ENCRYPTION";
/// Environment variable of a coordinator with the address of a bucket to which it uploads its model_dir. Equivalent to
/// [`RoleCommand::model_dir_bucket`].
pub const MODEL_DIR_BUCKET_ENV: &str = "MILLRACE_MODEL_DIR_BUCKET";

/// Environment variables for a role process. By default glibc returns memory of the size of a chunk to the system as
/// soon as it is freed, which costs a page fault for every 4 KiB of the next chunk. Other allocators ignore the
/// variables.
pub const ALLOCATOR_ENVIRONMENT: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "268435456")];
