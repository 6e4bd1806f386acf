//! The launch document of an attempt: the job, nothing left to decide, as the coordinator reads it.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use millrace_crds::Resolution;
use millrace_params::{ApplianceSpec, Job, Resolved};
use millrace_protocol::launch::Launch;

use super::Plan;

/// A record of what was resolved that this version can't read.
#[derive(Debug, thiserror::Error)]
#[error("status.resolved can't be read by this operator ({0}): run the version that wrote it, or create the job again")]
pub struct Unreadable(String);

/// The job in a resolution.
///
/// # Errors
/// [`Unreadable`].
pub fn resolved_job(resolution: &Resolution) -> Result<(Job, ApplianceSpec), Unreadable> {
    let text = resolution.job.as_deref().unwrap_or_default();
    let job = serde_json::from_str(text).map_err(|error| Unreadable(error.to_string()))?;
    let document = resolution.appliance.clone().unwrap_or_default();
    let appliance = document.resolve().map_err(|error| Unreadable(error.to_string()))?;
    Ok((job, appliance))
}

/// The document of the plan's attempt.
///
/// # Errors
/// [`Unreadable`].
pub fn launch(plan: &Plan<'_>) -> Result<ConfigMap, Unreadable> {
    let (mut job, appliance) = resolved_job(plan.resolution)?;
    job.run.num_csx = plan.systems() as usize;
    let params = serde_json::to_string_pretty(&plan.job.spec.params).map_err(|error| Unreadable(error.to_string()))?;
    let notes = plan.resolution.notes.clone();
    let mut launch = Launch::new(Resolved { job, notes, without_effect: Vec::new() }, appliance, params);
    launch.model_dir = PathBuf::from(plan.resolution.model_dir.clone().unwrap_or_default());
    launch.attempt = Some(plan.attempt);
    launch.job_uid = plan.job.uid();
    let saved = plan.job.status.as_ref().and_then(|status| status.checkpoint.as_ref());
    if launch.mode.trains() && saved.is_some() {
        // What the params name was the beginning; the job has come further since.
        launch.resume.checkpoint_path = None;
        launch.resume.autoload = true;
    }
    let text = launch.to_json().map_err(|error| Unreadable(error.to_string()))?;
    Ok(ConfigMap {
        metadata: plan.meta(plan.names().launch(plan.attempt)),
        data: Some([("launch.json".to_owned(), text)].into()),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}
