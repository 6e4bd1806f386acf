//! A job is asked for, once or again.

use sqlx::AnyConnection;

use super::{Job, NewJob, TRIES, add, check_uid, first, lives, select};
use crate::error::{Error, Result};
use crate::sql::sql;
use crate::{Store, What};

/// What came of asking for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was made.
    New(Job),
    /// The same was asked before with this key, and this is what was made then, deleted meanwhile or not.
    Replayed(Job),
    /// Something else was asked before with this key; nothing was made.
    KeyReused,
    /// A job of this name lives; nothing was made.
    NameTaken,
}

impl Store {
    /// Makes a job, unless its key or its name says that there is one. The key is looked at first; one of a job that was made
    /// [`crate::Options::key_life`] or longer before this one is free again.
    ///
    /// # Errors
    /// [`Error::BadUid`], [`Error::UidTaken`]; otherwise as [`Store::replace_job`].
    pub async fn create_job(&self, job: &NewJob) -> Result<Created> {
        check_uid(&job.uid)?;
        let mut transaction = self.begin().await?;
        release_old_key(&mut transaction, job, self.inner.key_life_ms).await?;
        // In PostgreSQL another server's job may appear between two statements, or the one in the way be deleted.
        for _ in 0..TRIES {
            if let Some(replay) = replay(&mut transaction, job).await? {
                return Ok(replay);
            }
            if add(&mut transaction, job, None).await? {
                self.commit(transaction, &job.uid, What::Job).await?;
                return Ok(Created::New(made(job)));
            }
            if lives(&mut transaction, job).await? {
                return Ok(Created::NameTaken);
            }
        }
        Err(Error::UidTaken(job.uid.clone()))
    }

    /// The job that was made with this key, unless `now_ms` is beyond the key's life.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn keyed_job(&self, namespace: &str, key: &str, now_ms: i64) -> Result<Option<Job>> {
        let keyed = select().push("namespace = ").value(namespace).push(" AND idempotency_key = ").value(key);
        let young = keyed.push(" AND created_ms > ").value(now_ms.saturating_sub(self.inner.key_life_ms));
        first(young, &self.inner.read).await
    }
}

/// Takes the key from a job that has had it long enough, so that the index over keys and what is asked of them agree.
pub(super) async fn release_old_key(on: &mut AnyConnection, job: &NewJob, life_ms: i64) -> Result<()> {
    let Some(key) = &job.key else { return Ok(()) };
    sql("UPDATE jobs SET idempotency_key = NULL, body_hash = NULL \
         WHERE namespace = $1 AND idempotency_key = $2 AND created_ms <= $3")
    .bind(&job.namespace)
    .bind(&key.key)
    .bind(job.created_ms.saturating_sub(life_ms))
    .execute(on)
    .await?;
    Ok(())
}

/// What was made with this key before.
async fn replay(on: &mut AnyConnection, job: &NewJob) -> Result<Option<Created>> {
    let Some(key) = &job.key else { return Ok(None) };
    let keyed = select().push("namespace = ").value(&job.namespace).push(" AND idempotency_key = ").value(&key.key);
    Ok(first(keyed, on).await?.map(|before| match &before.key {
        Some(one) if one.body_hash == key.body_hash => Created::Replayed(before),
        _ => Created::KeyReused,
    }))
}

/// A new job as it is read back.
fn made(job: &NewJob) -> Job {
    let NewJob { uid, namespace, name, created_ms, submitted_by, key, content } = job.clone();
    Job {
        uid,
        namespace,
        name,
        created_ms,
        submitted_by,
        key,
        version: 1,
        deleted_ms: None,
        namespace_uid: None,
        content,
    }
}
