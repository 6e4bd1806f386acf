//! A job that a client submits: what the REST layer hands to a backend and to the planner.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use millrace_crds::TrainJob;
use millrace_params::{FileName, ObjectName};
use millrace_store::{IdempotencyKey, JobRecord, NamespaceVersion, Store};
use serde_json::Value;

use crate::error::{ApiError, Result};

/// Annotation of a job: the user who submitted it.
pub const SUBMITTED_BY_ANNOTATION: &str = "millrace.dev/submitted-by";
/// Annotation of a job: the idempotency key of the request that created it.
pub const KEY_ANNOTATION: &str = "millrace.dev/idempotency-key";
/// Annotation of a job: the digest of that request's body. It shows a reuse of the key with another body even if the
/// database is lost.
pub const BODY_DIGEST_ANNOTATION: &str = "millrace.dev/idempotency-digest";
/// Directory of the uploads in the pods of a job.
pub const UPLOADS_DIR: &str = "/var/lib/millrace/texts";

/// A job to be created or planned.
#[derive(Clone, Debug)]
pub struct SubmitRequest {
    pub namespace: String,
    /// The TrainJob as JSON, with its name and annotations set.
    pub object: Arc<Value>,
    /// Files that were uploaded with it.
    pub uploads: Option<UploadedFiles>,
    /// Name of the user who submits it.
    pub submitter: String,
    /// Account whose budget pays for checking and planning the job.
    pub account: String,
    /// Idempotency key, so that a repeated request creates no second job.
    pub key: Option<IdempotencyKey>,
    /// Whether the submitter may create the job. Only then does a plan say which of its data files exist.
    pub may_create: bool,
    /// Whether the submitter is the user that runs the server, so that its code may run with the server's rights.
    pub is_server_user: bool,
}

impl SubmitRequest {
    /// Returns the job that the same request created before, if `store` has it. A job of an earlier namespace of the
    /// same name is ignored.
    ///
    /// # Errors
    /// The key was used with another body, or the database fails.
    pub async fn find_replay(
        &self,
        store: &Store,
        incarnation: Option<&NamespaceVersion>,
    ) -> Result<Option<JobRecord>> {
        let Some(key) = &self.key else { return Ok(None) };
        let now = Timestamp::now().as_millisecond();
        let Some(row) = store.keyed_job(&self.namespace, &key.key, now).await? else { return Ok(None) };
        if incarnation.is_some_and(|namespace| !namespace.contains(&row)) {
            // The job was created in an earlier namespace of this name, perhaps by other users.
            return Ok(None);
        }
        match &row.key {
            Some(known) if known.body_hash == key.body_hash => Ok(Some(row)),
            _ => Err(ApiError::idempotency_key_reused()),
        }
    }
}

/// The uploads of one job, at least one, and the ConfigMap for them. The server chose all these names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedFiles {
    /// Name of the ConfigMap, which is the source of the job's volume of uploads.
    pub config_map: ObjectName,
    pub files: Vec<UploadedFile>,
}

/// A file that a user's params name, uploaded with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedFile {
    /// Name of the file in its volume.
    pub name: FileName,
    pub content: String,
}

impl UploadedFile {
    /// Returns the name that the user's file had, without the numbers of its path and place that the server adds.
    pub fn original_name(&self) -> &str {
        let name = self.name.as_str();
        name.splitn(3, '-').nth(2).unwrap_or(name)
    }
}

/// Result of creating a job.
#[derive(Clone, Debug)]
pub enum SubmitResult {
    New(Box<TrainJob>),
    /// The same request created this job before.
    Replayed(Box<TrainJob>),
}
