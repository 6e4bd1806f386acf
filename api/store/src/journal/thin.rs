//! Bounds of history: old curves get fewer points, and journals of old jobs make room for new ones.
//!
//! Of a curve the newest [`RECENT_STEPS`] are kept as they are. Before them every second step is kept for as long a stretch, then
//! every fourth for twice as long, and so on: steps that are multiples of a power of two, so that what is kept once more
//! steps have come is a part of what is kept now. A million steps leave about 37,000 points, a billion 77,000. The whole curve
//! is in the job's model_dir.

use super::Mode;
use crate::Store;
use crate::error::Result;
use crate::jobs::PIECE;
use crate::sql::{Columns, Sql, sql};

/// Newest steps of a curve of which each is kept.
pub const RECENT_STEPS: i64 = 8192;
/// Bytes that an entry takes besides its body, about.
pub(super) const ENTRY_BYTES: i64 = 128;
/// Journals of fewer bytes have no curve that is worth thinning.
const WORTH_THINNING_BYTES: i64 = 1 << 20;

/// Where a curve lies, and which of its entries are recent.
struct Curve {
    first: i64,
    last: i64,
    /// Number of the first recent entry.
    recent: i64,
}

impl Store {
    /// Thins all curves that have become long, and gives how many entries went. Made in pieces, and may be repeated.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn thin_curves(&self) -> Result<u64> {
        let long = sql("SELECT uid FROM numbers WHERE bytes > $1 ORDER BY uid").bind(WORTH_THINNING_BYTES);
        let mut gone = 0;
        for uid in long.all(&self.inner.read, |row| row.text("uid")).await? {
            let before = gone;
            for mode in Mode::ALL {
                gone += self.thin_curve(&uid, mode).await?;
            }
            if gone > before {
                self.measure_journal(&uid).await?;
            }
        }
        Ok(gone)
    }

    /// Bytes of all journals, about.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn history_bytes(&self) -> Result<u64> {
        let total = sql("SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) AS total FROM numbers");
        total.first(&self.inner.read).await?.map_or(Ok(0), |row| row.number("total"))
    }

    /// Removes journals until all have `most` bytes at most: those of jobs that are over, the oldest first, then old lines of the
    /// logs of others. Gives the jobs of which something went. The jobs themselves and their events stay.
    ///
    /// # Errors
    /// As [`Store::replace_job`].
    pub async fn shrink_history(&self, most: u64) -> Result<Vec<String>> {
        let mut shrunk = Vec::new();
        while self.history_bytes().await? > most {
            let over = sql("SELECT n.uid FROM numbers n JOIN jobs j ON j.uid = n.uid \
                            WHERE n.bytes > 0 AND (j.finished_ms IS NOT NULL OR j.deleted_ms IS NOT NULL) \
                            ORDER BY COALESCE(j.finished_ms, j.deleted_ms), n.uid LIMIT 1");
            let largest = sql("SELECT uid FROM numbers WHERE bytes > 0 ORDER BY bytes DESC, uid LIMIT 1");
            let uid = async |found: Sql| found.first(&self.inner.read).await?.map(|row| row.text("uid")).transpose();
            if let Some(uid) = uid(over).await? {
                self.forget_journal(&uid).await?;
                shrunk.push(uid);
            } else if let Some(uid) = uid(largest).await?
                && self.forget_old_lines(&uid).await? > 0
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

    async fn thin_curve(&self, uid: &str, mode: Mode) -> Result<u64> {
        let Some(curve) = self.long_curve(uid, mode).await? else { return Ok(0) };
        let (mut stride, mut end, mut length) = (2, curve.last - RECENT_STEPS, RECENT_STEPS);
        while end > curve.first {
            let begin = (end - length).max(curve.first);
            self.thin_points(uid, mode, (begin, end), stride).await?;
            (end, length, stride) = (begin, length * 2, stride * 2);
        }
        self.forget_thinned(uid, mode, curve.recent).await
    }

    /// The curve, where it has more points than are recent.
    async fn long_curve(&self, uid: &str, mode: Mode) -> Result<Option<Curve>> {
        let ends = sql("SELECT (SELECT MIN(step) FROM points WHERE uid = $1 AND mode = $2) AS first, \
                        (SELECT MAX(step) FROM points WHERE uid = $1 AND mode = $2) AS last");
        let Some(ends) = ends.bind(uid).bind(mode.as_str()).first(&self.inner.read).await? else { return Ok(None) };
        let Some((first, last)) = ends.maybe_time("first")?.zip(ends.maybe_time("last")?) else { return Ok(None) };
        let recent = sql("SELECT number FROM points WHERE uid = $1 AND mode = $2 AND step > $3 ORDER BY step LIMIT 1");
        let recent = recent.bind(uid).bind(mode.as_str()).bind(last - RECENT_STEPS).first(&self.inner.read).await?;
        let Some(recent) = recent.filter(|_| last - first >= RECENT_STEPS) else { return Ok(None) };
        Ok(Some(Curve { first, last, recent: recent.time("number")? }))
    }

    /// Of the steps beyond `begin` and up to `end` keeps the multiples of `stride`.
    async fn thin_points(&self, uid: &str, mode: Mode, (begin, end): (i64, i64), stride: i64) -> Result<()> {
        let mut from = begin;
        while from < end {
            let to = (from + PIECE).min(end);
            let thinned =
                sql("DELETE FROM points WHERE uid = $1 AND mode = $2 AND step > $3 AND step <= $4 AND step % $5 <> 0");
            let thinned = thinned.bind(uid).bind(mode.as_str()).bind(from).bind(to).bind(stride);
            let mut transaction = self.begin().await?;
            thinned.execute(&mut *transaction).await?;
            transaction.commit().await?;
            from = to;
        }
        Ok(())
    }

    /// Removes the points' entries that stand in no curve any more, before number `recent`: those that were thinned out, and of
    /// steps that were taken again those that do not count.
    async fn forget_thinned(&self, uid: &str, mode: Mode, recent: i64) -> Result<u64> {
        let first = sql("SELECT MIN(number) AS first FROM entries WHERE uid = $1 AND kind = 'metric'").bind(uid);
        let first = first.first(&self.inner.read).await?.map(|row| row.maybe_time("first")).transpose()?.flatten();
        let (mut from, mut gone) = (first.unwrap_or(recent), 0);
        while from < recent {
            let to = (from + PIECE).min(recent);
            let orphans = sql("DELETE FROM entries WHERE uid = $1 AND kind = 'metric' AND mode = $2 \
                               AND number >= $3 AND number < $4 AND NOT EXISTS (SELECT 1 FROM points p \
                               WHERE p.uid = entries.uid AND p.mode = entries.mode AND p.step = entries.step \
                               AND p.number = entries.number)");
            let mut transaction = self.begin().await?;
            gone += orphans.bind(uid).bind(mode.as_str()).bind(from).bind(to).execute(&mut *transaction).await?;
            transaction.commit().await?;
            from = to;
        }
        Ok(gone)
    }

    /// Removes the older half of a job's log, and gives how many lines went.
    async fn forget_old_lines(&self, uid: &str) -> Result<u64> {
        let middle = sql("SELECT number FROM entries WHERE uid = $1 AND kind = 'log' ORDER BY number LIMIT 1 \
                          OFFSET (SELECT COUNT(*) / 2 FROM entries WHERE uid = $1 AND kind = 'log')");
        let Some(middle) = middle.bind(uid).first(&self.inner.read).await? else { return Ok(0) };
        let mut transaction = self.begin().await?;
        let gone = sql("DELETE FROM entries WHERE uid = $1 AND kind = 'log' AND number <= $2")
            .bind(uid)
            .bind(middle.time("number")?)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        self.measure_journal(uid).await?;
        Ok(gone)
    }

    /// Notes anew how many bytes a job's journal has.
    async fn measure_journal(&self, uid: &str) -> Result<()> {
        let mut transaction = self.begin().await?;
        sql("UPDATE numbers SET bytes = (SELECT COALESCE(SUM(length(e.body) + 128), 0) FROM entries e WHERE e.uid = $1) \
             WHERE uid = $1")
        .bind(uid)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await.map_err(Into::into)
    }
}
