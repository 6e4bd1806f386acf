//! What the REST server stands on: something that runs jobs. There are two of them, and handlers know nothing else.
//!
//! A backend acts, and keeps the [`Store`] up to date with what is true of its jobs; whatever is only
//! read, jobs, events, metrics and logs, is read from there.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{Appliance, TrainJob};
use millrace_params::{FileName, ObjectName};
use millrace_store::{Incarnation, Job, Key, Store};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::files::Files;
use crate::refusal::{Refusal, Result};

/// Annotation of a job: who asked for it.
pub const SUBMITTED_BY: &str = "millrace.dev/submitted-by";
/// Annotation of a job: the key of the request that made it.
pub const KEY_ANNOTATION: &str = "millrace.dev/idempotency-key";
/// Annotation of a job: the digest of that request's body, so that another body with its key is known even without a database.
pub const BODY_ANNOTATION: &str = "millrace.dev/idempotency-digest";

/// A job that is asked for.
#[derive(Clone, Debug)]
pub struct Order {
    /// Where.
    pub namespace: String,
    /// The TrainJob as JSON, its name and annotations set.
    pub object: Arc<Value>,
    /// Small texts that were uploaded with it.
    pub texts: Option<Texts>,
    /// Who asks.
    pub submitter: String,
    /// Whose budget what it takes to check and plan the job is counted on.
    pub account: String,
    /// Names the request, so that a second one makes no second job.
    pub key: Option<Key>,
    /// Whether who asks may make the job: only then is told which of its files are there.
    pub may_create: bool,
}

impl Order {
    /// The job that the same request made before in the namespace as it is now, as far as `store` remembers.
    ///
    /// # Errors
    /// The key came before with another body, or the database's.
    pub async fn before(&self, store: &Store, incarnation: Option<&Incarnation>) -> Result<Option<Job>> {
        let Some(key) = &self.key else { return Ok(None) };
        let now = Timestamp::now().as_millisecond();
        let Some(row) = store.keyed_job(&self.namespace, &key.key, now).await? else { return Ok(None) };
        if incarnation.is_some_and(|namespace| !namespace.has(&row)) {
            // It was made in an earlier namespace of the name, perhaps by others.
            return Ok(None);
        }
        match &row.key {
            Some(known) if known.body_hash == key.body_hash => Ok(Some(row)),
            _ => Err(Refusal::key_reused()),
        }
    }
}

/// The small texts of one job, at least one, and the ConfigMap for them. Both were named here and not by a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts {
    /// Name of the ConfigMap, which the job's volume of texts has as its source.
    pub config_map: ObjectName,
    /// The files.
    pub files: Vec<Text>,
}

/// A small text that a user's params name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// The file's name in its volume.
    pub name: FileName,
    /// What is in it.
    pub content: String,
}

/// What came of an [`Order`].
#[derive(Clone, Debug)]
pub enum Created {
    /// A new job.
    New(Box<TrainJob>),
    /// The job that the same request made before.
    Replayed(Box<TrainJob>),
}

/// A job that is to be changed.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// A change that a user may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `spec.suspend`.
    Suspend(bool),
    /// `spec.numCsx`.
    Scale(u32),
}

/// A volume that params can name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Volume {
    /// What a job's `volumes` call it: the name of its claim.
    pub name: String,
    /// What it is.
    pub message: String,
}

/// Something that runs jobs.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// `process` or `kubernetes`.
    fn name(&self) -> &'static str;

    /// What the job of `order` would be kept as.
    async fn dry_run(&self, order: &Order) -> Result<TrainJob>;

    /// Makes the job, unless the same request made it before.
    async fn create(&self, order: Order) -> Result<Created>;

    /// Changes the job of this UID, at the cost of an account's budget.
    async fn change(&self, account: &str, job: Target<'_>, change: Change) -> Result<TrainJob>;

    /// Deletes the job of this UID; what it was.
    async fn delete(&self, namespace: &str, name: &str, uid: &str) -> Result<TrainJob>;

    /// The appliance of this name.
    async fn appliance(&self, name: &str) -> Result<Option<Appliance>>;

    /// What would become of `order` now.
    async fn plan(&self, order: &Order) -> Result<crate::plan::Plan>;

    /// What a job in this namespace can mount.
    async fn volumes(&self, namespace: &str) -> Result<Vec<Volume>>;

    /// The namespace of this name as it is now, whose history alone its users see; `None` where namespaces are nothing but
    /// names, or there is none.
    async fn incarnation(&self, namespace: &str) -> Result<Option<Incarnation>>;

    /// Numbers for Prometheus.
    fn metrics(&self) -> String;

    /// Which loop of the backend makes no progress although it has work, if one does: a sentence.
    fn stuck(&self) -> Option<String> {
        None
    }

    /// Forgets the history of some of the jobs that were over before `before_ms`; how many, none when there are no more.
    async fn forget(&self, before_ms: i64) -> Result<usize>;

    /// Ends what runs for it, in good order.
    async fn shut_down(&self);

    /// The files of a job's model_dir.
    async fn files(&self, job: &TrainJob) -> Result<Arc<dyn Files>>;
}
