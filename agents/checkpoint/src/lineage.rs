//! Lineage: records how the checkpoints of a model_dir follow from one another.
//!
//! A run may resume from an older checkpoint. The newer checkpoints remain until the new run reaches their steps and
//! replaces them, or retention deletes them; but later runs no longer resume from them. For this purpose every attempt
//! that trains records in `attempts.json` where it begins, before it changes anything else.
//!
//! The *lineage* of an attempt is everything it wrote, the checkpoint it began with, and the lineage of that.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::{read_limited, rename_synced, write_synced};
use crate::lock::ModelDirLock;

const LINEAGE_FILE: &str = "attempts.json";

/// Exceeds the size of a record of a million attempts.
const MAX_LINEAGE_BYTES: u64 = 1 << 26;

/// A state of the model: after a number of updates, the last of them made, or saved, by an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LineagePoint {
    /// The attempt.
    pub attempt: u32,
    /// Number of updates.
    pub step: u64,
}

/// The point that each attempt began with: `None` if it was not a checkpoint of the model_dir.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Lineage(BTreeMap<u32, Option<LineagePoint>>);

impl Lineage {
    /// Reads the record of `model_dir`; empty if the file does not exist.
    ///
    /// # Errors
    /// The file can't be read, or is invalid. Ignoring it could resume from a checkpoint of an abandoned lineage, or
    /// make retention delete the wrong ones.
    pub fn read(model_dir: &Path) -> Result<Self> {
        let path = model_dir.join(LINEAGE_FILE);
        let text = match read_limited(&path, MAX_LINEAGE_BYTES) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(cause) if cause.kind() != io::ErrorKind::InvalidData => return Err(Error::io("read", path, cause)),
            Err(source) => return Err(Error::LineageUnreadable { path, source }),
            Ok(text) => text,
        };
        serde_json::from_slice(&text).map_err(|error| Error::LineageUnreadable { path, source: error.into() })
    }

    /// Returns whether `point` belongs to the lineage of the last attempt, or is newer (imported since).
    pub fn continues(&self, point: LineagePoint) -> bool {
        self.head().is_none_or(|head| {
            let mut ancestors = self.ancestors(head);
            point.attempt > head.attempt
                || ancestors.any(|ancestor| ancestor.attempt == point.attempt && point.step <= ancestor.step)
        })
    }

    /// Returns the last step that `point` and the last attempt have in common.
    fn last_common_step(&self, point: LineagePoint) -> u64 {
        let Some(head) = self.head() else { return point.step };
        let common_step = |ancestor: LineagePoint| {
            self.ancestors(head)
                .find(|head_ancestor| head_ancestor.attempt == ancestor.attempt)
                .map(|head_ancestor| head_ancestor.step.min(ancestor.step))
        };
        self.ancestors(point).find_map(common_step).unwrap_or(0)
    }

    /// Returns the history of the steps up to `point`.
    fn history_up_to(&self, point: LineagePoint) -> ResumeHistory {
        let shared = self.last_common_step(point);
        let mut points: Vec<LineagePoint> = self.ancestors(point).collect();
        points.reverse();
        let mut last = shared;
        let made_by = points.into_iter().filter(|point| point.step > shared).map(|point| {
            let first = std::mem::replace(&mut last, point.step) + 1;
            (point.attempt, first..=point.step)
        });
        ResumeHistory { shared, made_by: made_by.collect() }
    }

    /// Returns the point after everything that the last attempt may have written.
    fn head(&self) -> Option<LineagePoint> {
        self.0.last_key_value().map(|(&attempt, _)| LineagePoint { attempt, step: u64::MAX })
    }

    /// Returns `point`, the point its attempt began with, and so on: the last point of each attempt in the lineage.
    fn ancestors(&self, point: LineagePoint) -> impl Iterator<Item = LineagePoint> {
        // No attempt begins with a later one; an invalid file must not cause an infinite loop.
        let previous = |point: &LineagePoint| {
            self.0.get(&point.attempt).copied().flatten().filter(|from| from.attempt < point.attempt)
        };
        std::iter::successors(Some(point), previous)
    }
}

/// The history of the steps before the first step of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeHistory {
    /// Steps up to this one are also those of the last attempt.
    pub shared: u64,
    /// The attempts that made the following steps, and their last steps; ascending.
    pub made_by: Vec<(u32, RangeInclusive<u64>)>,
}

/// Records that the lock's attempt trains from `from`, a checkpoint of its model_dir, or from another source.
///
/// # Errors
/// The lock was lost, the record can't be read, or an error of the file system.
pub fn begin_lineage(lock: &ModelDirLock, from: Option<LineagePoint>) -> Result<ResumeHistory> {
    let lineage = Lineage::read(lock.model_dir())?;
    let history = from.map_or_else(ResumeHistory::default, |from| lineage.history_up_to(from));
    record_attempt(lock, lineage, from)?;
    Ok(history)
}

/// Records that the lock's attempt continues where the previous one was interrupted, after `step` updates.
///
/// # Errors
/// See [`begin_lineage`].
pub fn continue_lineage(lock: &ModelDirLock, step: u64) -> Result<ResumeHistory> {
    let history = Lineage::read(lock.model_dir())?;
    let from = history.head().map(|head| LineagePoint { step, ..head });
    record_attempt(lock, history, from)?;
    Ok(ResumeHistory { shared: step, ..ResumeHistory::default() })
}

fn record_attempt(lock: &ModelDirLock, mut history: Lineage, from: Option<LineagePoint>) -> Result<()> {
    history.0.insert(lock.attempt(), from);
    let text = serde_json::to_vec(&history).map_err(Error::argument)?;
    lock.check_held()?;
    let draft = lock.model_dir().join(format!("{LINEAGE_FILE}.draft"));
    write_synced(&draft, &text)?;
    rename_synced(&draft, &lock.model_dir().join(LINEAGE_FILE))
}
