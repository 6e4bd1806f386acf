//! Lists the checkpoints of a model_dir, selects the one to resume from, and cleans up.
//!
//! Names: `checkpoint_<step>` is a checkpoint; `checkpoint_<step>.partial-<epoch>.<n>` is being written;
//! `.replaced-<epoch>` is being replaced by a new checkpoint of the same step; `.deleted` is being deleted. A directory
//! is only deleted under one of the last three names, so an interrupted deletion never leaves an incomplete checkpoint.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::files::{remove_dir, rename_synced};
use crate::info::CheckpointInfo;
use crate::lineage::{Lineage, LineagePoint};
use crate::lock::ModelDirLock;
use crate::manifest::{Manifest, WriterEpoch};
use crate::read::Checkpoint;

const CHECKPOINT_PREFIX: &str = "checkpoint_";
const PARTIAL_PREFIX: &str = "partial-";
const REPLACED_PREFIX: &str = "replaced-";
const DELETED_DIR: &str = "deleted";

const LEFT_LINEAGE_REASON: &str =
    "a later run resumed from an older checkpoint; to resume from this one, name it with --checkpoint_path";

/// Returns the name of the directory of a checkpoint in its model_dir.
pub fn checkpoint_name(step: u64) -> String {
    format!("{CHECKPOINT_PREFIX}{step}")
}

/// Returns the step in the name of the directory of a checkpoint; `None` for any other name, also that of a checkpoint
/// that is incomplete or being deleted.
pub fn step_of_checkpoint(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(CHECKPOINT_PREFIX)?;
    // Only the form that this crate writes: no sign, no leading zeros.
    digits.parse::<u64>().ok().filter(|step| step.to_string() == digits)
}

pub(crate) fn partial_name(step: u64, epoch: WriterEpoch, number: u64) -> String {
    format!("{CHECKPOINT_PREFIX}{step}.{PARTIAL_PREFIX}{epoch}.{number}")
}

pub(crate) fn replaced_name(step: u64, epoch: WriterEpoch) -> String {
    format!("{CHECKPOINT_PREFIX}{step}.{REPLACED_PREFIX}{epoch}")
}

/// The content of a model_dir.
#[derive(Debug, Default, Serialize)]
pub struct CheckpointListing {
    /// Checkpoints with valid manifest, file lengths and headers, in ascending order of steps.
    #[serde(rename = "whole")]
    pub complete: Vec<CheckpointInfo>,
    /// Checkpoints that can't be used, in ascending order of steps.
    #[serde(rename = "broken")]
    pub damaged: Vec<SkippedCheckpoint>,
    /// Directories of checkpoints that are incomplete, or being written.
    pub partial: Vec<PathBuf>,
}

/// A checkpoint that can't be used, or must not be used.
#[derive(Debug, Serialize)]
pub struct SkippedCheckpoint {
    /// The step in its name.
    pub step: u64,
    /// Its directory.
    pub path: PathBuf,
    /// Why it can't be used, in one sentence.
    pub reason: String,
}

/// How thoroughly checkpoints are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerificationLevel {
    /// Manifest, documents, file lengths and headers.
    Quick,
    /// Every byte.
    Full,
}

/// Lists the checkpoints of `model_dir`; returns none if the directory does not exist.
///
/// # Errors
/// The directory can't be read.
pub fn list(model_dir: &Path) -> Result<CheckpointListing> {
    let mut listing = CheckpointListing { partial: entries(model_dir)?.partial, ..CheckpointListing::default() };
    for (step, path) in entries(model_dir)?.steps {
        match Checkpoint::open(&path) {
            Ok(checkpoint) => listing.complete.push(checkpoint.info()),
            Err(error) => listing.damaged.push(skip_if_damaged(step, path, &error)?),
        }
    }
    Ok(listing)
}

/// Returns whether the path is a directory that contains complete checkpoints, such as a job's model_dir.
///
/// # Errors
/// The directory can't be read.
pub fn contains_checkpoints(path: &Path) -> Result<bool> {
    Ok(!list(path)?.complete.is_empty())
}

