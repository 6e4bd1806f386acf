//! Retention: which checkpoints are deleted when a new one was written.
//!
//! The decision needs only [`CheckpointOrigin`], which is in the manifest, so that it is the same for checkpoints in a
//! directory ([`retain`]) and elsewhere ([`superseded`]).

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::lineage::{Lineage, LineagePoint};
use crate::list::{delete, list};
use crate::lock::{ModelDirLock, Owner};
use crate::manifest::Manifest;

/// Where in the history of a model_dir a checkpoint was written, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOrigin {
    /// Attempt and step.
    pub point: LineagePoint,
    /// Whether it is a recovery checkpoint, which is deleted when a newer checkpoint exists.
    pub recovery: bool,
}

impl CheckpointOrigin {
    /// Reads the origin in the text of a manifest. `dir` is the directory of the checkpoint, for messages.
    ///
    /// # Errors
    /// The text is not an undamaged manifest.
    pub fn from_manifest(text: &[u8], dir: &Path) -> Result<Self> {
        let manifest = Manifest::decode(text, dir)?;
        let point = LineagePoint { attempt: manifest.epoch.attempt, step: manifest.step };
        Ok(Self { point, recovery: manifest.recovery })
    }

    /// Returns whether the last attempt of `model_dir` can resume from the checkpoint: it belongs to the lineage of
    /// that attempt.
    ///
    /// # Errors
    /// The lineage record of `model_dir` can't be read.
    pub fn is_in_lineage(&self, model_dir: &Path) -> Result<bool> {
        Ok(Lineage::read(model_dir)?.continues(self.point))
    }
}

/// Deletes checkpoints of the lock's model_dir until `max_checkpoints` complete ones are left (0: keeps all), and
/// returns the deleted ones: first those of abandoned lineages, then the oldest. The newest is always kept. Damaged
/// checkpoints are neither counted nor deleted. If the lock is held by a job, neither are checkpoints that another job
/// wrote and that this job does not continue.
///
/// Recovery checkpoints are not counted. Of a job's own only the newest is kept, and only until a newer checkpoint
/// exists, also without `max_checkpoints`.
///
/// # Errors
/// The lock was lost, or an error of the file system.
pub fn retain(lock: &ModelDirLock, max_checkpoints: usize) -> Result<Vec<PathBuf>> {
    let (complete, lineage) = (list(lock.model_dir())?.complete, Lineage::read(lock.model_dir())?);
    let candidates = complete.into_iter().map(|info| {
        let point = LineagePoint { attempt: info.epoch.attempt, step: info.step };
        (CheckpointOrigin { point, recovery: info.recovery }, info.path)
    });
    let superseded = choose(candidates.collect(), &lineage, lock.owner(), max_checkpoints);
    if !superseded.is_empty() {
        lock.check_held()?;
    }
    superseded.into_iter().map(|path| delete(&path).map(|()| path)).collect()
}

/// Returns those of `checkpoints` that [`retain`] would delete if they were in `model_dir`, whose lock is held, or was
/// last held, by the run that writes them.
///
/// # Errors
/// The lock or the lineage record of `model_dir` can't be read.
pub fn superseded<T>(
    checkpoints: Vec<(CheckpointOrigin, T)>,
    model_dir: &Path,
    max_checkpoints: usize,
) -> Result<Vec<T>> {
    let lineage = Lineage::read(model_dir)?;
    let owner = ModelDirLock::last_owner(model_dir)?;
    Ok(owner.map_or_else(Vec::new, |owner| choose(checkpoints, &lineage, &owner, max_checkpoints)))
}

fn choose<T>(
    mut candidates: Vec<(CheckpointOrigin, T)>,
    lineage: &Lineage,
    owner: &Owner,
    max_checkpoints: usize,
) -> Vec<T> {
    let is_own = |point: LineagePoint| owner.job.is_none() || point.attempt > owner.before || lineage.continues(point);
    candidates.retain(|(origin, _)| is_own(origin.point));
    candidates.sort_by_key(|(origin, _)| (lineage.continues(origin.point), origin.point));
    let newest = candidates.pop();
    let (recovery, mut regular): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|(origin, _)| origin.recovery);
    let max_regular = max_checkpoints.saturating_sub(usize::from(newest.is_some_and(|(newest, _)| !newest.recovery)));
    regular.truncate(if max_checkpoints == 0 { 0 } else { regular.len().saturating_sub(max_regular) });
    recovery.into_iter().chain(regular).map(|(_, checkpoint)| checkpoint).collect()
}
