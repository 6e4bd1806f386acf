//! Reads the record of a job's first admission, `status.resolved`, which never changes.

use millrace_crds::{ResolvedJob, TrainJob};
use millrace_params::{JobSpec, MachineSpec, ParamsError};
use millrace_protocol::launch::{DocumentError, V1, VERSION};

/// Why this program can't use the record of a job's first admission.
#[derive(Debug, thiserror::Error)]
pub enum ResolvedJobError {
    /// A later release wrote it.
    #[error(
        "status.resolved has version {found}, and this operator reads versions up to {VERSION}: run the release that \
         admitted the job or a later one, or create the job again"
    )]
    NewerVersion {
        /// The version of the record.
        found: u32,
    },
    /// It is damaged, or has a version with another format.
    #[error("status.resolved can't be read ({0}): run the release that admitted the job, or create the job again")]
    Json(#[from] serde_json::Error),
    /// The appliance in it is damaged, or has a version with another format.
    #[error("status.resolved can't be read ({0}): run the release that admitted the job, or create the job again")]
    Appliance(#[source] ParamsError),
    /// Its agents can't be started with the current state of the job.
    #[error("the agents of the job's image can't be started")]
    Launch(#[from] DocumentError),
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
    let appliance = document.resolve().map_err(ResolvedJobError::Appliance)?;
    Ok((job, appliance))
}

/// Returns whether single agents of the job can be added, removed and replaced while its attempt runs. A coordinator of
/// release 0.1.0 can't continue the attempt of another one, nor on other systems.
pub(crate) fn has_flexible_agents(job: &TrainJob) -> bool {
    let record = job.status.as_ref().and_then(|status| status.resolved.as_ref());
    record.is_some_and(|record| resolved_version(record) > V1)
}
