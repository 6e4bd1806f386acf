//! Errors of checkpoints, as sentences for users.
//!
//! Every error is one complete sentence; [`Error::hint`] returns the remedy if the sentence does not contain it.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use millrace_emulator::plan::ChunkId;
use rustix::io::Errno;
use serde::Serialize;

use crate::lock::LockError;
use crate::section::Section;

/// A `Result` of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a checkpoint could not be written, read, exported or imported.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system is full, or the user's quota on it is exhausted.
    #[error("no space is left for {}; free some, lower max_checkpoints or choose another model_dir (older checkpoints are kept)", path.display())]
    NoSpace {
        /// What was being written.
        path: PathBuf,
    },
    /// Another error of the file system.
    #[error("can't {action} {}: {cause}", path.display())]
    Io {
        /// The operation, as a verb: "read", "create".
        action: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
    /// A checkpoint does not match its manifest.
    #[error("the checkpoint is damaged: {0}")]
    Damaged(Damage),
    /// The file that records how checkpoints follow from one another is invalid.
    #[error("can't read {}, which records how checkpoints follow from one another: {source}", path.display())]
    LineageUnreadable {
        /// The file.
        path: PathBuf,
        /// The file is too long ([`io::ErrorKind::InvalidData`]), or not the expected JSON.
        source: io::Error,
    },
    /// A directory is not a checkpoint.
    #[error("{} is not a checkpoint: {reason}", path.display())]
    NotACheckpoint { path: PathBuf, reason: String },
    /// The checkpoint, or a directory to import, belongs to another model.
    #[error("{} holds a different model than the params describe: {difference}", path.display())]
    ModelMismatch { path: PathBuf, difference: ModelDifference },
    /// The model can't be exported to Hugging Face's transformers.
    #[error("this model can't be exported to Hugging Face: {reason}")]
    NotExportable {
        reason: String,
        /// What it would have to be.
        hint: String,
    },
    /// A directory can't be imported.
    #[error("can't import {}: {reason}", path.display())]
    NotImportable { path: PathBuf, reason: String, hint: String },
    #[error("{} already exists and is not empty; choose another directory or remove it", path.display())]
    Exists { path: PathBuf },
    /// The lock of model_dir is held by another run.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A checkpoint can't be published, because a shard has not reported a chunk as written.
    #[error("no shard has written {section} of chunk {chunk}")]
    Incomplete {
        /// The part of the chunk.
        section: Section,
        /// The chunk.
        chunk: ChunkId,
    },
    /// An argument does not exist in the layout: a bug of the program.
    #[error("not in the checkpoint: {0}")]
    Argument(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The first difference between the model of the params and one on disk.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelDifference {
    /// A tensor is missing on disk.
    #[error("it has no tensor {name}")]
    Missing {
        /// The tensor of the params' model.
        name: String,
    },
    /// There is an additional tensor on disk.
    #[error("it has a tensor {name} that the model of the params does not have")]
    Unknown { name: String },
    /// A tensor has different shapes.
    #[error("{name} has shape {found:?} in the checkpoint and {expected:?} in the params")]
    Shape {
        name: String,
        /// Shape on disk.
        found: Vec<usize>,
        /// Shape according to the params.
        expected: Vec<usize>,
    },
    /// A setting that is not visible in shapes differs.
    #[error("{key} is {found} in the checkpoint and {expected} in the params")]
    Setting {
        /// Its name on disk.
        key: String,
        /// Value on disk.
        found: String,
        /// Value according to the params.
        expected: String,
    },
}

/// One damaged part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Path of the damaged file.
    pub file: PathBuf,
    /// Bytes of the file that do not match; `None` for the whole file.
    pub bytes: Option<Range<u64>>,
    /// Tensors stored in these bytes.
    pub tensors: Vec<String>,
    /// Describes the damage in one sentence.
    pub reason: String,
}

impl Damage {
    /// Creates the damage of a whole file.
    pub(crate) fn file(file: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self { file: file.into(), bytes: None, tensors: Vec::new(), reason: reason.into() }
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.file.display())?;
        if let Some(bytes) = &self.bytes {
            write!(f, "at bytes {}..{} ", bytes.start, bytes.end)?;
        }
        match self.tensors.as_slice() {
            [] => {}
            [one] => write!(f, "({one}) ")?,
            [first, .., last] => write!(f, "({first} to {last}) ")?,
        }
        f.write_str(&self.reason)
    }
}

