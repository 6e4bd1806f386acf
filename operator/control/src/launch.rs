//! Builds the launch document of an attempt: the resolved job, as its coordinator reads it.

use std::path::PathBuf;

use kube::ResourceExt;
use millrace_params::{CheckpointStates, ResolveOutput};
use millrace_protocol::launch::LaunchDocument;

use crate::attempt::AttemptContext;
use crate::record::ResolvedJobError;

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
    launch.agent_counts.least_systems = (attempt.job.spec.min_csx as usize).min(launch.agent_counts.systems);
    launch.model_dir = PathBuf::from(attempt.resolution.model_dir.clone().unwrap_or_default());
    launch.attempt = Some(attempt.number);
    launch.job_uid = attempt.job.uid();
    launch.precedes_phase = !attempt.resolution.later_phases.is_empty();
    let saved = attempt.job.status.as_ref().and_then(|status| status.checkpoint.as_ref());
    if launch.mode.trains() && saved.is_some() {
        // The checkpoint that the params name is where the job began; the job has a newer one of its own.
        launch.resume.checkpoint_path = None;
        launch.resume.states = CheckpointStates::ALL;
        launch.resume.autoload = true;
    }
    Ok(launch)
}
