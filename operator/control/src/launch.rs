//! Builds the launch document of an attempt: the resolved job, as its coordinator reads it.

use std::path::PathBuf;

use kube::ResourceExt;
use millrace_crds::ResolvedJob;
use millrace_params::{JobSpec, MachineSpec, ResolveOutput};
use millrace_protocol::launch::{DocumentError, LaunchDocument, V1, VERSION};

use crate::world::AttemptContext;

/// Why this program can't use the record of a job's first admission.
#[derive(Debug, thiserror::Error)]
pub enum ResolvedJobError {
    /// A later release wrote it.
    #[error(
        "status.resolved has version {found}, and this operator reads versions up to {VERSION}: run the release that admitted \
         the job or a later one, or create the job again"
    )]
    NewerVersion {
        /// The version of the record.
        found: u32,
    },
    /// It is damaged, or has a version with another format.
    #[error("status.resolved can't be read ({0}): run the release that admitted the job, or create the job again")]
    Damaged(String),
    /// Its agents can't be started with the current state of the job.
    #[error("the agents of the job's image can't be started: {0}")]
    Launch(#[from] DocumentError),
}

impl From<serde_json::Error> for ResolvedJobError {
    fn from(error: serde_json::Error) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// Returns the version of a record, which is also that of the agents in its image.
pub fn resolved_version(resolution: &ResolvedJob) -> u32 {
    resolution.version.unwrap_or(V1)
}

/// Returns the resolved job and its machine.
///
/// # Errors
/// The record can't be read; see [`ResolvedJobError`].
pub fn resolved_job(resolution: &ResolvedJob) -> Result<(JobSpec, MachineSpec), ResolvedJobError> {
    let found = resolved_version(resolution);
    if found > VERSION {
        return Err(ResolvedJobError::NewerVersion { found });
    }
    let text = resolution.job.as_deref().unwrap_or_default();
    let job = serde_json::from_str(text)?;
    let document = resolution.appliance.clone().unwrap_or_default();
    let appliance = document.resolve().map_err(|error| ResolvedJobError::Damaged(error.to_string()))?;
    Ok((job, appliance))
}

/// Builds the launch document of `attempt`.
///
/// # Errors
/// The record can't be read; see [`ResolvedJobError`].
pub fn launch(attempt: &AttemptContext<'_>) -> Result<LaunchDocument, ResolvedJobError> {
    let (mut job, appliance) = attempt.resolved()?;
    job.run.num_csx = attempt.system_count() as usize;
    let params = serde_json::to_string_pretty(&attempt.job.spec.params)?;
    let notes = attempt.resolution.notes.clone();
    let mut launch = LaunchDocument::new(ResolveOutput { job, notes, ignored_keys: Vec::new() }, appliance, params);
    launch.model_dir = PathBuf::from(attempt.resolution.model_dir.clone().unwrap_or_default());
    launch.attempt = Some(attempt.number);
    launch.job_uid = attempt.job.uid();
    let saved = attempt.job.status.as_ref().and_then(|status| status.checkpoint.as_ref());
    if launch.mode.trains() && saved.is_some() {
        // The checkpoint that the params name is where the job began; the job has a newer one of its own.
        launch.resume.checkpoint_path = None;
        launch.resume.autoload = true;
    }
    Ok(launch)
}
