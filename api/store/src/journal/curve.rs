//! Curves: of each step the point that counts, thinned to what a screen shows.
//!
//! An attempt that goes on from a checkpoint takes steps again that an earlier one took, and some of those may never come
//! back. So a training step takes the place of every point at its step and beyond; an evaluation that of evaluations alone,
//! as it follows the training step of its number. That is decided when an entry is written, and so a curve is read as it
//! stands, however long the journal is.

use std::collections::BTreeMap;

use super::{Entry, Kind, Mode, SELECT};
use crate::Store;
use crate::error::Result;
use crate::sql::{Columns, sql};

/// What a batch of entries makes of one curve.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Curve {
    /// Older points at this step and beyond count no more.
    pub(super) replaced_from: Option<u64>,
    /// The number of the entry that counts, by step.
    pub(super) points: BTreeMap<u64, u64>,
}

impl Curve {
    fn cut(&mut self, from: u64) {
        self.points.split_off(&from);
        self.replaced_from = Some(self.replaced_from.map_or(from, |before| before.min(from)));
    }
}

/// What entries, in the order of their numbers, make of the curves of [`Mode::ALL`].
pub(super) fn revise(entries: &[&Entry]) -> [Curve; 2] {
    let [mut train, mut eval] = <[Curve; 2]>::default();
    for entry in entries.iter().filter(|entry| entry.kind == Kind::Metric) {
        let (Some(mode), Some(step)) = (entry.mode, entry.step) else { continue };
        let curve = match mode {
            Mode::Train => {
                eval.cut(step.saturating_add(1));
                &mut train
            }
            Mode::Eval => &mut eval,
        };
        curve.cut(step);
        curve.points.insert(step, entry.number);
    }
    [train, eval]
}

impl Store {
    /// A job's curve: of each step the metric that counts, in the order of steps. Of more than `max_points` (at least 2),
    /// that many at most are kept: the first, the last, and of each stretch of steps between them, all as long, the first.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn metrics(&self, uid: &str, mode: Mode, max_points: u32) -> Result<Vec<Entry>> {
        let most = i64::from(max_points.max(2));
        let Some(Extent { more, first, last }) = self.extent(uid, mode, most).await? else { return Ok(Vec::new()) };
        let stretch = if more { (last - first + most - 2) / (most - 1) } else { 1 };
        // From the first point of a stretch to the first of the next that has one: as many look-ups as there are points to
        // show, however many there are.
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
        bound.all(&self.inner.read, Entry::read).await
    }

    async fn extent(&self, uid: &str, mode: Mode, most: i64) -> Result<Option<Extent>> {
        let extent = sql("SELECT (SELECT MIN(step) FROM points WHERE uid = $1 AND mode = $2) AS first, \
                          (SELECT MAX(step) FROM points WHERE uid = $1 AND mode = $2) AS last, \
                          (SELECT COUNT(*) FROM (SELECT step FROM points WHERE uid = $1 AND mode = $2 LIMIT $3) AS part) \
                          AS count");
        let extent = extent.bind(uid).bind(mode.as_str()).bind(most + 1);
        let Some(row) = extent.first(&self.inner.read).await? else { return Ok(None) };
        let ends = row.maybe_time("first")?.zip(row.maybe_time("last")?);
        let more = row.time("count")? > most;
        Ok(ends.map(|(first, last)| Extent { more, first, last }))
    }
}

/// Between which steps a curve runs, and whether it has more points than are to be shown.
struct Extent {
    more: bool,
    first: i64,
    last: i64,
}
