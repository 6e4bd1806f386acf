//! Conversion between jobs and the JSON documents in the database.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use millrace_crds::{ConditionType, JobState, TrainJob};
use millrace_store::JobContent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{ApiError, ErrorReason, Result};

/// Returns what the database stores of a job.
///
/// # Errors
/// It can't be serialized: a bug of this program.
pub fn content(job: &TrainJob) -> Result<JobContent> {
    let status = job.status.clone().unwrap_or_default();
    let finished = status.is(ConditionType::Finished);
    let finished_ms = status.finish_time.as_ref().filter(|_| finished).map(|time| time.0.as_millisecond());
    // The STATE column. A job that was deleted before its end has a state only while finalizers hold it.
    let state = match (&job.metadata.deletion_timestamp, finished) {
        (Some(_), false) => is_held(job).then(|| JobState::Deleting.as_str().to_owned()),
        _ => status.condition(ConditionType::Succeeded).map(|condition| condition.reason.clone()),
    };
    Ok(JobContent { document: to_json_text(job)?, state, finished_ms })
}

/// Whether the job has finalizers, which hold it after its deletion.
pub fn is_held(job: &TrainJob) -> bool {
    !job.finalizers().is_empty()
}

/// Serializes an object.
///
/// # Errors
/// Those of [`content`].
pub fn to_json_text(object: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(object).map_err(|error| ApiError::internal("write an object", error))
}

/// Parses an object; logs a warning and returns `None` if it can't be read.
pub fn from_json_text<K: DeserializeOwned>(name: &str, document: &str) -> Option<K> {
    let object = serde_json::from_str(document);
    object
        .inspect_err(
            |error| tracing::warn!(object = %name, "an object can't be read, perhaps it is a newer version's: {error}"),
        )
        .ok()
}

/// Marks the JSON of a job that this server can't parse: its conditions say so. Those in its status were written by
/// another release and are not true now, because this server does not run the job.
pub fn mark_unreadable(job: &mut Value) {
    let Err(error) = TrainJob::deserialize(&*job) else { return };
    let message = format!(
        "this server can't read the job ({error}) and does not run it: run the release that wrote it, or create the job again"
    );
    let Some(status) = job.as_object_mut().map(|job| job.entry("status").or_insert_with(|| json!({}))) else { return };
    if !status.is_object() {
        *status = json!({});
    }
    let rows = [
        (ConditionType::Accepted, "False"),
        (ConditionType::Admitted, "False"),
        (ConditionType::RolesReady, "False"),
        (ConditionType::Progressing, "False"),
        (ConditionType::Succeeded, "Unknown"),
    ];
    status["conditions"] = rows
        .map(|(of, status)| json!({"type": of.as_str(), "status": status, "reason": "Unreadable", "message": message}))
        .into();
}

/// Parses the job of a row, with its deletion time. For a job that a client has requested by name, so that an error is
/// returned.
///
/// # Errors
/// It was written by another version that this one can't read.
pub fn job_of(row: &millrace_store::JobRecord) -> Result<TrainJob> {
    let mut job: TrainJob = from_json_text(&row.name, &row.content.document).ok_or_else(|| {
        let detail = format!("the job {} can't be read by this version: run the one that wrote it", row.name);
        ApiError::new(ErrorReason::Internal, detail)
    })?;
    if let Some(deleted) = row.deleted_ms {
        job.metadata.deletion_timestamp = Timestamp::from_millisecond(deleted).ok().map(Time);
    }
    Ok(job)
}

/// Returns the resource version of an object, which only increases; 0 if it has none.
pub fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use millrace_crds::Appliance;

    use super::*;

    /// Reads a document that the process backend of release 0.1.0 has stored.
    fn golden(name: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/0.1.0").join(name);
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn v0_1_0_documents_are_readable() {
        let job: TrainJob = serde_json::from_str(&golden("process-trainjob.json")).unwrap();
        let status = job.status.unwrap();
        assert!(status.is(ConditionType::Finished) && status.checkpoint.unwrap().step == Some(4));
        let (resolved, machine) = millrace_control::record::resolved_job(&status.resolved.unwrap()).unwrap();
        assert_eq!((resolved.run.max_steps, machine.link.chunk_bytes), (4, 4096));
        let appliance: Appliance = serde_json::from_str(&golden("process-appliance.json")).unwrap();
        assert_eq!(appliance.metadata.name.as_deref(), Some("default"));
    }

    #[test]
    fn unreadable_job_is_marked_in_its_conditions() {
        let mut job: Value = serde_json::from_str(&golden("process-trainjob.json")).unwrap();
        let original = job.clone();
        mark_unreadable(&mut job);
        assert_eq!(job, original, "one that can be read is shown as it is");
        job["spec"]["numCsx"] = json!({"of": "a later release"});
        mark_unreadable(&mut job);
        let conditions = job["status"]["conditions"].as_array().unwrap();
        assert!(conditions.iter().all(|condition| condition["reason"] == "Unreadable"));
        assert!(conditions[0]["message"].as_str().unwrap().contains("run the release that wrote it"));
    }
}