/// Returns the newest checkpoint in the [lineage](crate::begin_lineage) of the last attempt that passes `check`, and
/// the checkpoints of higher steps that did not or belong to an abandoned lineage. Returns `None` if there is no such
/// checkpoint.
///
/// # Errors
/// The directory, or its lineage record, can't be read.
pub fn newest_complete(
    model_dir: &Path,
    check: VerificationLevel,
) -> Result<(Option<Checkpoint>, Vec<SkippedCheckpoint>)> {
    let history = Lineage::read(model_dir)?;
    let (mut candidates, mut passed) = (Vec::new(), Vec::new());
    for (step, path) in entries(model_dir)?.steps {
        match Manifest::read(&path).map(|manifest| LineagePoint { attempt: manifest.epoch.attempt, step }) {
            Ok(point) if history.continues(point) => candidates.push((point, path)),
            Ok(_) => passed.push(SkippedCheckpoint { step, path, reason: LEFT_LINEAGE_REASON.to_owned() }),
            Err(error) => passed.push(skip_if_damaged(step, path, &error)?),
        }
    }
    candidates.sort();
    let mut found = None;
    while let (None, Some((point, path))) = (&found, candidates.pop()) {
        let opened =
            if check == VerificationLevel::Full { Checkpoint::open_verified(&path) } else { Checkpoint::open(&path) };
        match opened {
            Ok(checkpoint) => found = Some(checkpoint),
            Err(error) => passed.push(skip_if_damaged(point.step, path, &error)?),
        }
    }
    passed.retain(|passed| found.as_ref().is_none_or(|found| passed.step > found.step()));
    passed.sort_by_key(|passed| std::cmp::Reverse(passed.step));
    Ok((found, passed))
}

/// Cleans up after interrupted writers, at the start of a run: removes incomplete and partially deleted checkpoints,
/// and restores one whose replacement was interrupted. Returns what it did, as sentences for the log.
///
/// # Errors
/// The lock was lost, or an error of the file system.
pub fn clean_up(lock: &ModelDirLock) -> Result<Vec<String>> {
    lock.check_held()?;
    let mut deleted = Vec::new();
    let found = entries(lock.model_dir())?;
    for (step, path) in found.replaced {
        let home = lock.model_dir().join(checkpoint_name(step));
        if millrace_roots::metadata(&home).is_err() && Checkpoint::open(&path).is_ok() {
            rename_synced(&path, &home)?;
            deleted.push(format!("restored {}, whose replacement was interrupted", home.display()));
        } else {
            remove_dir(&path)?;
        }
    }
    for path in found.partial {
        remove_dir(&path)?;
        deleted.push(format!("removed {}, which was incomplete", path.display()));
    }
    found.deleted.iter().try_for_each(|path| remove_dir(path))?;
    Ok(deleted)
}

pub(crate) fn delete(path: &Path) -> Result<()> {
    let mut deleted = path.as_os_str().to_owned();
    deleted.push(".");
    deleted.push(DELETED_DIR);
    let deleted = PathBuf::from(deleted);
    remove_dir(&deleted)?;
    rename_synced(path, &deleted)?;
    remove_dir(&deleted)
}

/// An error of the file system ends the search; damage only excludes a candidate.
fn skip_if_damaged(step: u64, path: PathBuf, error: &Error) -> Result<SkippedCheckpoint> {
    let reason = error.to_string();
    match error {
        Error::Damaged(_) | Error::NotACheckpoint { .. } | Error::Io { .. } => {
            Ok(SkippedCheckpoint { step, path, reason })
        }
        _ => Err(Error::argument(reason)),
    }
}

#[derive(Default)]
struct Entries {
    steps: Vec<(u64, PathBuf)>,
    replaced: Vec<(u64, PathBuf)>,
    partial: Vec<PathBuf>,
    deleted: Vec<PathBuf>,
}

fn entries(model_dir: &Path) -> Result<Entries> {
    let mut found = Entries::default();
    let listed = match millrace_roots::read_dir(model_dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        listed => listed.map_err(|e| Error::io("list", model_dir, e))?,
    };
    for entry in listed {
        let name = entry.name();
        let (complete, extension) =
            name.split_once('.').map_or((name, None), |(complete, extension)| (complete, Some(extension)));
        let Some(step) = step_of_checkpoint(complete) else { continue };
        let path = entry.path.clone();
        match extension {
            None => found.steps.push((step, path)),
            Some(extension) if extension.starts_with(PARTIAL_PREFIX) => found.partial.push(path),
            Some(extension) if extension.starts_with(REPLACED_PREFIX) => found.replaced.push((step, path)),
            Some(extension) if extension == DELETED_DIR => found.deleted.push(path),
            Some(_) => {}
        }
    }
    found.steps.sort();
    found.partial.sort();
    Ok(found)
}
