//! Jobs: the existing ones, and deleted ones until their retention ends.
//!
//! With the process backend, this row is the job. With Kubernetes, the TrainJob is authoritative, and the row is its
//! last observed version, which is kept after the deletion of the TrainJob.

mod create;
mod cursor;
mod delete;
mod list;
mod namespace;
mod upsert;

use sqlx::any::AnyRow;
use sqlx::{Any, AnyConnection, Executor};

pub use create::CreateResult;
pub use cursor::PageCursor;
pub(crate) use delete::DELETE_BATCH_ROWS;
pub use list::{JobFilter, JobPage};
pub use namespace::NamespaceVersion;

use crate::error::{Error, Result};
use crate::limits::MAX_UID_LENGTH;
use crate::sql::{RowColumns, Sql, SqlValue, insert, signed, sql};
use crate::{ChangedPart, Store};

/// Tries of a write that conflicts with another server's.
const MAX_TRANSACTION_TRIES: usize = 3;

/// A job to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Globally unique, never reused: 1 to 64 letters, digits and `-`.
    pub uid: String,
    pub namespace: String,
    /// Unique among the live jobs of the namespace.
    pub name: String,
    /// Time of creation, in ms.
    pub created_ms: i64,
    /// User who submitted it, if known.
    pub submitted_by: Option<String>,
    /// Idempotency key of the request.
    pub key: Option<IdempotencyKey>,
    pub content: JobContent,
}

/// An idempotency key: a repeated request with the same key returns the same job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key as the client sent it; unique in the namespace.
    pub key: String,
    /// Digest of the request's body. The same key with another digest is an error.
    pub body_hash: String,
}

/// The part of a job that changes. State and end are also in the document; they are separate columns for lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobContent {
    /// The TrainJob as JSON.
    pub document: String,
    /// The job's state, such as `Training`; `None` before the first reconcile.
    pub state: Option<String>,
    /// Time of the end, in ms; `None` before.
    pub finished_ms: Option<i64>,
}

/// The row of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// Globally unique, never reused.
    pub uid: String,
    pub namespace: String,
    /// Name. At most one job of a name is live.
    pub name: String,
    /// Time of creation, in ms.
    pub created_ms: i64,
    /// User who submitted it, if known.
    pub submitted_by: Option<String>,
    /// Idempotency key of the request, until the key is released for another job.
    pub key: Option<IdempotencyKey>,
    /// 1 at creation, raised by every write of the content and by the deletion.
    pub version: u64,
    /// Time of deletion, in ms; `None` while the job is live.
    pub deleted_ms: Option<i64>,
    /// UID of its namespace, if namespaces have one and it is known.
    pub namespace_uid: Option<String>,
    pub content: JobContent,
}

/// Begins a query for all columns of jobs; a condition must follow.
fn select() -> Sql {
    sql("SELECT uid, namespace, name, created_ms, submitted_by, idempotency_key, body_hash, version, document, state, \
         finished_ms, deleted_ms, namespace_uid FROM jobs WHERE ")
}

impl JobRecord {
    fn read(row: &AnyRow) -> Result<Self> {
        Self::from_columns(row).map_err(|error| error.in_table("jobs"))
    }

    fn from_columns(row: &AnyRow) -> Result<Self> {
        let key = row.maybe_text("idempotency_key")?.zip(row.maybe_text("body_hash")?);
        Ok(Self {
            uid: row.text("uid")?,
            namespace: row.text("namespace")?,
            name: row.text("name")?,
            created_ms: row.time("created_ms")?,
            submitted_by: row.maybe_text("submitted_by")?,
            key: key.map(|(key, body_hash)| IdempotencyKey { key, body_hash }),
            version: row.number("version")?,
            deleted_ms: row.maybe_time("deleted_ms")?,
            namespace_uid: row.maybe_text("namespace_uid")?,
            content: JobContent {
                document: row.text("document")?,
                state: row.maybe_text("state")?,
                finished_ms: row.maybe_time("finished_ms")?,
            },
        })
    }
}

async fn first<'e>(query: Sql, on: impl Executor<'e, Database = Any>) -> Result<Option<JobRecord>> {
    query.first(on).await?.as_ref().map(JobRecord::read).transpose()
}

fn check_uid(uid: &str) -> Result<()> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match uid.len() {
        1..=MAX_UID_LENGTH if uid.bytes().all(good) => Ok(()),
        _ => Err(Error::BadUid(uid.to_owned())),
    }
}

