//! Opens the checkpoints of a job.

use std::path::{Path, PathBuf};

use millrace_checkpoint::{Checkpoint, VerificationLevel, newest_complete};
use millrace_params::JobSpec;

use super::errors::checkpoint_unreadable;
use crate::error::{ApiError, ErrorReason, Result};

/// Returns the directory of the checkpoint of a step.
pub fn checkpoint_dir(model_dir: &Path, step: u64) -> PathBuf {
    model_dir.join(format!("checkpoint_{step}"))
}

/// Opens the checkpoint of a step, or the newest one.
///
/// # Errors
/// [`ErrorReason::NotFound`]: there is no such checkpoint. [`ErrorReason::Gone`]: it can't be read.
pub fn open_checkpoint(model_dir: &Path, step: Option<u64>) -> Result<Checkpoint> {
    if let Some(step) = step {
        let not_found = || {
            let detail = format!("checkpoint {step} not found for this job: list its checkpoints for the steps");
            ApiError::new(ErrorReason::NotFound, detail)
        };
        return open_checkpoint_dir(&checkpoint_dir(model_dir, step), not_found);
    }
    let (newest, _) =
        newest_complete(model_dir, VerificationLevel::Quick).map_err(|error| checkpoint_unreadable(&error))?;
    newest.ok_or_else(|| ApiError::new(ErrorReason::NotFound, "the job has no checkpoint yet"))
}

/// Opens the checkpoint in a directory. `not_found` builds the error if there is none.
///
/// # Errors
/// Those of [`open_checkpoint`].
pub fn open_checkpoint_dir(dir: &Path, not_found: impl FnOnce() -> ApiError) -> Result<Checkpoint> {
    Checkpoint::open(dir).map_err(|error| match error {
        millrace_checkpoint::Error::NotACheckpoint { .. } => not_found(),
        error => checkpoint_unreadable(&error),
    })
}

/// Returns the job that wrote a checkpoint.
///
/// # Errors
/// [`ErrorReason::Internal`]: this version can't read it.
pub fn job_of_checkpoint(checkpoint: &Checkpoint) -> Result<JobSpec> {
    JobSpec::from_json(checkpoint.job()).map_err(|error| ApiError::internal("read a checkpoint", error))
}
