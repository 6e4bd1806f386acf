//! The error type of this crate: which action failed, on which file, and why.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A record could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system returned an error.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Verb and preposition: "append to", "open".
        action: &'static str,
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The journal was opened for an attempt older than one that has already written to it.
    #[error("attempt {attempt} can't write the journal: attempt {newest} has already begun")]
    StaleAttempt {
        /// The attempt that tried to open it.
        attempt: u64,
        /// The newest attempt found on disk.
        newest: u64,
    },
    /// A file of the journal was written by a later release.
    #[error(
        "{} has version {found}, and this program reads versions up to {known}: use the release that wrote it, or a later one",
        path.display()
    )]
    NewerJournal {
        /// The file that has the later version.
        path: PathBuf,
        /// The version that the file names.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// The text is not a valid name of an agent.
    #[error("{0:?} cannot be an agent's name: only lower-case letters, digits and '-' are allowed")]
    AgentName(String),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }

    /// Returns whether the disk, or the user's quota on it, is full.
    pub fn is_full(&self) -> bool {
        let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(self, Self::Io { source, .. } if full(source.kind()))
    }

    /// Returns what the user can do about the error, as one sentence; `None` if nothing is known to help.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            full if full.is_full() => {
                Some("free some space and run again: training resumes from its newest checkpoint")
            }
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    Some("choose a directory you may write to with --model_dir")
                }
                _ => None,
            },
            Self::StaleAttempt { .. } => {
                Some("another run uses this model_dir: wait until it ends, or choose another --model_dir")
            }
            Self::NewerJournal { .. } | Self::AgentName(_) => None,
        }
    }
}
