//! The launch document of an attempt: the job, nothing left to decide, as the coordinator reads it.

use std::path::PathBuf;

use kube::ResourceExt;
use millrace_crds::Resolution;
use millrace_params::{ApplianceSpec, Job, Resolved};
use millrace_protocol::launch::{DocumentError, FIRST_VERSION, Launch, VERSION};

use crate::world::Attempt;

/// Why the record of what was resolved at first admission is of no use to this program.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// A later release wrote it.
    #[error(
        "status.resolved has version {found}, and this operator reads versions up to {VERSION}: run the release that admitted \
         the job or a later one, or create the job again"
    )]
    NewerVersion {
        /// The version it names.
        found: u32,
    },
    /// It is damaged, or of a version that wrote it otherwise.
    #[error("status.resolved can't be read ({0}): run the release that admitted the job, or create the job again")]
    Damaged(String),
    /// Its agents can't be started with what the job says now.
    #[error("the agents of the job's image can't be started: {0}")]
    Launch(#[from] DocumentError),
}

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// The version of a record, and of the agents in its image.
pub fn version_of(resolution: &Resolution) -> u32 {
    resolution.version.unwrap_or(FIRST_VERSION)
}

/// The job in a resolution.
///
/// # Errors
/// [`Unreadable`].
pub fn resolved_job(resolution: &Resolution) -> Result<(Job, ApplianceSpec), Unreadable> {
    let found = version_of(resolution);
    if found > VERSION {
        return Err(Unreadable::NewerVersion { found });
    }
    let text = resolution.job.as_deref().unwrap_or_default();
    let job = serde_json::from_str(text)?;
    let document = resolution.appliance.clone().unwrap_or_default();
    let appliance = document.resolve().map_err(|error| Unreadable::Damaged(error.to_string()))?;
    Ok((job, appliance))
}

/// The document of `attempt`.
///
/// # Errors
/// [`Unreadable`].
pub fn launch(attempt: &Attempt<'_>) -> Result<Launch, Unreadable> {
    let (mut job, appliance) = attempt.resolved()?;
    job.run.num_csx = attempt.system_count() as usize;
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
