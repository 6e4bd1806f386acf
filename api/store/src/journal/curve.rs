//! Curves: the valid point of each step, thinned to the number of points that is displayed.
//!
//! An attempt that resumes from a checkpoint repeats steps of an earlier attempt, and some of those may never be
//! reached again. So a training step replaces every point at its step and after it. An evaluation replaces only
//! evaluations, because it follows the training step with its number. This is computed when an entry is written, so
//! reading a curve does not depend on the length of the journal.

use std::collections::BTreeMap;

use super::{EntryKind, JournalRecord, MetricMode, SELECT};
use crate::Store;
use crate::error::Result;
use crate::sql::{RowColumns, sql};

/// Changes of one curve by a batch of entries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CurveUpdate {
    /// Older points at this step and after it are no longer valid.
    pub(super) replaced_from: Option<u64>,
    /// Number of the valid entry, by step.
    pub(super) points: BTreeMap<u64, u64>,
}

impl CurveUpdate {
    fn cut(&mut self, from: u64) {
        self.points.split_off(&from);
        self.replaced_from = Some(self.replaced_from.map_or(from, |before| before.min(from)));
    }
}

/// Returns the changes of the curves of [`MetricMode::ALL`] by entries, which are in the order of their numbers.
pub(super) fn curve_updates(entries: &[&JournalRecord]) -> [CurveUpdate; 2] {
    let [mut train, mut eval] = <[CurveUpdate; 2]>::default();
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Metric) {
        let (Some(mode), Some(step)) = (entry.mode, entry.step) else { continue };
        let curve = match mode {
            MetricMode::Train => {
                eval.cut(step.saturating_add(1));
                &mut train
            }
            MetricMode::Eval => &mut eval,
        };
        curve.cut(step);
        curve.points.insert(step, entry.number);
    }
    [train, eval]
}

impl Store {
    /// Returns a job's curve: the valid metric of each step, ordered by step. A curve of more than `max_points` (at
    /// least 2) is thinned to at most that number: the first point, the last, and the first of each of the equally long
    /// intervals of steps between them.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn metrics(&self, uid: &str, mode: MetricMode, max_points: u32) -> Result<Vec<JournalRecord>> {
        let max_points = i64::from(max_points.max(2));
        let Some(CurveExtent { more, first, last }) = self.extent(uid, mode, max_points).await? else {
            return Ok(Vec::new());
        };
        let stretch = if more { (last - first + max_points - 2) / (max_points - 1) } else { 1 };
        // Each recursion goes from the first point of an interval to the first of the next interval that has one: the
        // number of look-ups is that of the points returned, not that of the curve.
        let points = sql("WITH RECURSIVE shown (step) AS (SELECT $3 UNION ALL \
                          SELECT (SELECT MIN(p.step) FROM points p WHERE p.uid = $1 AND p.mode = $2 \
                          AND p.step >= shown.step - (shown.step - $3) % $4 + $4) \
                          FROM shown WHERE shown.step - (shown.step - $3) % $4 + $4 < $5) ")
        .push(SELECT)
        .push(
            " JOIN points p ON p.uid = e.uid AND p.number = e.number WHERE p.uid = $1 AND p.mode = $2 \
               AND p.step IN (SELECT step FROM shown UNION ALL SELECT $5) ORDER BY p.step",
        );
        let bound = points.bind(uid).bind(mode.as_str()).bind(first).bind(stretch).bind(last);
        bound.all(&self.inner.read, JournalRecord::read).await
    }

    async fn extent(&self, uid: &str, mode: MetricMode, max_points: i64) -> Result<Option<CurveExtent>> {
        let extent = sql("SELECT (SELECT MIN(step) FROM points WHERE uid = $1 AND mode = $2) AS first, \
                          (SELECT MAX(step) FROM points WHERE uid = $1 AND mode = $2) AS last, \
                          (SELECT COUNT(*) FROM (SELECT step FROM points WHERE uid = $1 AND mode = $2 LIMIT $3) AS part) \
                          AS count");
        let extent = extent.bind(uid).bind(mode.as_str()).bind(max_points + 1);
        let Some(row) = extent.first(&self.inner.read).await? else { return Ok(None) };
        let ends = row.maybe_time("first")?.zip(row.maybe_time("last")?);
        let more = row.time("count")? > max_points;
        Ok(ends.map(|(first, last)| CurveExtent { more, first, last }))
    }
}

/// First and last step of a curve, and whether it has more points than may be returned.
struct CurveExtent {
    more: bool,
    first: i64,
    last: i64,
}
