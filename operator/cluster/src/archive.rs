//! The finalizer that holds a deleted job until its history is archived.
//!
//! The REST server sets it and removes it. If there is no REST server, or the job has nothing to archive, the operator
//! removes it at once; if the REST server does not respond, after a minute.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use millrace_crds::{JobState, TrainJob};
use serde_json::json;

pub const ARCHIVE_FINALIZER: &str = "millrace.dev/archive";
/// Maximum time that a deleted job is held.
const ARCHIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns whether `job` has the finalizer.
pub fn has_finalizer(job: &TrainJob) -> bool {
    job.finalizers().iter().any(|name| name == ARCHIVE_FINALIZER)
}

/// Returns whether a job has made progress that its files record. Only such a job saves a checkpoint when it is
/// deleted, and has files to archive.
pub fn has_steps(job: &TrainJob) -> bool {
    let Some(status) = &job.status else { return false };
    let trains = status.state().is_some_and(JobState::has_steps);
    // The state of a deleted job does not show whether it trained; the stop time does.
    let trained = status.state() == Some(JobState::Deleting) && status.stop_time.is_some();
    let step = status.progress.as_ref().and_then(|progress| progress.step);
    trains || trained || step.is_some() || status.checkpoint.is_some()
}

/// Returns how much longer a deleted job may be held; `None` if it is not deleted.
pub fn remaining_hold(job: &TrainJob, now: Timestamp) -> Option<Duration> {
    let deleted = job.metadata.deletion_timestamp.as_ref()?.0;
    let waited = Duration::try_from(now.duration_since(deleted)).unwrap_or_default();
    Some(ARCHIVE_TIMEOUT.saturating_sub(waited))
}

/// Sets the finalizer on this version of a job. Returns false after a write conflict: the newer version causes another
/// reconcile.
///
/// # Errors
/// The API server rejected the request, or is unreachable.
pub async fn add_finalizer(client: &Client, job: &TrainJob) -> Result<bool, kube::Error> {
    let finalizers = job.finalizers().iter().cloned().chain([ARCHIVE_FINALIZER.to_owned()]);
    patch_finalizers(client, job, finalizers.collect()).await
}

/// Removes the finalizer; returns false as [`add_finalizer`] does.
///
/// # Errors
/// As [`add_finalizer`].
pub async fn remove_finalizer(client: &Client, job: &TrainJob) -> Result<bool, kube::Error> {
    let finalizers = job.finalizers().iter().filter(|name| *name != ARCHIVE_FINALIZER).cloned();
    patch_finalizers(client, job, finalizers.collect()).await
}

async fn patch_finalizers(client: &Client, job: &TrainJob, finalizers: Vec<String>) -> Result<bool, kube::Error> {
    let jobs: Api<TrainJob> = Api::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    // The patch names the version, because a list in a merge patch replaces the finalizers of other programs.
    let metadata = json!({"resourceVersion": job.resource_version(), "finalizers": finalizers});
    let patch = Patch::Merge(json!({"metadata": metadata}));
    match jobs.patch_metadata(&job.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use millrace_crds::{StoredParams, TrainJobSpec};

    use super::*;

    #[test]
    fn job_without_steps_is_not_archived() {
        let job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        assert!(!has_steps(&job), "it was never visited");
        let with = |status: serde_json::Value| {
            let mut job = job.clone();
            job.status = Some(serde_json::from_value(status).unwrap());
            has_steps(&job)
        };
        let state = |reason: &str| {
            json!({"attempt": 1, "conditions": [{
                "type": "Succeeded", "status": "Unknown", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]})
        };
        assert!(!with(state("Queued")) && !with(state("Starting")));
        assert!(with(state("Training")) && with(state("Suspending")));
        let mut deleted = state("Deleting");
        assert!(!with(deleted.clone()), "deleted before it trained");
        deleted["stopTime"] = json!("2026-01-01T00:00:00Z");
        assert!(with(deleted));
        assert!(with(json!({"progress": {"step": 0}})) && with(json!({"checkpoint": {"step": 3}})));
    }

    #[test]
    fn deleted_job_is_held_for_a_minute() {
        let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!((has_finalizer(&job), remaining_hold(&job, at(100))), (false, None));
        job.metadata.finalizers = Some(vec!["other".to_owned(), ARCHIVE_FINALIZER.to_owned()]);
        job.metadata.deletion_timestamp = Some(Time(at(100)));
        assert!(has_finalizer(&job));
        for (second, remaining) in [(90, 60), (100, 60), (130, 30), (160, 0), (1000, 0)] {
            assert_eq!(remaining_hold(&job, at(second)), Some(Duration::from_secs(remaining)), "{second}");
        }
    }
}