/// Adds a row. Returns false and changes nothing if its UID, its key, or its name while live is in use.
async fn insert_row(on: &mut AnyConnection, job: &NewJob, deleted_ms: Option<i64>) -> Result<bool> {
    let added =
        sql("INSERT INTO jobs (uid, namespace, name, created_ms, submitted_by, idempotency_key, body_hash, version, \
                     document, state, finished_ms, deleted_ms) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, $9, $10, $11) ON CONFLICT DO NOTHING")
        .bind(&job.uid)
        .bind(&job.namespace)
        .bind(&job.name)
        .bind(job.created_ms)
        .bind(job.submitted_by.clone())
        .bind(job.key.as_ref().map(|key| key.key.as_str()))
        .bind(job.key.as_ref().map(|key| key.body_hash.as_str()))
        .bind(&job.content.document)
        .bind(job.content.state.clone())
        .bind(job.content.finished_ms)
        .bind(deleted_ms)
        .execute(&mut *on)
        .await?;
    if added == 1 {
        insert(on, "INSERT INTO numbers (uid, entry, event)", vec![[SqlValue::from(&job.uid), 0.into(), 0.into()]])
            .await?;
    }
    Ok(added == 1)
}

/// Whether a live job has this name.
async fn is_live(on: &mut AnyConnection, job: &NewJob) -> Result<bool> {
    let named = sql("SELECT uid FROM jobs WHERE namespace = $1 AND name = $2 AND deleted_ms IS NULL");
    Ok(named.bind(&job.namespace).bind(&job.name).first(on).await?.is_some())
}

impl Store {
    /// Returns the job with this UID, live or deleted.
    ///
    /// # Errors
    /// Those of every read: [`Error::Busy`], [`Error::ConnectionLost`], [`Error::Damaged`],
    /// [`Error::StatementRejected`].
    pub async fn job(&self, uid: &str) -> Result<Option<JobRecord>> {
        first(select().push("uid = ").value(uid), &self.inner.read).await
    }

    /// Returns the live job with this name.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn live_job(&self, namespace: &str, name: &str) -> Result<Option<JobRecord>> {
        let named = select().push("namespace = ").value(namespace).push(" AND name = ").value(name);
        first(named.push(" AND deleted_ms IS NULL"), &self.inner.read).await
    }

    /// Returns the live job with this name, or the one that was created last if none is live.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn newest_job(&self, namespace: &str, name: &str) -> Result<Option<JobRecord>> {
        let named = select().push("namespace = ").value(namespace).push(" AND name = ").value(name);
        let by_age = " ORDER BY CASE WHEN deleted_ms IS NULL THEN 0 ELSE 1 END, created_ms DESC, uid DESC LIMIT 1";
        first(named.push(by_age), &self.inner.read).await
    }

    /// Returns every live job, oldest first; a server starts from these.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn live_jobs(&self) -> Result<Vec<JobRecord>> {
        let live = select().push("deleted_ms IS NULL ORDER BY created_ms, uid");
        live.all(&self.inner.read, JobRecord::read).await
    }

    /// Returns every job that is deleted, has not finished, and is in this state.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn deleted_jobs(&self, state: &str) -> Result<Vec<JobRecord>> {
        let deleted = select().push("deleted_ms IS NOT NULL AND finished_ms IS NULL AND state = ").value(state);
        deleted.all(&self.inner.read, JobRecord::read).await
    }

    /// Replaces the content of a live job with version `expected`, and returns its new version. Returns `None` and
    /// writes nothing if the version differs or the job is deleted: the change has to be decided again.
    ///
    /// # Errors
    /// Those of [`Store::job`]; [`Error::NoSpace`].
    pub async fn replace_job(&self, uid: &str, expected: u64, content: &JobContent) -> Result<Option<u64>> {
        let mut transaction = self.begin().await?;
        let replaced = sql("UPDATE jobs SET document = $1, state = $2, finished_ms = $3, version = version + 1 \
                            WHERE uid = $4 AND version = $5 AND deleted_ms IS NULL")
        .bind(&content.document)
        .bind(content.state.clone())
        .bind(content.finished_ms)
        .bind(uid)
        .bind(signed("the version", expected)?)
        .execute(&mut *transaction)
        .await?;
        if replaced == 0 {
            return Ok(None);
        }
        self.commit(transaction, uid, ChangedPart::Job).await?;
        Ok(Some(expected + 1))
    }

    /// Marks a job deleted, which frees its name. Returns false if it is deleted already or does not exist.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn mark_deleted(&self, uid: &str, at_ms: i64) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let marked =
            sql("UPDATE jobs SET deleted_ms = $1, version = version + 1 WHERE uid = $2 AND deleted_ms IS NULL")
                .bind(at_ms)
                .bind(uid)
                .execute(&mut *transaction)
                .await?;
        if marked == 1 {
            self.commit(transaction, uid, ChangedPart::Job).await?;
        }
        Ok(marked == 1)
    }
}
