//! Decides which checkpoint a run starts from, before the run begins:
//!
//! | `checkpoint_path` | mode | start |
//! |---|---|---|
//! | a directory of checkpoints | `eval_all` | all complete ones in it |
//! | a safetensors file | any | its weights, at step 0 |
//! | any other | any | that checkpoint |
//! | none | evaluates, or resumes automatically | the newest complete one of model_dir |
//! | none | trains without resuming | initial values |
//!
//! * Only manifests and headers are read. The coordinator of a run that begins verifies every byte before it writes.
//! * The result may change until the run starts, because another run may write to the directories.

use std::path::{Path, PathBuf};

use millrace_checkpoint::{Checkpoint, Error, VerificationLevel, contains_checkpoints, newest_complete};
use millrace_params::{Mode, RunSpec};

/// What a run starts from.
#[derive(Debug)]
pub enum StartCheckpoint {
    /// The checkpoint that the user named.
    Named(Checkpoint),
    /// The weights in the safetensors file that the user named.
    Weights(PathBuf),
    /// The newest complete checkpoint of model_dir.
    Newest(Checkpoint),
    /// Every complete checkpoint in the directory that the user named, one after the other.
    Every(PathBuf),
    /// Initial values.
    Initial,
    /// Nothing: the run evaluates, and model_dir has no complete checkpoint.
    Missing,
}

/// Finds what the run `run` starts from. `explicit` is the path of `run.checkpoint_path` on this host.
///
/// # Errors
/// The named checkpoint, or a directory of checkpoints, can't be read.
pub fn find_start_checkpoint(
    run: &RunSpec,
    explicit: Option<&Path>,
    model_dir: &Path,
) -> Result<StartCheckpoint, Error> {
    match explicit {
        Some(path) if millrace_roots::is_file(path) => Ok(StartCheckpoint::Weights(path.to_owned())),
        Some(path) if run.mode == Mode::EvalAll && contains_checkpoints(path)? => {
            Ok(StartCheckpoint::Every(path.to_owned()))
        }
        Some(path) => Checkpoint::open(path).map(StartCheckpoint::Named),
        None if run.mode.trains() && !run.autoload_last_checkpoint => Ok(StartCheckpoint::Initial),
        None => Ok(match newest_complete(model_dir, VerificationLevel::Quick)?.0 {
            Some(checkpoint) => StartCheckpoint::Newest(checkpoint),
            None if run.mode.trains() => StartCheckpoint::Initial,
            None => StartCheckpoint::Missing,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::testing::local_run;

    #[test]
    fn start_without_any_checkpoint_depends_on_the_mode() {
        let empty = tempfile::tempdir().unwrap();
        let missing = empty.path().join("checkpoint_3");
        let mut run = local_run().launch.job.run;
        for (mode, autoload, is_missing) in [
            (Mode::Train, true, false),
            (Mode::Train, false, false),
            (Mode::Eval, false, true),
            (Mode::EvalAll, true, true),
        ] {
            (run.mode, run.autoload_last_checkpoint) = (mode, autoload);
            let found = find_start_checkpoint(&run, None, empty.path()).unwrap();
            assert_eq!(matches!(found, StartCheckpoint::Missing), is_missing, "{mode:?}");
            assert_eq!(matches!(found, StartCheckpoint::Initial), !is_missing, "{mode:?}");
            assert!(find_start_checkpoint(&run, Some(&missing), empty.path()).is_err(), "{mode:?}");
        }
    }
}
