//! The launch document of an attempt: the job, nothing left to decide, as the coordinator reads it.

use std::path::PathBuf;

use kube::ResourceExt;
use millrace_crds::Resolution;
use millrace_params::{ApplianceSpec, Job, Resolved};
use millrace_protocol::launch::Launch;

use crate::world::Attempt;

/// A record of what was resolved that this version can't read.
#[derive(Debug, thiserror::Error)]
#[error("status.resolved can't be read by this version ({0}): run the one that wrote it, or create the job again")]
pub struct Unreadable(String);

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// The job in a resolution.
///
/// # Errors
/// [`Unreadable`].
pub fn resolved_job(resolution: &Resolution) -> Result<(Job, ApplianceSpec), Unreadable> {
    let text = resolution.job.as_deref().unwrap_or_default();
    let job = serde_json::from_str(text)?;
    let document = resolution.appliance.clone().unwrap_or_default();
    let appliance = document.resolve().map_err(|error| Unreadable(error.to_string()))?;
    Ok((job, appliance))
}

/// The document of `attempt`.
///
/// # Errors
/// [`Unreadable`].
pub fn launch(attempt: &Attempt<'_>) -> Result<Launch, Unreadable> {
    let (mut job, appliance) = attempt.resolved()?;
    job.run.num_csx = attempt.systems() as usize;
    let params = serde_json::to_string_pretty(&attempt.job.spec.params)?;
    let notes = attempt.resolution.notes.clone();
    let mut launch = Launch::new(Resolved { job, notes, without_effect: Vec::new() }, appliance, params);
    launch.model_dir = PathBuf::from(attempt.resolution.model_dir.clone().unwrap_or_default());
    launch.attempt = Some(attempt.number);
    launch.job_uid = attempt.job.uid();
    let saved = attempt.job.status.as_ref().and_then(|status| status.checkpoint.as_ref());
    if launch.mode.trains() && saved.is_some() {
        // What the params name was the beginning; the job has come further since.
        launch.resume.checkpoint_path = None;
        launch.resume.autoload = true;
    }
    Ok(launch)
}
