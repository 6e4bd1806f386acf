//! Creates jobs, idempotently by their keys.

use sqlx::AnyConnection;

use super::{JobRecord, MAX_TRANSACTION_TRIES, NewJob, check_uid, first, insert_row, is_live, select};
use crate::error::{Error, Result};
use crate::sql::sql;
use crate::{ChangedPart, Store};

/// Result of creating a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateResult {
    New(JobRecord),
    /// The same request created this job before; it may be deleted by now.
    Replayed(JobRecord),
    /// The key was used with another body; nothing was created.
    KeyReused,
    /// A live job has this name; nothing was created.
    NameTaken,
}

impl Store {
    /// Creates a job, unless its key or its name is in use. The key is checked first. A key is free again if its job
    /// was created [`crate::StoreOptions::key_life`] or longer before this one.
    ///
    /// # Errors
    /// [`Error::BadUid`], [`Error::UidTaken`]; those of [`Store::replace_job`].
    pub async fn create_job(&self, job: &NewJob) -> Result<CreateResult> {
        check_uid(&job.uid)?;
        let mut transaction = self.begin().await?;
        release_expired_key(&mut transaction, job, self.inner.key_life_ms).await?;
        // In PostgreSQL, another server may create or delete the conflicting job between two statements.
        for _ in 0..MAX_TRANSACTION_TRIES {
            if let Some(replay) = find_replay(&mut transaction, job).await? {
                return Ok(replay);
            }
            if insert_row(&mut transaction, job, None).await? {
                self.commit(transaction, &job.uid, ChangedPart::Job).await?;
                return Ok(CreateResult::New(job_record(job)));
            }
            if is_live(&mut transaction, job).await? {
                return Ok(CreateResult::NameTaken);
            }
        }
        Err(Error::UidTaken(job.uid.clone()))
    }

    /// Returns the job that was created with this key, unless the key has expired at `now_ms`.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn keyed_job(&self, namespace: &str, key: &str, now_ms: i64) -> Result<Option<JobRecord>> {
        let keyed = select().push("namespace = ").value(namespace).push(" AND idempotency_key = ").value(key);
        let young = keyed.push(" AND created_ms > ").value(now_ms.saturating_sub(self.inner.key_life_ms));
        first(young, &self.inner.read).await
    }
}

/// Removes the key from the job that has it if the key has expired, so that the unique index over keys agrees with
/// their validity.
pub(super) async fn release_expired_key(on: &mut AnyConnection, job: &NewJob, life_ms: i64) -> Result<()> {
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

/// Returns the result if the key is in use.
async fn find_replay(on: &mut AnyConnection, job: &NewJob) -> Result<Option<CreateResult>> {
    let Some(key) = &job.key else { return Ok(None) };
    let keyed = select().push("namespace = ").value(&job.namespace).push(" AND idempotency_key = ").value(&key.key);
    Ok(first(keyed, on).await?.map(|before| match &before.key {
        Some(one) if one.body_hash == key.body_hash => CreateResult::Replayed(before),
        _ => CreateResult::KeyReused,
    }))
}

/// Returns a new job as it would be read back.
fn job_record(job: &NewJob) -> JobRecord {
    let NewJob { uid, namespace, name, created_ms, submitted_by, key, content } = job.clone();
    JobRecord {
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
