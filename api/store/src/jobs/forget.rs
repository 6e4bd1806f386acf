//! Retention: a job and all under it are forgotten.

use crate::error::Result;
use crate::sql::{Columns, sql};
use crate::{Mode, Store, What};

/// The most rows that are deleted at once, so that other writers get their turn.
pub(crate) const PIECE: i64 = 10_000;

impl Store {
    /// Forgets a job and all under it, its key too. Made in pieces: one that was interrupted is repeated. False where there is
    /// no such job.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn forget(&self, uid: &str) -> Result<bool> {
        self.forget_journal(uid).await?;
        let mut transaction = self.begin().await?;
        // What is left under it goes with it.
        let forgotten = sql("DELETE FROM jobs WHERE uid = $1").bind(uid).execute(&mut *transaction).await?;
        if forgotten == 1 {
            self.commit(transaction, uid, What::Job).await?;
        }
        Ok(forgotten == 1)
    }

    /// Forgets up to `limit` jobs that were over or deleted before `before_ms`, oldest first, and gives their uids. Call it
    /// again until it gives none.
    ///
    /// # Errors
    /// As [`Store::replace_job`]; those that were forgotten by then are.
    pub async fn forget_before(&self, before_ms: i64, limit: u32) -> Result<Vec<String>> {
        let over = "SELECT uid FROM jobs WHERE finished_ms < $1 OR deleted_ms < $1 ORDER BY created_ms, uid LIMIT $2";
        self.forget_all(over, before_ms, limit).await
    }

    /// As [`Store::forget_before`], but only jobs that were deleted: where the truth is elsewhere, what lives there is known
    /// here.
    ///
    /// # Errors
    /// As [`Store::forget_before`].
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

    /// Removes a job's journal, and its curves with it; the number of its newest entry stays known. Made in pieces.
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

    /// A piece of a journal; false once nothing is left.
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

    /// A piece of a curve; false once nothing is left.
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
