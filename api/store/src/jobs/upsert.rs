//! Writes observed versions of jobs that are mirrored from another source, such as a cluster.

use sqlx::AnyConnection;

use super::create::release_expired_key;
use super::{MAX_TRANSACTION_TRIES, NewJob, check_uid, insert_row, is_live};
use crate::error::{Error, Result};
use crate::sql::{RowColumns, sql};
use crate::{ChangedPart, Store};

impl Store {
    /// Writes the version of a mirrored job that was observed at `seen_ms`; returns false if it contains nothing new.
    ///
    /// An unknown job is added. Its key comes from an annotation that users can copy to other jobs, so the key is
    /// dropped if a job that was created earlier has it. Names are unique at the source, so if another live row has the
    /// name, one of the two jobs no longer exists there: the older one is marked deleted, at `seen_ms`. For a known job
    /// only the content is written; a deleted job stays deleted.
    ///
    /// # Errors
    /// [`Error::BadUid`], [`Error::Busy`]; those of [`Store::replace_job`].
    pub async fn upsert_job(&self, job: &NewJob, seen_ms: i64) -> Result<bool> {
        check_uid(&job.uid)?;
        let mut transaction = self.begin().await?;
        // Another server may write the same at the same time.
        for _ in 0..MAX_TRANSACTION_TRIES {
            if update(&mut transaction, job).await? {
                self.commit(transaction, &job.uid, ChangedPart::Job).await?;
                return Ok(true);
            }
            if is_known(&mut transaction, &job.uid).await? {
                return Ok(false);
            }
            let released = release_name(&mut transaction, job, seen_ms).await?;
            let job = with_acquired_key(&mut transaction, job, self.inner.key_life_ms).await?;
            let deleted = is_live(&mut transaction, &job).await?.then_some(seen_ms);
            if insert_row(&mut transaction, &job, deleted).await? {
                self.commit(transaction, &job.uid, ChangedPart::Job).await?;
                released.iter().for_each(|uid| self.notify(uid, ChangedPart::Job));
                return Ok(true);
            }
        }
        Err(Error::Busy)
    }
}

/// Writes the content of a known job if its document differs; returns whether it did.
async fn update(on: &mut AnyConnection, job: &NewJob) -> Result<bool> {
    let written = sql("UPDATE jobs SET document = $1, state = $2, finished_ms = $3, version = version + 1 \
                       WHERE uid = $4 AND document <> $1")
    .bind(&job.content.document)
    .bind(job.content.state.clone())
    .bind(job.content.finished_ms)
    .bind(&job.uid)
    .execute(on)
    .await?;
    Ok(written == 1)
}

async fn is_known(on: &mut AnyConnection, uid: &str) -> Result<bool> {
    Ok(sql("SELECT uid FROM jobs WHERE uid = $1").bind(uid).first(on).await?.is_some())
}

/// Marks live jobs with this name deleted unless they were created later; returns their UIDs.
async fn release_name(on: &mut AnyConnection, job: &NewJob, seen_ms: i64) -> Result<Vec<String>> {
    sql("UPDATE jobs SET deleted_ms = $1, version = version + 1 \
         WHERE namespace = $2 AND name = $3 AND deleted_ms IS NULL AND created_ms <= $4 RETURNING uid")
    .bind(seen_ms)
    .bind(&job.namespace)
    .bind(&job.name)
    .bind(job.created_ms)
    .all(on, |row| row.text("uid"))
    .await
}

/// Returns the job with its key, after taking the key from jobs that were created later; without the key if a job that
/// was created earlier has it.
async fn with_acquired_key(on: &mut AnyConnection, job: &NewJob, life_ms: i64) -> Result<NewJob> {
    let Some(key) = &job.key else { return Ok(job.clone()) };
    release_expired_key(on, job, life_ms).await?;
    sql("UPDATE jobs SET idempotency_key = NULL, body_hash = NULL \
         WHERE namespace = $1 AND idempotency_key = $2 AND created_ms > $3")
    .bind(&job.namespace)
    .bind(&key.key)
    .bind(job.created_ms)
    .execute(&mut *on)
    .await?;
    let holder = sql("SELECT uid FROM jobs WHERE namespace = $1 AND idempotency_key = $2");
    let is_held = holder.bind(&job.namespace).bind(&key.key).first(on).await?.is_some();
    Ok(NewJob { key: job.key.clone().filter(|_| !is_held), ..job.clone() })
}
