//! The backend of the REST server: the part that runs jobs. There are two, [`process`](crate::process) and
//! [`kubernetes`](crate::kubernetes); handlers know only this trait.
//!
//! * A backend acts, and keeps the [`Store`] up to date with the state of its jobs.
//! * Jobs, events, metrics and logs are read from the store, not from the backend.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{Appliance, TrainJob};
use millrace_params::{FileName, ObjectName};
use millrace_store::{IdempotencyKey, JobRecord, NamespaceVersion, Store};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::files::Files;

/// Annotation of a job: the user who submitted it.
pub const SUBMITTED_BY_ANNOTATION: &str = "millrace.dev/submitted-by";
/// Annotation of a job: the idempotency key of the request that created it.
pub const KEY_ANNOTATION: &str = "millrace.dev/idempotency-key";
/// Annotation of a job: the digest of that request's body. It shows a reuse of the key with another body even if the
/// database is lost.
pub const BODY_DIGEST_ANNOTATION: &str = "millrace.dev/idempotency-digest";

/// A job to be created or planned.
#[derive(Clone, Debug)]
pub struct SubmitRequest {
    /// Namespace of the job.
    pub namespace: String,
    /// The TrainJob as JSON, with its name and annotations set.
    pub object: Arc<Value>,
    /// Files that were uploaded with it.
    pub texts: Option<UploadedFiles>,
    /// Name of the user who submits it.
    pub submitter: String,
    /// Account whose budget pays for checking and planning the job.
    pub account: String,
    /// Idempotency key, so that a repeated request creates no second job.
    pub key: Option<IdempotencyKey>,
    /// Whether the submitter may create the job. Only then does a plan say which of its data files exist.
    pub may_create: bool,
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
    /// The uploads.
    pub files: Vec<UploadedFile>,
}

/// A file that a user's params name, uploaded with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedFile {
    /// Name of the file in its volume.
    pub name: FileName,
    /// Content of the file.
    pub content: String,
}

/// Result of creating a job.
#[derive(Clone, Debug)]
pub enum SubmitResult {
    /// The job was created.
    New(Box<TrainJob>),
    /// The same request created this job before.
    Replayed(Box<TrainJob>),
}

/// A job that is to be changed.
#[derive(Clone, Copy, Debug)]
pub struct JobTarget<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// UID.
    pub uid: &'a str,
}

/// A change that a user may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// Sets `spec.suspend`.
    Suspend(bool),
    /// Sets `spec.numCsx`.
    Scale(u32),
}

/// A volume that params can name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct VolumeInfo {
    /// What a job's `volumes` call it: the name of its claim.
    pub name: String,
    /// What it is.
    pub message: String,
}

/// Runs jobs.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns `process` or `kubernetes`.
    fn name(&self) -> &'static str;

    /// Checks the job of `order`, and returns it as it would be stored. Nothing is created.
    async fn dry_run(&self, order: &SubmitRequest) -> Result<TrainJob>;

    /// Creates the job, or returns the one that the same request created before.
    async fn create(&self, order: SubmitRequest) -> Result<SubmitResult>;

    /// Changes a job. Planning the change is charged to `account`.
    async fn change(&self, account: &str, job: JobTarget<'_>, change: JobChange) -> Result<TrainJob>;

    /// Deletes the job with this UID; returns its last state.
    async fn delete(&self, namespace: &str, name: &str, uid: &str) -> Result<TrainJob>;

    /// Returns the appliance with this name.
    async fn appliance(&self, name: &str) -> Result<Option<Appliance>>;

    /// Plans `order` against the current queue. Nothing is created.
    async fn plan(&self, order: &SubmitRequest) -> Result<crate::plan::JobPlan>;

    /// Lists the volumes that a job in this namespace can mount.
    async fn volumes(&self, namespace: &str) -> Result<Vec<VolumeInfo>>;

    /// Returns the current namespace of this name; its users see only the history since its creation. `None` if there
    /// is none, or if namespaces are only names, as in the process backend.
    async fn current_namespace(&self, namespace: &str) -> Result<Option<NamespaceVersion>>;

    /// Returns metrics in the text format of Prometheus.
    fn metrics(&self) -> String;

    /// Returns a sentence about the loop of the backend that has work but makes no progress, if there is one.
    fn stuck_loop(&self) -> Option<String> {
        None
    }

    /// Deletes the records of some of the jobs that ended before `before_ms`: finished in the process backend, deleted
    /// in a cluster, whose TrainJobs it leaves alone. Returns their number, 0 if none are left.
    async fn delete_history_before(&self, before_ms: i64) -> Result<usize>;

    /// Stops the backend's tasks in an orderly way.
    async fn shut_down(&self);

    /// Returns access to the files in a job's model_dir.
    async fn files(&self, job: &TrainJob) -> Result<Arc<dyn Files>>;
}
