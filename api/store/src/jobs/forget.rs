//! Retention: deletes jobs with all their records.

use crate::error::Result;
use crate::sql::{Columns, sql};
use crate::{Mode, Store, What};

/// Maximum number of rows that one statement deletes, so that other writers get their turn.
pub(crate) const PIECE: i64 = 10_000;

impl Store {
    /// Deletes a job with all its records, including its key. Uses several transactions; after an interruption it can
    /// be repeated. Returns false if there is no such job.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn forget(&self, uid: &str) -> Result<bool> {
        self.forget_journal(uid).await?;
        let mut transaction = self.begin().await?;
        // Deletes the remaining records, too, by foreign keys.
        let forgotten = sql("DELETE FROM jobs WHERE uid = $1").bind(uid).execute(&mut *transaction).await?;
        if forgotten == 1 {
            self.commit(transaction, uid, What::Job).await?;
        }
        Ok(forgotten == 1)
    }

    /// Deletes up to `limit` jobs that finished or were deleted before `before_ms`, oldest first, and returns their
    /// UIDs. Call it again until it returns none.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`]; jobs that were deleted before the error stay deleted.
    pub async fn forget_before(&self, before_ms: i64, limit: u32) -> Result<Vec<String>> {
        let over = "SELECT uid FROM jobs WHERE finished_ms < $1 OR deleted_ms < $1 ORDER BY created_ms, uid LIMIT $2";
        self.forget_all(over, before_ms, limit).await
    }

    /// Like [`Store::forget_before`], but only for jobs that were deleted. For a database that mirrors jobs: a job that
    /// still exists at its source must stay.
    ///
    /// # Errors
    /// Those of [`Store::forget_before`].
    pub async fn forget_deleted_before(&self, before_ms: i64, limit: u32) -> Result<Vec<String>> {
        let over = "SELECT uid FROM jobs WHERE deleted_ms < $1 ORDER BY created_ms, uid LIMIT $2";
        self.forget_all(over, before_ms, limit).await
    }

    async fn forget_all(&self, over: &'static str, before_ms: i64, limit: u32) -> Result<Vec<String>> {
        let over = sql(over);
        let over = over.bind(before_ms).bind(i64::from(limit)).all(&self.inner.read, |row| row.text("uid")).await?;
        for uid in &over {
            self.forget(uid).await?;
        }
        Ok(over)
    }

    /// Deletes a job's journal and curves; the number of its newest entry stays recorded. Uses several transactions.
    pub(crate) async fn forget_journal(&self, uid: &str) -> Result<()> {
        while self.forget_entries(uid).await? {}
        for mode in Mode::ALL {
            while self.forget_points(uid, mode).await? {}
        }
        let mut transaction = self.begin().await?;
        sql("UPDATE numbers SET bytes = 0 WHERE uid = $1").bind(uid).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Deletes a batch of a journal; returns false once nothing is left.
    async fn forget_entries(&self, uid: &str) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let deleted = sql("DELETE FROM entries WHERE uid = $1 \
                           AND number < (SELECT MIN(number) FROM entries WHERE uid = $1) + $2")
        .bind(uid)
        .bind(PIECE)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(deleted > 0)
    }

    /// Deletes a batch of a curve; returns false once nothing is left.
    async fn forget_points(&self, uid: &str, mode: Mode) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let deleted = sql("DELETE FROM points WHERE uid = $1 AND mode = $2 \
                           AND step < (SELECT MIN(step) FROM points WHERE uid = $1 AND mode = $2) + $3")
        .bind(uid)
        .bind(mode.as_str())
        .bind(PIECE)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(deleted > 0)
    }
}
