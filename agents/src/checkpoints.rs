//! Functions for the checkpoint that a run begins with, used by command line, coordinator and MemoryX.

use std::path::Path;

use millrace_checkpoint::{CheckpointMetadata, Error, LoadStrictness, LockError, StepHistory};
use millrace_emulator::numerics::{Isa, NumericsProfile};
use millrace_emulator::plan::StreamPlan;
use millrace_engine::types::TrainingHistory;
use millrace_params::JobSpec;
use millrace_telemetry::journal::OutcomeReason;

use crate::error::AgentError;

/// Converts an error of a checkpoint to a failure with reason and hint.
pub fn checkpoint_failure(error: Error) -> AgentError {
    let hint = error.hint();
    let reason = match &error {
        Error::Lock(LockError::InUse { .. } | LockError::Contended { .. }) => OutcomeReason::ModelDirInUse,
        Error::Lock(LockError::Fenced { .. } | LockError::Lost { .. }) => OutcomeReason::Superseded,
        error if error.is_full() => OutcomeReason::OutOfSpace,
        error if error.is_bad_input() => OutcomeReason::BadParams,
        _ => OutcomeReason::Failed,
    };
    let failure = AgentError::with_reason(reason, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Returns the metadata of a checkpoint of `job` with weights that were not trained here.
///
/// # Errors
/// None in practice: a profile can always be written as JSON.
pub fn imported_metadata(
    job: &JobSpec,
    plan: &StreamPlan,
    profile: &NumericsProfile,
) -> Result<CheckpointMetadata, AgentError> {
    Ok(CheckpointMetadata {
        plan: plan.hash(),
        seed: job.run.seed,
        next_sample: 0,
        numerics_profile: serde_json::to_string(profile).map_err(AgentError::local)?,
        precision: profile.precision.to_string(),
        optimizer: job.optimizer.kind.name().to_owned(),
        loss: None,
        grad_norm: None,
        history: StepHistory::default(),
        notes: Vec::new(),
        job: job.to_json(),
        recovery: false,
    })
}

/// Returns the history of a run as a checkpoint records it; the inverse of [`restored_history`].
pub const fn recorded_history(history: TrainingHistory) -> StepHistory {
    let TrainingHistory { skipped_batches, steps, mean_loss, mean_norm } = history;
    StepHistory { skipped_batches, steps, mean_loss, mean_grad_norm: mean_norm }
}

/// Returns the history of a run that continues from a checkpoint.
pub const fn restored_history(recorded: StepHistory) -> TrainingHistory {
    let StepHistory { skipped_batches, steps, mean_loss, mean_grad_norm } = recorded;
    TrainingHistory { skipped_batches, steps, mean_loss, mean_norm: mean_grad_norm }
}

/// Returns how strictly the tensors of a checkpoint must match the job's model.
pub const fn load_strictness(job: &JobSpec) -> LoadStrictness {
    if job.run.disable_strict_checkpoint_loading { LoadStrictness::AllowMissing } else { LoadStrictness::Strict }
}

/// Checks that a checkpoint of `step` at `path` is not beyond the last step of a run that counts from this step.
///
/// # Errors
/// `step` is greater than `max_steps`.
pub fn check_last_step(path: &Path, step: u64, max_steps: u64) -> Result<(), AgentError> {
    if step <= max_steps {
        return Ok(());
    }
    Err(AgentError::bad_input(format!("{} is at step {step}, beyond max_steps {max_steps}", path.display())).hint(
        "give a larger max_steps, which counts from step 0; or train the loaded weights from step 0 on, as for \
         fine-tuning, with --load_checkpoint_states model",
    ))
}

/// Returns the instruction set in a numerics profile; `None` if the profile or the set is unknown.
pub fn isa_of_profile(profile: &str) -> Option<Isa> {
    serde_json::from_str(profile).ok().map(|profile: NumericsProfile| profile.isa)
}

/// Checks that a run with the numerics profile `now` may continue from a checkpoint with the profile `before`. Profiles
/// are JSON, as in manifests; values that only one of them has are not compared. If the profiles differ and the user
/// `accepts` it, returns a note for the following manifests.
///
/// # Errors
/// The profiles differ, and the user does not accept it.
pub fn check_same_profile(before: &str, now: &str, accepts: bool) -> Result<Option<String>, AgentError> {
    let read = |profile: &str| serde_json::from_str::<NumericsProfile>(profile).ok();
    let agree = match (read(before), read(now)) {
        (Some(before), Some(now)) => before.agrees_with(&now),
        // A profile of a later version may contain a value that this version can't keep.
        _ => before == now,
    };
    match (agree, accepts) {
        (true, _) => Ok(None),
        (false, true) => Ok(Some(format!("numerics profile changed from {before} to {now} by the user's flag"))),
        (false, false) => Err(AgentError::bad_input(format!(
            "the checkpoint was computed with profile {before}, this run would use {now}"
        ))
        .hint(
            "the result would not be bit-identical; override with --allow_profile_change, or pin the instruction set \
            with --isa",
        )),
    }
}
