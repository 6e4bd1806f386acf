//! Jobs: every one there is and, until retention, was.
//!
//! With processes for a backend this row is the job. In a cluster the truth is Kubernetes', and the row what was last seen of
//! it, kept beyond the TrainJob's deletion.

mod create;
mod cursor;
mod forget;
mod list;
mod namespace;
mod put;

use sqlx::any::AnyRow;
use sqlx::{Any, AnyConnection, Executor};

pub use create::Created;
pub use cursor::Cursor;
pub(crate) use forget::PIECE;
pub use list::{Filter, Page};
pub use namespace::Incarnation;

use crate::error::{Error, Result};
use crate::sql::{Columns, Sql, Value, insert, signed, sql};
use crate::{Store, What};

/// The most characters of a uid; one of Kubernetes has 36.
pub(crate) const UID_MAX: usize = 64;

/// How often a write begins anew because another server's came between.
const TRIES: usize = 3;

/// A job to be remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Unique for ever: 1 to 64 letters, digits and `-`.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name, unique in the namespace while the job lives.
    pub name: String,
    /// When it was made, ms.
    pub created_ms: i64,
    /// Who asked for it, where that is known.
    pub submitted_by: Option<String>,
    /// The key it was asked for with.
    pub key: Option<Key>,
    /// What of it may change.
    pub content: Content,
}

/// An idempotency key: whoever asks again with the same gets the same job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// As the client sent it; unique in the namespace.
    pub key: String,
    /// A digest of what was asked: the same key with another is a mistake.
    pub body_hash: String,
}

/// What changes in the life of a job. State and end stand in the document too; they are told apart for lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The TrainJob, JSON.
    pub document: String,
    /// Its STATE; none right after creation.
    pub state: Option<String>,
    /// When it was over, ms; none before.
    pub finished_ms: Option<i64>,
}

/// A job as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Unique for ever.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name; of several jobs of one name, one at most lives.
    pub name: String,
    /// When it was made, ms.
    pub created_ms: i64,
    /// Who asked for it, where that is known.
    pub submitted_by: Option<String>,
    /// The key it was asked for with, until a later job takes it.
    pub key: Option<Key>,
    /// 1 at first, raised by every write of the content and by the deletion.
    pub version: u64,
    /// When it was deleted, ms; none while it lives.
    pub deleted_ms: Option<i64>,
    /// UID of its namespace, where namespaces have one and it is known.
    pub namespace_uid: Option<String>,
    /// What of it changes.
    pub content: Content,
}

/// All of a job; more may follow.
fn select() -> Sql {
    sql("SELECT uid, namespace, name, created_ms, submitted_by, idempotency_key, body_hash, version, document, state, \
         finished_ms, deleted_ms, namespace_uid FROM jobs WHERE ")
}

impl Job {
    fn read(row: &AnyRow) -> Result<Self> {
        let key = row.maybe_text("idempotency_key")?.zip(row.maybe_text("body_hash")?);
        Ok(Self {
            uid: row.text("uid")?,
            namespace: row.text("namespace")?,
            name: row.text("name")?,
            created_ms: row.time("created_ms")?,
            submitted_by: row.maybe_text("submitted_by")?,
            key: key.map(|(key, body_hash)| Key { key, body_hash }),
            version: row.number("version")?,
            deleted_ms: row.maybe_time("deleted_ms")?,
            namespace_uid: row.maybe_text("namespace_uid")?,
            content: Content {
                document: row.text("document")?,
                state: row.maybe_text("state")?,
                finished_ms: row.maybe_time("finished_ms")?,
            },
        })
    }
}

async fn first<'e>(query: Sql, on: impl Executor<'e, Database = Any>) -> Result<Option<Job>> {
    query.first(on).await?.as_ref().map(Job::read).transpose()
}

fn check_uid(uid: &str) -> Result<()> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match uid.len() {
        1..=UID_MAX if uid.bytes().all(good) => Ok(()),
        _ => Err(Error::BadUid(uid.to_owned())),
    }
}

/// Adds a row, unless its uid, its live name or its key is another's.
async fn add(on: &mut AnyConnection, job: &NewJob, deleted_ms: Option<i64>) -> Result<bool> {
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
        insert(on, "INSERT INTO numbers (uid, entry, event)", vec![[Value::from(&job.uid), 0.into(), 0.into()]])
            .await?;
    }
    Ok(added == 1)
}

/// Whether a job of this name lives.
async fn lives(on: &mut AnyConnection, job: &NewJob) -> Result<bool> {
    let named = sql("SELECT uid FROM jobs WHERE namespace = $1 AND name = $2 AND deleted_ms IS NULL");
    Ok(named.bind(&job.namespace).bind(&job.name).first(on).await?.is_some())
}

impl Store {
    /// The job of a uid, deleted or not.
    ///
    /// # Errors
    /// Those of any reading: [`Error::Busy`], [`Error::Broken`], [`Error::Damaged`], [`Error::Refused`].
    pub async fn job(&self, uid: &str) -> Result<Option<Job>> {
        first(select().push("uid = ").value(uid), &self.inner.read).await
    }

    /// The job of this name that lives.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn live_job(&self, namespace: &str, name: &str) -> Result<Option<Job>> {
        let named = select().push("namespace = ").value(namespace).push(" AND name = ").value(name);
        first(named.push(" AND deleted_ms IS NULL"), &self.inner.read).await
    }

    /// The job of this name that lives or, where none does, the one that was made last.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn newest_job(&self, namespace: &str, name: &str) -> Result<Option<Job>> {
        let named = select().push("namespace = ").value(namespace).push(" AND name = ").value(name);
        let by_age = " ORDER BY CASE WHEN deleted_ms IS NULL THEN 0 ELSE 1 END, created_ms DESC, uid DESC LIMIT 1";
        first(named.push(by_age), &self.inner.read).await
    }

    /// Every job that lives, oldest first: what a server begins with.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn live_jobs(&self) -> Result<Vec<Job>> {
        let live = select().push("deleted_ms IS NULL ORDER BY created_ms, uid");
        live.all(&self.inner.read, Job::read).await
    }

    /// Every job that is marked deleted, not over, and in this state.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn deleted_jobs(&self, state: &str) -> Result<Vec<Job>> {
        let deleted = select().push("deleted_ms IS NOT NULL AND finished_ms IS NULL AND state = ").value(state);
        deleted.all(&self.inner.read, Job::read).await
    }

    /// Writes what changed of a job that lives, and gives its new version; none where another version stands there, or the
    /// job is gone: then nothing was written, and what led to it is to be decided anew.
    ///
    /// # Errors
    /// As [`Store::job`], and [`Error::NoSpace`].
    pub async fn replace_job(&self, uid: &str, expected: u64, content: &Content) -> Result<Option<u64>> {
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
        self.commit(transaction, uid, What::Job).await?;
        Ok(Some(expected + 1))
    }

    /// Notes that a job is deleted; its name is free then. False where it was deleted before, or is not there.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn mark_deleted(&self, uid: &str, at_ms: i64) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let marked =
            sql("UPDATE jobs SET deleted_ms = $1, version = version + 1 WHERE uid = $2 AND deleted_ms IS NULL")
                .bind(at_ms)
                .bind(uid)
                .execute(&mut *transaction)
                .await?;
        if marked == 1 {
            self.commit(transaction, uid, What::Job).await?;
        }
        Ok(marked == 1)
    }
}
