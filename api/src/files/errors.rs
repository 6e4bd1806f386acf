//! The errors of a job's files, wherever they are read.

use std::io;

use crate::error::{ApiError, ErrorReason};

/// The file does not exist, or is none that is served.
pub fn file_not_found(path: &str) -> ApiError {
    ApiError::new(ErrorReason::NotFound, format!("file {path} not found: list its directory for the available files"))
}

/// The checkpoint was deleted meanwhile, or is damaged.
pub fn checkpoint_unreadable(error: &millrace_checkpoint::Error) -> ApiError {
    ApiError::new(ErrorReason::Gone, format!("the checkpoint can't be read: {error}"))
}

/// Reading failed; the cause is logged only.
pub fn io_error(error: io::Error) -> ApiError {
    ApiError::internal("read a job's files", error)
}
