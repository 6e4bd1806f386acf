//! Fetches files and checkpoints of a model_dir from a bucket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use millrace_checkpoint::{Checkpoint, CheckpointOrigin, checkpoint_name};
use object_store::ObjectMeta;

use super::names::{FileKind, file_of, is_manifest};
use super::{CopyEvent, ModelDirError, Reporter, WantedCheckpoints};
use crate::bucket::Bucket;
use crate::transfer::{CONCURRENT_FILES, TransferError, download};

/// Maximum bytes of a manifest that is read into memory: that of a model with 10 trillion parameters.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// The files of a model_dir in a bucket. Paths are those in the model_dir.
#[derive(Debug, Default)]
pub struct RemoteFiles {
    /// The files that belong to no checkpoint.
    pub run: Vec<RemoteFile>,
    /// The files of each checkpoint, by step.
    pub checkpoints: BTreeMap<u64, Vec<RemoteFile>>,
}

/// A file that is an object.
#[derive(Clone, Debug)]
pub struct RemoteFile {
    pub object: ObjectMeta,
    pub path: PathBuf,
}

impl RemoteFiles {
    /// Lists the files of the model_dir at the prefix of `bucket`.
    pub async fn list(bucket: &Bucket) -> Result<Self, ModelDirError> {
        let mut files = Self::default();
        for object in bucket.list(bucket.prefix()).await? {
            match file_of(bucket.prefix(), &object.location) {
                Some((FileKind::Run, path)) => files.run.push(RemoteFile { object, path }),
                Some((FileKind::Checkpoint(step), path)) => {
                    files.checkpoints.entry(step).or_default().push(RemoteFile { object, path });
                }
                None => {}
            }
        }
        Ok(files)
    }

    pub fn is_empty(&self) -> bool {
        self.run.is_empty() && self.checkpoints.is_empty()
    }

    /// Returns the manifest of a checkpoint; `None` if there is none: the checkpoint is not complete.
    pub fn manifest(&self, step: u64) -> Option<&RemoteFile> {
        self.checkpoints.get(&step)?.iter().find(|file| is_manifest(&file.path))
    }

    /// Returns the steps of the complete checkpoints, in ascending order.
    pub fn complete_steps(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.checkpoints.keys().copied().filter(|step| self.manifest(*step).is_some())
    }
}

/// Reads the manifest of a checkpoint.
pub async fn read_manifest(bucket: &Bucket, manifest: &RemoteFile) -> Result<Vec<u8>, ModelDirError> {
    let found = bucket.get(&manifest.object.location, MAX_MANIFEST_BYTES).await?;
    found.map(|(content, _)| content.into()).ok_or_else(|| ModelDirError::Changed { file: manifest.path.clone() })
}

/// Fetches the files that belong to no checkpoint to `dir`.
pub async fn fetch_run_files(bucket: &Bucket, files: &RemoteFiles, dir: &Path) -> Result<(), ModelDirError> {
    let files = files.run.iter().map(|file| (file, dir.join(&file.path)));
    fetch_all(bucket, files.collect()).await.map(drop)
}

/// Fetches files to these paths, several at a time; returns the number of their bytes.
async fn fetch_all(bucket: &Bucket, files: Vec<(&RemoteFile, PathBuf)>) -> Result<u64, ModelDirError> {
    let fetches = files.into_iter().map(|(file, to)| fetch(bucket, file, to).boxed()).collect::<Vec<_>>();
    let fetched = futures::stream::iter(fetches).buffer_unordered(CONCURRENT_FILES);
    Ok(fetched.try_collect::<Vec<u64>>().await?.iter().sum())
}

async fn fetch(bucket: &Bucket, file: &RemoteFile, to: PathBuf) -> Result<u64, ModelDirError> {
    if let Some(parent) = to.parent() {
        millrace_roots::create_dir_all(parent).map_err(TransferError::file("create", parent))?;
    }
    download(bucket, &file.object, &to).await?;
    Ok(file.object.size)
}

