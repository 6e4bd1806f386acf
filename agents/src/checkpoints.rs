//! What command line, coordinator and MemoryX share about the checkpoint a run begins with.

use std::path::Path;

use millrace_checkpoint::{Error, LoadStrictness, LockError, list};
use millrace_emulator::numerics::NumericsProfile;
use millrace_params::Job;
use millrace_telemetry::journal::Reason;

use crate::failure::Failure;

/// A checkpoint's error as a failure with its hint.
pub fn checkpoint_failure(error: &Error) -> Failure {
    let reason = match error {
        Error::Lock(LockError::InUse { .. } | LockError::Contended { .. }) => Reason::ModelDirInUse,
        Error::Lock(LockError::Fenced { .. } | LockError::Lost { .. }) => Reason::Superseded,
        full if full.is_full() => Reason::OutOfSpace,
        bad if bad.is_bad_input() => Reason::BadParams,
        _ => Reason::Failed,
    };
    let failure = Failure::of(reason, error);
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// How closely the checkpoint must be of the job's model.
pub const fn strictness(job: &Job) -> LoadStrictness {
    if job.run.disable_strict_checkpoint_loading { LoadStrictness::AllowMissing } else { LoadStrictness::Strict }
}

/// Whether this is no checkpoint, but a directory of some, as another job's model_dir is.
///
/// # Errors
/// It can't be read.
pub fn holds_checkpoints(path: &Path) -> Result<bool, Failure> {
    Ok(!list(path).map_err(|error| checkpoint_failure(&error))?.complete.is_empty())
}

/// Refuses to go on under the numerics profile `now` from a checkpoint computed under `then`, unless the user `accepts`
/// it; returns the note for the next manifests. Profiles are JSON, as manifests have them; what only one of them says
/// is not compared.
///
/// # Errors
/// The profiles differ.
pub fn check_profile(then: &str, now: &str, accepts: bool) -> Result<Option<String>, Failure> {
    let read = |profile: &str| serde_json::from_str::<NumericsProfile>(profile).ok();
    let agree = match (read(then), read(now)) {
        (Some(then), Some(now)) => then.agrees_with(&now),
        // A profile of a later version may say what this one can't keep to.
        _ => then == now,
    };
    match (agree, accepts) {
        (true, _) => Ok(None),
        (false, true) => Ok(Some(format!("numerics profile changed from {then} to {now} by the user's flag"))),
        (false, false) => {
            Err(Failure::bad_input(format!("the checkpoint was computed as {then}, this run would compute as {now}"))
                .hint(
                    "the result would not be the same bits; insist with --accept_other_profile, or pin it with --isa",
                ))
        }
    }
}
