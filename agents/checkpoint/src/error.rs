//! What can go wrong with a checkpoint, as sentences for the person who runs the job.
//!
//! Every error is one complete sentence; [`Error::hint`] says what to do about it where that is not in the sentence.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::lock::LockError;

/// A `Result` of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint could not be written, read, exported or imported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system is full, or the user's quota on it.
    #[error("no space is left for {}; free some, lower max_checkpoints or choose another model_dir (older checkpoints are kept)", path.display())]
    NoSpace {
        /// What was being written.
        path: PathBuf,
    },
    /// Any other failure of the file system.
    #[error("can't {action} {}: {cause}", path.display())]
    Io {
        /// What was tried, as a verb: "read", "create".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A checkpoint is not what its manifest says.
    #[error("the checkpoint is damaged: {0}")]
    Damaged(Damage),
    /// The notes of which checkpoints follow from one another are not what they should be.
    #[error("{} tells which checkpoints follow from one another and can't be read: {reason}", path.display())]
    LineageUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A directory that holds no checkpoint.
    #[error("{} is not a checkpoint: {reason}", path.display())]
    NotACheckpoint {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The checkpoint, or a directory to import, belongs to another model.
    #[error("{} holds another model than the params describe: {difference}", path.display())]
    ModelMismatch {
        /// The directory.
        path: PathBuf,
        /// The first difference.
        difference: ModelDifference,
    },
    /// The model can't be written as a Hugging Face GPT-2.
    #[error("this model can't be exported as a Hugging Face GPT-2: {reason}")]
    NotExportable {
        /// Which part of it.
        reason: String,
        /// What would make it one.
        hint: String,
    },
    /// A directory to import is not one this crate understands.
    #[error("can't import {}: {reason}", path.display())]
    NotImportable {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// The place to write to is taken.
    #[error("{} already exists and is not empty; choose another directory or remove it", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// The lock on model_dir is another's.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Called with what the layout does not have: a mistake of the program, not of its user.
    #[error("the checkpoint was asked for what it does not have: {0}")]
    Argument(String),
}

/// The first difference between the model of the params and one on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelDifference {
    /// On disk, it is missing.
    #[error("it has no tensor {name}")]
    Missing {
        /// The tensor of the params' model.
        name: String,
    },
    /// On disk, it is additional.
    #[error("it has a tensor {name} that the model of the params does not have")]
    Unknown {
        /// The tensor on disk.
        name: String,
    },
    /// Both have it, in different shapes.
    #[error("{name} has shape {found:?} there and {expected:?} by the params")]
    Shape {
        /// The tensor.
        name: String,
        /// Shape on disk.
        found: Vec<usize>,
        /// Shape by the params.
        expected: Vec<usize>,
    },
    /// A setting that no shape shows.
    #[error("{key} is {found} there and {expected} by the params")]
    Setting {
        /// Its name on disk.
        key: String,
        /// Value on disk.
        found: String,
        /// Value by the params.
        expected: String,
    },
}

/// One damaged place of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Bytes of the file that do not match; `None` when it is the whole file.
    pub bytes: Option<Range<u64>>,
    /// Tensors that lie in these bytes.
    pub tensors: Vec<String>,
    /// What is wrong with it.
    pub reason: String,
}

impl Damage {
    /// Damage to a file as a whole.
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

/// Whether the file system, or the user's quota on it, is full.
fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Error {
    /// An error of the file system, told apart by whether space ran out.
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>, cause: io::Error) -> Self {
        let path = path.as_ref().to_owned();
        if is_full(&cause) { Self::NoSpace { path } } else { Self::Io { action, path, cause } }
    }

    /// Whether the file system, or the user's quota on it, is full.
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoSpace { .. } => true,
            Self::Io { cause, .. } | Self::Lock(LockError::Io { cause, .. }) => is_full(cause),
            _ => false,
        }
    }

    /// What the user can do, where the sentence itself does not say it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Damaged(_) => Some(
                "name an older checkpoint with --checkpoint_path; `checkpoint verify DIR` lists every damaged place".into(),
            ),
            Self::LineageUnreadable { .. } => Some(
                "bring the file back from a backup; or remove it: the checkpoint of the last attempt is then the newest"
                    .into(),
            ),
            Self::NotACheckpoint { .. } => Some("name a directory such as model_dir/checkpoint_100".into()),
            Self::ModelMismatch { .. } => Some(
                "use the params this checkpoint was trained with (their `model` section), or another model_dir to start anew"
                    .into(),
            ),
            Self::Lock(LockError::Io { cause, .. }) if is_full(cause) => {
                Some("free some space, or choose another model_dir with -o".into())
            }
            Self::Lock(LockError::Io { .. }) => Some("choose another model_dir with -o".into()),
            Self::NotExportable { hint, .. } | Self::NotImportable { hint, .. } => Some(hint.clone()),
            _ => None,
        }
    }

    /// Whether what the user named is at fault (exit code 2) rather than something that broke while running (1).
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::NoSpace { .. } | Self::Io { .. } | Self::Argument(_) => false,
            Self::Lock(LockError::InUse { .. } | LockError::Contended { .. }) => true,
            // Named wrongly, or not this user's to write; a full disk is neither.
            Self::Lock(LockError::Io { cause, .. }) => !is_full(cause),
            Self::Lock(LockError::Fenced { .. } | LockError::Lost { .. }) => false,
            _ => true,
        }
    }
}
