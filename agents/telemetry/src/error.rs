//! The one error of this crate: what was tried, on which file, and why it failed.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something a run tells could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Verb and preposition: "append to", "open".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A journal was to be written by an attempt older than one that already wrote to it.
    #[error("attempt {attempt} may not write the journal: attempt {newest} has already begun")]
    StaleAttempt {
        /// The attempt that asked.
        attempt: u64,
        /// The newest attempt found on disk.
        newest: u64,
    },
    /// A file of the journal that a later release wrote.
    #[error(
        "{} has version {found}, and this program reads versions up to {}: use the release that wrote it, or a later one",
        path.display(),
        crate::journal::VERSION
    )]
    NewerJournal {
        /// The file.
        path: PathBuf,
        /// The version it names.
        found: u32,
    },
    /// A role name that cannot be part of a file name.
    #[error("{0:?} cannot be an agent's name: only lower-case letters, digits and '-' are allowed")]
    AgentName(String),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }

    /// Whether the disk, or the user's quota on it, is full.
    pub fn is_full(&self) -> bool {
        let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(self, Self::Io { source, .. } if full(source.kind()))
    }

    /// What the user can do about it, as one sentence, where there is something to do.
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
                Some("another run owns this model_dir: let it end, or choose another --model_dir")
            }
            Self::NewerJournal { .. } | Self::AgentName(_) => None,
        }
    }
}
