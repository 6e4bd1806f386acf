//! Lines: which checkpoints of a model_dir follow from one another.
//!
//! A run may go back to an older checkpoint. The newer ones of the line it leaves stay where they are, until the new
//! line reaches their steps and replaces them or retention takes them; but they are no longer what a later run goes on
//! from. So every attempt that trains notes where it begins, in `attempts.json`, before it changes anything else.
//!
//! The *line* of an attempt is all that it wrote, what it began with, and the line of that.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::{read_limited, rename_synced, write_synced};
use crate::lock::ModelDirLock;

const LINEAGE_FILE: &str = "attempts.json";

/// More than a million attempts take.
const MAX_LINEAGE_BYTES: u64 = 1 << 26;

/// A state of the model: after so many updates, the last of them made, or saved, by this attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LineagePoint {
    /// The attempt.
    pub attempt: u32,
    /// Updates.
    pub step: u64,
}

/// What each attempt began with: `None` where that was no checkpoint of the model_dir.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Lineage(BTreeMap<u32, Option<LineagePoint>>);

impl Lineage {
    /// Reads what is noted in `model_dir`; nothing where the file is missing.
    ///
    /// # Errors
    /// The file can't be read, or holds something else. A run that ignored it could go on from a checkpoint that was
    /// left behind, and retention could delete the wrong ones.
    pub fn read(model_dir: &Path) -> Result<Self> {
        let path = model_dir.join(LINEAGE_FILE);
        let text = match read_limited(&path, MAX_LINEAGE_BYTES) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(cause) if cause.kind() != io::ErrorKind::InvalidData => return Err(Error::io("read", path, cause)),
            Err(too_long) => return Err(Error::LineageUnreadable { path, reason: too_long.to_string() }),
            Ok(text) => text,
        };
        serde_json::from_slice(&text).map_err(|error| Error::LineageUnreadable { path, reason: error.to_string() })
    }

    /// Whether `point` belongs to the line of the last attempt, or is newer than that (imported since).
    pub fn continues(&self, point: LineagePoint) -> bool {
        self.head().is_none_or(|head| {
            let mut line = self.ancestors(head);
            point.attempt > head.attempt || line.any(|at| at.attempt == point.attempt && point.step <= at.step)
        })
    }

    /// The last step that `point` and the last attempt have in common.
    fn last_common_step(&self, point: LineagePoint) -> u64 {
        let Some(head) = self.head() else { return point.step };
        let joins =
            |at: LineagePoint| self.ancestors(head).find(|of| of.attempt == at.attempt).map(|of| of.step.min(at.step));
        self.ancestors(point).find_map(joins).unwrap_or(0)
    }

    /// How the steps up to `point` came about.
    fn history_up_to(&self, point: LineagePoint) -> ResumeHistory {
        let shared = self.last_common_step(point);
        let mut line: Vec<LineagePoint> = self.ancestors(point).collect();
        line.reverse();
        let mut last = shared;
        let made_by = line.into_iter().filter(|point| point.step > shared).map(|point| {
            let first = std::mem::replace(&mut last, point.step) + 1;
            (point.attempt, first..=point.step)
        });
        ResumeHistory { shared, made_by: made_by.collect() }
    }

    /// All that the last attempt may have written.
    fn head(&self) -> Option<LineagePoint> {
        self.0.last_key_value().map(|(&attempt, _)| LineagePoint { attempt, step: u64::MAX })
    }

    /// `point`, what its attempt began with, and so on: of each attempt the last point that belongs to the line.
    fn ancestors(&self, point: LineagePoint) -> impl Iterator<Item = LineagePoint> {
        // Nobody begins with what comes later; a file that says so must not be followed for ever.
        let before =
            |at: &LineagePoint| self.0.get(&at.attempt).copied().flatten().filter(|from| from.attempt < at.attempt);
        std::iter::successors(Some(point), before)
    }
}

/// How the steps before an attempt's first came about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeHistory {
    /// Up to this one they are those of the last attempt, too.
    pub shared: u64,
    /// Which attempts made those that follow, and which of them; rising.
    pub made_by: Vec<(u32, RangeInclusive<u64>)>,
}

/// Notes that the lock's attempt trains on from `from`, a checkpoint of its model_dir, or from anything else.
///
/// # Errors
/// When the lock was lost, the notes can't be read, or the file system refuses.
pub fn begin_lineage(lock: &ModelDirLock, from: Option<LineagePoint>) -> Result<ResumeHistory> {
    let history = Lineage::read(lock.model_dir())?;
    let before = from.map_or_else(ResumeHistory::default, |from| history.history_up_to(from));
    record_attempt(lock, history, from)?;
    Ok(before)
}

/// Notes that the lock's attempt goes on where the one before it was cut off, after `step` updates.
///
/// # Errors
/// As for [`begin_line`].
pub fn continue_lineage(lock: &ModelDirLock, step: u64) -> Result<ResumeHistory> {
    let history = Lineage::read(lock.model_dir())?;
    let from = history.head().map(|head| LineagePoint { step, ..head });
    record_attempt(lock, history, from)?;
    Ok(ResumeHistory { shared: step, ..ResumeHistory::default() })
}

fn record_attempt(lock: &ModelDirLock, mut history: Lineage, from: Option<LineagePoint>) -> Result<()> {
    history.0.insert(lock.attempt(), from);
    let text = serde_json::to_vec(&history).map_err(|error| Error::Argument(error.to_string()))?;
    lock.check_held()?;
    let draft = lock.model_dir().join(format!("{LINEAGE_FILE}.draft"));
    write_synced(&draft, &text)?;
    rename_synced(&draft, &lock.model_dir().join(LINEAGE_FILE))
}
