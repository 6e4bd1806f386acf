//! Bounds the history: long curves are thinned, and journals are removed when all together are too large.
//!
//! The newest [`UNTHINNED_STEPS`] steps of a curve are kept. Of an equally long range before them, every second step is
//! kept, of a range twice as long before that every fourth, and so on. The kept steps are multiples of powers of two,
//! so what is kept later is a subset of what is kept now. A million steps leave about 37,000 points, a billion 77,000.
//! The job's model_dir has the whole curve.

use super::MetricMode;
use crate::Store;
use crate::error::Result;
use crate::failures::count_failure;
use crate::jobs::DELETE_BATCH_ROWS;
use crate::sql::{RowColumns, Sql, sql};

/// Number of the newest steps of a curve that are not thinned.
pub const UNTHINNED_STEPS: i64 = 8192;
/// Approximate bytes of an entry without its body.
pub(super) const ENTRY_OVERHEAD_BYTES: i64 = 128;
/// Journals with fewer bytes have no curve that is worth thinning.
const MIN_THINNED_JOURNAL_BYTES: i64 = 1 << 20;

/// Range of a long curve.
struct LongCurve {
    first: i64,
    last: i64,
    /// Number of the first entry that is not thinned.
    recent: i64,
}

impl Store {
    /// Thins all long curves and returns the number of deleted entries. Uses several transactions; idempotent.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn thin_curves(&self) -> Result<u64> {
        let long = sql("SELECT uid FROM numbers WHERE bytes > $1 ORDER BY uid").bind(MIN_THINNED_JOURNAL_BYTES);
        let mut deleted = 0;
        for uid in long.all(&self.inner.read, |row| row.text("uid")).await? {
            let before = deleted;
            for mode in MetricMode::ALL {
                deleted += self.thin_curve(&uid, mode).await?;
            }
            if deleted > before {
                self.measure_journal(&uid).await?;
            }
        }
        Ok(deleted)
    }

    /// Returns the approximate bytes of all journals.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn history_bytes(&self) -> Result<u64> {
        let total = sql("SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) AS total FROM numbers");
        total.first(&self.inner.read).await?.map_or(Ok(0), |row| row.number("total"))
    }

    /// Removes journals until all together have at most `most` bytes: first those of finished or deleted jobs, the
    /// oldest first, then the older halves of the logs of the largest other journals. Returns the UIDs of the jobs that
    /// lost entries. Jobs and their events stay.
    ///
    /// # Errors
    /// Those of [`Store::replace_job`].
    pub async fn shrink_history(&self, max_bytes: u64) -> Result<Vec<String>> {
        let mut shrunk = Vec::new();
        while self.history_bytes().await? > max_bytes {
            let oldest_finished = sql("SELECT n.uid FROM numbers n JOIN jobs j ON j.uid = n.uid \
                            WHERE n.bytes > 0 AND (j.finished_ms IS NOT NULL OR j.deleted_ms IS NOT NULL) \
                            ORDER BY COALESCE(j.finished_ms, j.deleted_ms), n.uid LIMIT 1");
            let largest = sql("SELECT uid FROM numbers WHERE bytes > 0 ORDER BY bytes DESC, uid LIMIT 1");
            let uid = async |query: Sql| query.first(&self.inner.read).await?.map(|row| row.text("uid")).transpose();
            if let Some(uid) = uid(oldest_finished).await? {
                self.delete_journal(&uid).await?;
                shrunk.push(uid);
            } else if let Some(uid) = uid(largest).await?
                && self.delete_old_log_lines(&uid).await? > 0
            {
                if !shrunk.contains(&uid) {
                    shrunk.push(uid);
                }
            } else {
                break;
            }
        }
        Ok(shrunk)
    }

    async fn thin_curve(&self, uid: &str, mode: MetricMode) -> Result<u64> {
        let Some(curve) = self.long_curve(uid, mode).await? else { return Ok(0) };
        let (mut stride, mut end, mut length) = (2, curve.last - UNTHINNED_STEPS, UNTHINNED_STEPS);
        while end > curve.first {
            let begin = (end - length).max(curve.first);
            self.thin_points(uid, mode, (begin, end), stride).await?;
            (end, length, stride) = (begin, length * 2, stride * 2);
        }
        self.delete_thinned(uid, mode, curve.recent).await
    }

    /// Returns the range of a curve, if it is longer than what is kept unthinned.
    async fn long_curve(&self, uid: &str, mode: MetricMode) -> Result<Option<LongCurve>> {
        let ends = sql("SELECT (SELECT MIN(step) FROM points WHERE uid = $1 AND mode = $2) AS first, \
                        (SELECT MAX(step) FROM points WHERE uid = $1 AND mode = $2) AS last");
        let Some(ends) = ends.bind(uid).bind(mode.as_str()).first(&self.inner.read).await? else { return Ok(None) };
        let Some((first, last)) = ends.maybe_time("first")?.zip(ends.maybe_time("last")?) else { return Ok(None) };
        let recent = sql("SELECT number FROM points WHERE uid = $1 AND mode = $2 AND step > $3 ORDER BY step LIMIT 1");
        let recent = recent.bind(uid).bind(mode.as_str()).bind(last - UNTHINNED_STEPS).first(&self.inner.read).await?;
        let Some(recent) = recent.filter(|_| last - first >= UNTHINNED_STEPS) else { return Ok(None) };
        Ok(Some(LongCurve { first, last, recent: recent.time("number")? }))
    }

    /// Deletes the points of steps above `begin`, up to `end`, that are not multiples of `stride`.
    async fn thin_points(&self, uid: &str, mode: MetricMode, (begin, end): (i64, i64), stride: i64) -> Result<()> {
        let mut from = begin;
        while from < end {
            let to = (from + DELETE_BATCH_ROWS).min(end);
            let thinned =
                sql("DELETE FROM points WHERE uid = $1 AND mode = $2 AND step > $3 AND step <= $4 AND step % $5 <> 0");
            let thinned = thinned.bind(uid).bind(mode.as_str()).bind(from).bind(to).bind(stride);
            let mut transaction = self.begin().await?;
            thinned.execute(&mut *transaction).await?;
            transaction.commit().await.map_err(count_failure)?;
            from = to;
        }
        Ok(())
    }

    /// Deletes metric entries before number `recent` that no curve refers to: those that were thinned, and those that a
    /// repeated step has replaced.
    async fn delete_thinned(&self, uid: &str, mode: MetricMode, recent: i64) -> Result<u64> {
        let first = sql("SELECT MIN(number) AS first FROM entries WHERE uid = $1 AND kind = 'metric'").bind(uid);
        let first = first.first(&self.inner.read).await?.map(|row| row.maybe_time("first")).transpose()?.flatten();
        let (mut from, mut deleted) = (first.unwrap_or(recent), 0);
        while from < recent {
            let to = (from + DELETE_BATCH_ROWS).min(recent);
            let orphans = sql("DELETE FROM entries WHERE uid = $1 AND kind = 'metric' AND mode = $2 \
                               AND number >= $3 AND number < $4 AND NOT EXISTS (SELECT 1 FROM points p \
                               WHERE p.uid = entries.uid AND p.mode = entries.mode AND p.step = entries.step \
                               AND p.number = entries.number)");
            let mut transaction = self.begin().await?;
            deleted += orphans.bind(uid).bind(mode.as_str()).bind(from).bind(to).execute(&mut *transaction).await?;
            transaction.commit().await.map_err(count_failure)?;
            from = to;
        }
        Ok(deleted)
    }

    /// Deletes the older half of a job's log, and returns the number of deleted lines.
    async fn delete_old_log_lines(&self, uid: &str) -> Result<u64> {
        let middle = sql("SELECT number FROM entries WHERE uid = $1 AND kind = 'log' ORDER BY number LIMIT 1 \
                          OFFSET (SELECT COUNT(*) / 2 FROM entries WHERE uid = $1 AND kind = 'log')");
        let Some(middle) = middle.bind(uid).first(&self.inner.read).await? else { return Ok(0) };
        let mut transaction = self.begin().await?;
        let deleted = sql("DELETE FROM entries WHERE uid = $1 AND kind = 'log' AND number <= $2")
            .bind(uid)
            .bind(middle.time("number")?)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await.map_err(count_failure)?;
        self.measure_journal(uid).await?;
        Ok(deleted)
    }

    /// Computes and records the bytes of a job's journal.
    async fn measure_journal(&self, uid: &str) -> Result<()> {
        let mut transaction = self.begin().await?;
        sql("UPDATE numbers SET bytes = (SELECT COALESCE(SUM(length(e.body) + 128), 0) FROM entries e WHERE e.uid = $1) \
             WHERE uid = $1")
        .bind(uid)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await.map_err(count_failure)
    }
}
