//! The backend of the REST server: the part that runs jobs. There are two, [`process`](crate::process) and
//! [`kubernetes`](crate::kubernetes); handlers know only this trait.
//!
//! * A backend acts, and keeps the [`Store`](millrace_store::Store) up to date with the state of its jobs.
//! * Jobs, events, metrics and logs are read from the store, not from the backend.

use std::sync::Arc;

use async_trait::async_trait;
use millrace_crds::{Appliance, TrainJob};
use millrace_params::LabelName;
use millrace_store::NamespaceVersion;
use schemars::JsonSchema;
use serde::Serialize;

use crate::blobs::{BlobNamespace, BlobStore};
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

/// The part of the server that runs jobs.
///
/// Called by the handlers of requests, any number at the same time, after the client was authorized. A backend trusts
/// namespace and account, and nothing else of a request.
///
/// * Calls that change something ([`create`](Backend::create), [`change`](Backend::change),
///   [`delete`](Backend::delete)) run to their end even if the client disconnects; only the end of the process
///   interrupts them. The same request, repeated with its idempotency key, then completes what is missing.
/// * All other calls may be dropped at any `.await` and leave nothing behind but caches. Work that a dropped call has
///   begun on the [`ComputePool`](crate::compute::ComputePool) runs to its end and is charged to the account.
/// * When a change returns, the [`Store`](millrace_store::Store) has it: the client's next read sees it. The agents may
///   follow later.
/// * Every error has the reason that the client receives. [`Unavailable`](crate::error::ErrorReason::Unavailable) means
///   that the same call may succeed later; all calls return it while the database or the cluster does not respond.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns `process` or `kubernetes`.
    fn name(&self) -> &'static str;

    /// Checks the job of `request`, and returns it as it would be stored, with notes for its user. Nothing is created.
    ///
    /// # Errors
    /// Those of [`Backend::create`]. A backend that can read the job's files also checks its data and the checkpoint
    /// that it starts from.
    async fn dry_run(&self, request: &SubmitRequest) -> Result<TrainJob>;

    /// Creates the job, or returns the one that the request with the same idempotency key created before. Idempotent
    /// with a key; without one, a repeated call fails because the name is taken.
    ///
    /// # Errors
    /// `Invalid`: it violates the schema or a rule. `BadParams`: it can never run. `AlreadyExists`: a live job has the
    /// name. `IdempotencyKeyReused`. `TooManyRequests`: planning it exceeds the account's budget.
    async fn create(&self, request: SubmitRequest) -> Result<SubmitResult>;

    /// Changes a job, whatever its version, and returns it. Planning the change is charged to `account`. Idempotent: a
    /// change that is in effect already is no error and changes nothing.
    ///
    /// # Errors
    /// `NotFound`: no live job has this name and UID. `BadParams`: the job could never run. `Conflict`: the job was
    /// changed concurrently, again and again.
    async fn change(&self, account: &str, job: JobTarget<'_>, change: JobChange) -> Result<TrainJob>;

    /// Deletes the job with this UID; returns its last state. Its agents end later, its history and its files stay. A
    /// job of that name with another UID is left alone.
    ///
    /// # Errors
    /// `NotFound`: the database has no such job. A job that is already being deleted may be an error.
    async fn delete(&self, namespace: &str, name: &str, uid: &str) -> Result<TrainJob>;

    /// Returns the appliance of this name as last observed; `None` if there is none.
    ///
    /// # Errors
    /// The database fails.
    async fn appliance(&self, name: &str) -> Result<Option<Appliance>>;

    /// Plans `request` against the current queue. Nothing is created. A job that is too large for the appliance or the
    /// host has a plan that says so.
    ///
    /// # Errors
    /// `Invalid`, `BadParams` and `TooManyRequests` as for [`Backend::create`].
    async fn plan(&self, request: &SubmitRequest) -> Result<crate::plan::JobPlan>;

    /// Lists the volumes that a job in this namespace can mount; none for a namespace that does not exist.
    ///
    /// # Errors
    /// The cluster fails.
    async fn volumes(&self, namespace: &str) -> Result<Vec<VolumeInfo>>;

    /// Returns the current namespace of this name; its users see only the history since its creation. `None` if there
    /// is none, or if namespaces are only names, as in the process backend.
    ///
    /// # Errors
    /// The cluster fails.
    async fn current_namespace(&self, namespace: &str) -> Result<Option<NamespaceVersion>>;

    /// Returns metrics in the text format of Prometheus. Does no I/O.
    fn metrics(&self) -> String;

    /// Returns a sentence about the loop of the backend that has work but makes no progress, if there is one. Does no
    /// I/O; the server is restarted while it returns one.
    fn stuck_loop(&self) -> Option<String> {
        None
    }

    /// Deletes the records of some of the jobs that ended before `before_ms`: finished in the process backend, deleted
    /// in a cluster, whose TrainJobs it leaves alone. Returns their number, 0 if none are left; called until then.
    ///
    /// # Errors
    /// The database fails. Records that were deleted before stay deleted.
    async fn delete_history_before(&self, before_ms: i64) -> Result<usize>;

    /// Stops the backend's tasks in an orderly way: agents that are processes save their state and end. Called once, as
    /// the last call, and not dropped.
    async fn shut_down(&self);

    /// Returns the store of uploads, and the namespace of this name in it.
    ///
    /// # Errors
    /// `NotFound`: this server stores no uploads, or there is no such namespace. The cluster fails.
    async fn blobs(&self, namespace: LabelName) -> Result<(&BlobStore, BlobNamespace)>;

    /// Removes the uploads that no job names and that were not used for a day. Called from time to time. Returns how
    /// many.
    ///
    /// # Errors
    /// An error of the file system; the cluster fails.
    async fn remove_unused_blobs(&self) -> Result<usize>;

    /// Returns access to the files in a job's model_dir. They may be opened later, by the first request of a file.
    ///
    /// # Errors
    /// `NotFound`: the job has written no files yet. `Gone`: its namespace may no longer read them.
    async fn files(&self, job: &TrainJob) -> Result<Arc<dyn Files>>;
}
