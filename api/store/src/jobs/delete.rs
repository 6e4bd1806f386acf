//! Retention: deletes jobs with all their records.

use crate::error::Result;
use crate::failures::count_failure;
use crate::sql::{RowColumns, sql};
use crate::{ChangedPart, MetricMode, Store};

/// Maximum number of rows that one statement deletes, so that other writers get their turn.
pub(crate) const DELETE_BATCH_ROWS: i64 = 10_000;

impl Store {
    /// Deletes a job with all its records, including its key. Uses several transactions; after an interruption it can
    /// be repeated. Returns false if there is no such job.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn delete_job(&self, uid: &str) -> Result<bool> {
        self.delete_journal(uid).await?;
        let mut transaction = self.begin().await?;
        // Deletes the remaining records, too, by foreign keys.
        let forgotten = sql("DELETE FROM jobs WHERE uid = $1").bind(uid).execute(&mut *transaction).await?;
        if forgotten == 1 {
            self.commit(transaction, uid, ChangedPart::Job).await?;
        }
        Ok(forgotten == 1)
    }

    /// Deletes up to `limit` jobs that finished or were deleted before `before_ms`, oldest first, and returns their
    /// UIDs. Call it again until it returns none.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`]; jobs that were deleted before the error stay deleted.
    pub async fn delete_finished_before(&self, before_ms: i64, limit: u32) -> Result<Vec<String>> {
        let expired =
            "SELECT uid FROM jobs WHERE finished_ms < $1 OR deleted_ms < $1 ORDER BY created_ms, uid LIMIT $2";
        self.delete_batch(expired, before_ms, limit).await
    }

    /// Like [`Store::delete_finished_before`], but only for jobs that were deleted. For a database that mirrors jobs: a
    /// job that still exists at its source must stay.
    ///
    /// # Errors
    /// Those of [`Store::delete_finished_before`].
    pub async fn delete_deleted_before(&self, before_ms: i64, limit: u32) -> Result<Vec<String>> {
        let expired = "SELECT uid FROM jobs WHERE deleted_ms < $1 ORDER BY created_ms, uid LIMIT $2";
        self.delete_batch(expired, before_ms, limit).await
    }

    async fn delete_batch(&self, expired: &'static str, before_ms: i64, limit: u32) -> Result<Vec<String>> {
        let expired = sql(expired);
        let expired =
            expired.bind(before_ms).bind(i64::from(limit)).all(&self.inner.read, |row| row.text("uid")).await?;
        for uid in &expired {
            self.delete_job(uid).await?;
        }
        Ok(expired)
    }

    /// Deletes a job's journal and curves; the number of its newest entry stays recorded. Uses several transactions.
    pub(crate) async fn delete_journal(&self, uid: &str) -> Result<()> {
        while self.delete_entries_batch(uid).await? {}
        for mode in MetricMode::ALL {
            while self.delete_points_batch(uid, mode).await? {}
        }
        let mut transaction = self.begin().await?;
        sql("UPDATE numbers SET bytes = 0 WHERE uid = $1").bind(uid).execute(&mut *transaction).await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(())
    }

    /// Deletes a batch of a journal; returns false once nothing is left.
    async fn delete_entries_batch(&self, uid: &str) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let deleted = sql("DELETE FROM entries WHERE uid = $1 \
                           AND number < (SELECT MIN(number) FROM entries WHERE uid = $1) + $2")
        .bind(uid)
        .bind(DELETE_BATCH_ROWS)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(deleted > 0)
    }

    /// Deletes a batch of a curve; returns false once nothing is left.
    async fn delete_points_batch(&self, uid: &str, mode: MetricMode) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let deleted = sql("DELETE FROM points WHERE uid = $1 AND mode = $2 \
                           AND step < (SELECT MIN(step) FROM points WHERE uid = $1 AND mode = $2) + $3")
        .bind(uid)
        .bind(mode.as_str())
        .bind(DELETE_BATCH_ROWS)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await.map_err(count_failure)?;
        Ok(deleted > 0)
    }
}
