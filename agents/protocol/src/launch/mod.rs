//! What whoever starts a job's processes shares with them: the coordinator's launch document, the environment of a role's
//! process, and the exit codes.
//!
//! A role is started as `PROGRAM role ROLE …` with [`ROLE_VARIABLE`] and [`ALLOCATOR`] in its environment. The README has
//! its flags.

mod document;
mod exit;
mod version;

pub use document::{Launch, Resume, Wanted};
pub use exit::Exit;
pub use version::{DocumentError, FIRST_VERSION, VERSION};

/// Present in the environment of every role: [`BY_LAUNCHER`] where a local launcher holds the other end of the role's
/// standard input, anything else where something else runs it. It makes sure that no argument of a user's can turn a
/// program into a role by accident.
pub const ROLE_VARIABLE: &str = "MILLRACE_ROLE_PROCESS";
/// See [`ROLE_VARIABLE`].
pub const BY_LAUNCHER: &str = "launcher";

/// In the environment of a role: the directory with its identity, see
/// [`Credentials::read`](crate::security::Credentials::read). The same as its flag `--identity`.
pub const IDENTITY_VARIABLE: &str = "MILLRACE_IDENTITY";
/// In the environment of a role: `off` where what travels between agents is authenticated and not encrypted. The same
/// as its flag `--data_encryption`.
pub const DATA_ENCRYPTION_VARIABLE: &str = "MILLRACE_DATA_ENCRYPTION";

/// Environment that a role process wants: glibc gives memory of the size of a chunk back to the system as soon as it is
/// freed, and pays with a page fault for every 4 KiB of the next chunk. Other allocators don't look at it.
pub const ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "268435456")];
