//! Jobs as documents: how the database keeps them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use millrace_crds::{ConditionType, TrainJob};
use millrace_store::Content;
use serde::de::DeserializeOwned;

use crate::refusal::{Reason, Refusal, Result};

/// What of a job the database keeps.
///
/// # Errors
/// It can't be written: a fault of this program.
pub fn content(job: &TrainJob) -> Result<Content> {
    let status = job.status.clone().unwrap_or_default();
    let finished = status.is(ConditionType::Finished);
    let finished_ms = status.finish_time.as_ref().filter(|_| finished).map(|time| time.0.as_millisecond());
    // The STATE column.
    let state = status.condition(ConditionType::Succeeded).map(|condition| condition.reason.clone());
    Ok(Content { document: text(job)?, state, finished_ms })
}

/// An object as text.
///
/// # Errors
/// As [`content`].
pub fn text(object: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(object).map_err(|error| Refusal::internal("write an object", &error))
}

/// The object that a text holds; one that can't be read is told of.
pub fn read<K: DeserializeOwned>(name: &str, document: &str) -> Option<K> {
    let object = serde_json::from_str(document);
    object.inspect_err(|error| log::warn!("{name} can't be read, perhaps it is a newer version's: {error}")).ok()
}

/// The job of a row, which is asked for by name and so must be readable. One that is deleted says so.
///
/// # Errors
/// It is another version's.
pub fn job_of(row: &millrace_store::Job) -> Result<TrainJob> {
    let mut job: TrainJob = read(&row.name, &row.content.document).ok_or_else(|| {
        let detail = format!("the job {} can't be read by this version: run the one that wrote it", row.name);
        Refusal::new(Reason::Internal, detail)
    })?;
    if let Some(deleted) = row.deleted_ms {
        job.metadata.deletion_timestamp = Timestamp::from_millisecond(deleted).ok().map(Time);
    }
    Ok(job)
}

/// The version of an object, which only rises.
pub fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}