/// Returns whether the file system is full, or the user's quota on it is exhausted.
fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns whether the storage caused an error, such as a file server that does not answer: another try may succeed.
fn is_of_storage(cause: &io::Error) -> bool {
    let errors = [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::INTR, Errno::NOMEM, Errno::BUSY, Errno::REMOTEIO];
    errors.iter().any(|error| cause.raw_os_error() == Some(error.raw_os_error()))
}

impl Error {
    /// Returns the error for a file or directory that can't be imported for `reason`.
    pub(crate) fn not_importable(path: &Path, reason: String, hint: &str) -> Self {
        Self::NotImportable { path: path.to_owned(), reason, hint: hint.to_owned() }
    }

    /// Creates the error of an invalid argument; `reason` is a sentence or another error.
    pub(crate) fn argument(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Argument(reason.into())
    }

    /// Creates the error of a file system operation; a lack of space has its own variant.
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>, cause: io::Error) -> Self {
        let path = path.as_ref().to_owned();
        if is_full(&cause) { Self::NoSpace { path } } else { Self::Io { action, path, cause } }
    }

    /// Returns whether the error is a lack of space or an exhausted quota.
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoSpace { .. } => true,
            Self::Io { cause, .. } | Self::Lock(LockError::Io { cause, .. }) => is_full(cause),
            _ => false,
        }
    }

    /// Returns what the user can do, if the sentence itself does not say it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Damaged(_) => Some(
                "name an older checkpoint with --checkpoint_path; `checkpoint verify DIR` lists every damaged place"
                    .into(),
            ),
            Self::LineageUnreadable { .. } => Some(
                "restore the file from a backup, or remove it: the checkpoint of the last attempt is then the newest"
                    .into(),
            ),
            Self::NotACheckpoint { .. } => Some("name a directory such as model_dir/checkpoint_100".into()),
            Self::ModelMismatch { .. } => Some(
                "use the params this checkpoint was trained with (their `model` section), or another model_dir to \
                 start from scratch"
                    .into(),
            ),
            Self::Lock(LockError::Io { cause, .. }) if is_full(cause) => {
                Some("free some space, or choose another model_dir with -o".into())
            }
            Self::Lock(LockError::Io { cause, .. }) if is_of_storage(cause) => {
                Some("check the storage of model_dir; a later run resumes from its checkpoints".into())
            }
            Self::Lock(LockError::Io { .. }) => Some("choose another model_dir with -o".into()),
            Self::NotExportable { hint, .. } | Self::NotImportable { hint, .. } => Some(hint.clone()),
            _ => None,
        }
    }

    /// Returns whether the user's input caused the error (exit code 2) rather than a failure at run time (1).
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::NoSpace { .. } | Self::Io { .. } | Self::Incomplete { .. } | Self::Argument(_) => false,
            Self::Lock(LockError::InUse { .. } | LockError::Contended { .. }) => true,
            // A wrong path, or one that this user may not write; storage that is full or does not work is neither.
            Self::Lock(LockError::Io { cause, .. }) => !is_full(cause) && !is_of_storage(cause),
            Self::Lock(LockError::Fenced { .. } | LockError::Lost { .. }) => false,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_storage_is_no_bad_input() {
        for (errno, is_bad_input) in [
            (Errno::ACCESS, true),
            (Errno::NOTDIR, true),
            (Errno::ROFS, true),
            (Errno::NOSPC, false),
            (Errno::IO, false),
            (Errno::STALE, false),
            (Errno::TIMEDOUT, false),
        ] {
            let cause = io::Error::from_raw_os_error(errno.raw_os_error());
            let error = Error::Lock(LockError::Io { action: "read", model_dir: PathBuf::from("m"), cause });
            assert_eq!(error.is_bad_input(), is_bad_input, "{error}");
            assert!(error.hint().is_some(), "{error}");
        }
    }
}
