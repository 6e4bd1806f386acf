//! Why a job can never run as it is, or is not planned yet.

use millrace_emulator::compile::CompileError;

use crate::record::ResolvedJobError;

/// Why a job can't run, as a sentence for its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Its params are invalid or contradictory, or name something it may not use.
    #[error("{0}")]
    BadParams(String),
    /// Its model or its batch exceeds the machine.
    #[error("{0}")]
    TooLarge(String),
    /// It was not planned: the caller has to wait.
    #[error("{0}")]
    Overloaded(String),
}

impl From<String> for ResolveError {
    fn from(why: String) -> Self {
        Self::BadParams(why)
    }
}

impl From<ResolvedJobError> for ResolveError {
    fn from(record: ResolvedJobError) -> Self {
        Self::BadParams(record.to_string())
    }
}

impl From<CompileError> for ResolveError {
    fn from(error: CompileError) -> Self {
        let why = error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}: {hint}"));
        match error {
            CompileError::MemoryXTooSmall { .. }
            | CompileError::DoesNotFit { .. }
            | CompileError::TooLargeToStream { .. } => Self::TooLarge(why),
            CompileError::Graph(_) | CompileError::Batch { .. } | CompileError::SequencesDiffer { .. } => {
                Self::BadParams(why)
            }
        }
    }
}
