//! The backend of the REST server: the part that runs jobs. There are two, [`process`](crate::process) and
//! [`kubernetes`](crate::kubernetes); handlers know only this trait.
//!
//! * A backend acts, and keeps the [`Store`](millrace_store::Store) up to date with the state of its jobs.
//! * Jobs, events, metrics and logs are read from the store, not from the backend.

use std::sync::Arc;

use async_trait::async_trait;
use millrace_crds::{Appliance, TrainJob};
use millrace_store::NamespaceVersion;
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Result;
use crate::files::Files;
use crate::submission::{SubmitRequest, SubmitResult};

/// A job that is to be changed.
#[derive(Clone, Copy, Debug)]
pub struct JobTarget<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
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
    /// Name of the claim, which a job's `volumes` use.
    pub name: String,
    /// What it is.
    pub message: String,
}

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
