//! Curves: of each step the point that counts, thinned to what a screen shows.
//!
//! An attempt that goes on from a checkpoint takes steps again that an earlier one took, and some of those may never come
//! back. So a training step takes the place of every point at its step and beyond; an evaluation that of evaluations alone,
//! as it follows the training step of its number. That is decided when an entry is written, and so a curve is read as it
//! stands, however long the journal is.

use std::collections::BTreeMap;

use super::{Entry, Kind, Mode, select};
use crate::Store;
use crate::error::Result;
use crate::sql::{Columns, signed, sql};

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
        let Some(Extent { count, first, last }) = self.extent(uid, mode).await? else { return Ok(Vec::new()) };
        let most = u64::from(max_points.max(2));
        let stretch = if count <= most { 1 } else { (last - first).div_ceil(most - 1) };
        // $1 and $2, bound first, are named once more.
        let points = select()
            .push(" JOIN points p ON p.uid = e.uid AND p.number = e.number WHERE p.uid = ")
            .value(uid)
            .push(" AND p.mode = ")
            .value(mode.as_str())
            .push(" AND p.step IN (SELECT MIN(step) FROM points WHERE uid = $1 AND mode = $2 AND step < ")
            .value(signed("the step", last)?)
            .push(" GROUP BY (step - ")
            .value(signed("the step", first)?)
            .push(") / ")
            .value(signed("the step", stretch)?)
            .push(" UNION ALL SELECT ")
            .value(signed("the step", last)?)
            .push(") ORDER BY p.step");
        points.all(&self.inner.read, Entry::read).await
    }

    async fn extent(&self, uid: &str, mode: Mode) -> Result<Option<Extent>> {
        let extent = sql("SELECT COUNT(*) AS count, MIN(step) AS first, MAX(step) AS last \
                          FROM points WHERE uid = $1 AND mode = $2");
        let Some(row) = extent.bind(uid).bind(mode.as_str()).first(&self.inner.read).await? else { return Ok(None) };
        let ends = row.maybe_number("first")?.zip(row.maybe_number("last")?);
        let count = row.number("count")?;
        Ok(ends.map(|(first, last)| Extent { count, first, last }))
    }
}

/// How many points a curve has, and between which steps.
struct Extent {
    count: u64,
    first: u64,
    last: u64,
}
