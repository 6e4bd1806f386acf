//! Checks the checkpoint that a job starts from, before the job runs; [`find_start_checkpoint`] has the rule.
//!
//! * A training job without `checkpoint_path` resumes from the newest checkpoint of its model_dir. That directory is
//!   named after the job, so an earlier job of the same name may have written it: a note names the checkpoint.
//! * The result may change until the job starts, because jobs that run until then write checkpoints, too.

use std::path::{Path, PathBuf};

use millrace_agents::start_checkpoint::{StartCheckpoint, find_start_checkpoint};
use millrace_checkpoint::Checkpoint;
use millrace_crds::TrainJob;
use millrace_params::JobSpec;
use millrace_protocol::launch::LaunchDocument;

use super::directories::ServerDirectories;
use super::path_error::PathError;

/// Reason of the event of a job that resumes from a checkpoint of an earlier job.
pub const RESUMES_EARLIER_JOB: &str = "ResumesEarlierJob";

/// A job has no checkpoint to start from.
#[derive(Debug, thiserror::Error)]
pub enum StartCheckpointError {
    /// The job can't use the path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// There is no usable checkpoint at this path.
    #[error("runconfig.checkpoint_path {path}: name a checkpoint of the server, or wait until it is complete")]
    Unusable {
        /// The path in the params.
        path: String,
        /// What is wrong with it.
        source: Box<millrace_checkpoint::Error>,
    },
    /// The job evaluates, and its model_dir has no checkpoint.
    #[error("no checkpoint in {}, the job's model_dir, to evaluate: name one with --checkpoint_path", .0.display())]
    NothingToEvaluate(PathBuf),
}

/// Checks that the checkpoint exists that `resolved`, the resolved `job` with this model_dir, starts from. Returns a
/// note if it is one of an earlier job that the params do not name. Does not read the data of checkpoints.
///
/// # Errors
/// There is no such checkpoint at present.
pub fn check_start_checkpoint(
    directories: &ServerDirectories,
    job: &TrainJob,
    resolved: &JobSpec,
    model_dir: &Path,
) -> Result<Option<String>, StartCheckpointError> {
    let run = &resolved.run;
    let params_path = run.checkpoint_path.as_deref();
    let path = params_path.map(|params_path| directories.locate(job, params_path)).transpose()?;
    match (find_start_checkpoint(run, path.as_deref(), model_dir), params_path) {
        (Ok(StartCheckpoint::Newest(checkpoint)), _) if run.mode.trains() => Ok(resume_note(&checkpoint, model_dir)),
        (Ok(StartCheckpoint::Missing), _) => Err(StartCheckpointError::NothingToEvaluate(model_dir.to_owned())),
        (Ok(_), _) => Ok(None),
        (Err(source), Some(path)) => {
            Err(StartCheckpointError::Unusable { path: path.to_owned(), source: Box::new(source) })
        }
        // The run itself reports why model_dir can't be read.
        (Err(_), None) if run.mode.trains() => Ok(None),
        (Err(_), None) => Err(StartCheckpointError::NothingToEvaluate(model_dir.to_owned())),
    }
}

/// Returns a sentence that names the checkpoint that a run of `launch` resumes from, if it is one of an earlier job
/// that the params do not name.
pub fn earlier_checkpoint_note(launch: &LaunchDocument) -> Option<String> {
    if !launch.mode.trains() || launch.resume.checkpoint_path.is_some() {
        return None;
    }
    match find_start_checkpoint(&launch.job.run, None, &launch.model_dir).ok()? {
        StartCheckpoint::Newest(checkpoint) => resume_note(&checkpoint, &launch.model_dir),
        _ => None,
    }
}

fn resume_note(checkpoint: &Checkpoint, model_dir: &Path) -> Option<String> {
    let name = checkpoint.path().file_name()?.to_string_lossy().into_owned();
    Some(format!(
        "the job resumes from {name}, which an earlier job has left in the same model_dir, {}: to train from the \
         beginning, choose another name",
        model_dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use millrace_crds::{StoredParams, TrainJobSpec};
    use millrace_params::{FlagOverrides, Mode, Params};

    use super::*;

    #[test]
    fn missing_start_checkpoint_is_reported() {
        let scratch = tempfile::tempdir().unwrap();
        let inputs = scratch.path().canonicalize().unwrap();
        let directories =
            ServerDirectories { data: inputs.join("data"), inputs: Some(inputs.clone()), volumes: [].into() };
        let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        job.metadata.namespace = Some("team".to_owned());
        let params = Params::parse_yaml(include_str!("../../../examples/gpt2-tiny.yaml")).unwrap();
        let mut resolved = params.resolve(&FlagOverrides::default()).unwrap().job;
        let check = |resolved: &JobSpec| check_start_checkpoint(&directories, &job, resolved, &inputs.join("m"));
        assert_eq!(check(&resolved).unwrap(), None, "a run from initial values");
        resolved.run.mode = Mode::Eval;
        let error = check(&resolved).unwrap_err().to_string();
        assert!(error.starts_with("no checkpoint in ") && error.ends_with("--checkpoint_path"), "{error}");
        resolved.run.checkpoint_path = Some("runs/checkpoint_3".to_owned());
        let error = check(&resolved).unwrap_err().to_string();
        assert!(error.starts_with("runconfig.checkpoint_path runs/checkpoint_3: name a checkpoint"), "{error}");
    }
}