/// Fetches checkpoints to `dir`, which has the files of the run. Returns the step of the newest fetched one; `None` if
/// there is none.
pub async fn fetch_wanted(
    bucket: &Bucket,
    files: &RemoteFiles,
    dir: &Path,
    wanted: WantedCheckpoints,
    report: &Reporter,
) -> Result<Option<u64>, ModelDirError> {
    let steps: Vec<u64> = match wanted {
        WantedCheckpoints::Newest => return fetch_newest(bucket, files, dir, report).await,
        WantedCheckpoints::All => files.complete_steps().collect(),
        WantedCheckpoints::Step(wanted) => files.complete_steps().filter(|step| *step == wanted).collect(),
    };
    let mut newest = None;
    for step in steps {
        if fetch_checkpoint(bucket, files, step, dir, report).await? {
            newest = Some(step);
        }
    }
    Ok(newest)
}

/// Fetches the newest checkpoint that the last attempt of the model_dir in `dir` can resume from, and that is not
/// damaged. Returns its step; `None` if there is none.
async fn fetch_newest(
    bucket: &Bucket,
    files: &RemoteFiles,
    dir: &Path,
    report: &Reporter,
) -> Result<Option<u64>, ModelDirError> {
    for step in files.complete_steps().rev() {
        let Some(manifest) = files.manifest(step) else { continue };
        let text = read_manifest(bucket, manifest).await?;
        let is_candidate = match CheckpointOrigin::from_manifest(&text, &dir.join(checkpoint_name(step))) {
            Ok(origin) => origin.is_in_lineage(dir)?,
            Err(error) => {
                report(CopyEvent::skipped(step, &error));
                false
            }
        };
        if is_candidate && fetch_checkpoint(bucket, files, step, dir, report).await? {
            return Ok(Some(step));
        }
    }
    Ok(None)
}

/// Fetches the checkpoint of a step to `dir`, unless it has the same one, and verifies every byte. Returns false if it
/// is damaged.
async fn fetch_checkpoint(
    bucket: &Bucket,
    files: &RemoteFiles,
    step: u64,
    dir: &Path,
    report: &Reporter,
) -> Result<bool, ModelDirError> {
    if has_checkpoint(bucket, files, step, dir).await? {
        return Ok(true);
    }
    let name = checkpoint_name(step);
    // An interrupted fetch leaves what an interrupted writer leaves, which the next run removes.
    let (partial, target) = (dir.join(format!("{name}.partial-bucket")), dir.join(&name));
    remove_dir(&partial)?;
    let of_checkpoint = files.checkpoints.get(&step).into_iter().flatten();
    let inside = of_checkpoint.filter_map(|file| Some((file, partial.join(file.path.strip_prefix(&name).ok()?))));
    let bytes = fetch_all(bucket, inside.collect()).await?;
    let fetched = partial.clone();
    let verified = tokio::task::spawn_blocking(move || Checkpoint::open_verified(&fetched).map(drop)).await;
    match verified.map_err(|error| TransferError::file("verify", &partial)(std::io::Error::other(error)))? {
        Ok(()) => {
            remove_dir(&target)?;
            millrace_roots::rename(&partial, &target).map_err(TransferError::file("rename", &partial))?;
            sync_dir(dir)?;
            report(CopyEvent::Fetched { name, bytes });
            Ok(true)
        }
        Err(error @ (millrace_checkpoint::Error::Damaged(_) | millrace_checkpoint::Error::NotACheckpoint { .. })) => {
            report(CopyEvent::skipped(step, &error));
            remove_dir(&partial)?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the directory has the checkpoint of a step in the version that is in the bucket.
async fn has_checkpoint(bucket: &Bucket, files: &RemoteFiles, step: u64, dir: &Path) -> Result<bool, ModelDirError> {
    let Some(manifest) = files.manifest(step) else { return Ok(false) };
    let Ok(here) = millrace_roots::read(dir.join(&manifest.path)) else { return Ok(false) };
    Ok(read_manifest(bucket, manifest).await? == here)
}

/// Removes a directory and its content, if it exists.
pub fn remove_dir(path: &Path) -> Result<(), TransferError> {
    match millrace_roots::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(TransferError::file("remove", path)(error)),
        _ => Ok(()),
    }
}

fn sync_dir(path: &Path) -> Result<(), TransferError> {
    millrace_roots::open_dir(path).and_then(|dir| dir.sync_all()).map_err(TransferError::file("sync", path))
}
