//! What was seen of a job whose truth is elsewhere.

use sqlx::AnyConnection;

use super::create::release_old_key;
use super::{NewJob, TRIES, add, check_uid, lives};
use crate::error::{Error, Result};
use crate::sql::{Columns, sql};
use crate::{Store, What};

impl Store {
    /// Notes what was seen, at `seen_ms`, of a job whose truth is elsewhere; false where nothing of it is new.
    ///
    /// A job that is not known yet is added, with its key, unless one that was made before has it: whoever copies a job copies
    /// what is written on it. Names are unique where the
    /// truth is, so another job that still lives here under this name is gone there: it is marked deleted, or the one that was
    /// seen is, where it is the older. Of a known job the content alone is written, and one that was deleted stays so.
    ///
    /// # Errors
    /// [`Error::BadUid`]; otherwise as [`Store::replace_job`].
    pub async fn put_job(&self, job: &NewJob, seen_ms: i64) -> Result<bool> {
        check_uid(&job.uid)?;
        let mut transaction = self.begin().await?;
        // Another server may see the same at the same time.
        for _ in 0..TRIES {
            if update(&mut transaction, job).await? {
                self.commit(transaction, &job.uid, What::Job).await?;
                return Ok(true);
            }
            if is_known(&mut transaction, &job.uid).await? {
                return Ok(false);
            }
            let gone = take_name(&mut transaction, job, seen_ms).await?;
            let job = with_key(&mut transaction, job, self.inner.key_life_ms).await?;
            let deleted = lives(&mut transaction, &job).await?.then_some(seen_ms);
            if add(&mut transaction, &job, deleted).await? {
                self.commit(transaction, &job.uid, What::Job).await?;
                gone.iter().for_each(|uid| self.tell(uid, What::Job));
                return Ok(true);
            }
        }
        Err(Error::Busy)
    }
}

/// Writes the content of a known job where it differs.
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

/// Marks whoever is in the way of this name deleted, unless it was made later. Gives their uids.
async fn take_name(on: &mut AnyConnection, job: &NewJob, seen_ms: i64) -> Result<Vec<String>> {
    sql("UPDATE jobs SET deleted_ms = $1, version = version + 1 \
         WHERE namespace = $2 AND name = $3 AND deleted_ms IS NULL AND created_ms <= $4 RETURNING uid")
    .bind(seen_ms)
    .bind(&job.namespace)
    .bind(&job.name)
    .bind(job.created_ms)
    .all(on, |row| row.text("uid"))
    .await
}

/// The job, its key taken from whoever was made later; without it where one that was made before has it.
async fn with_key(on: &mut AnyConnection, job: &NewJob, life_ms: i64) -> Result<NewJob> {
    let Some(key) = &job.key else { return Ok(job.clone()) };
    release_old_key(on, job, life_ms).await?;
    sql("UPDATE jobs SET idempotency_key = NULL, body_hash = NULL \
         WHERE namespace = $1 AND idempotency_key = $2 AND created_ms > $3")
    .bind(&job.namespace)
    .bind(&key.key)
    .bind(job.created_ms)
    .execute(&mut *on)
    .await?;
    let holder = sql("SELECT uid FROM jobs WHERE namespace = $1 AND idempotency_key = $2");
    let held = holder.bind(&job.namespace).bind(&key.key).first(on).await?.is_some();
    Ok(NewJob { key: job.key.clone().filter(|_| !held), ..job.clone() })
}
