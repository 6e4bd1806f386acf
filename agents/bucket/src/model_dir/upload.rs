//! Uploads the files of a model_dir to a bucket while a run writes them.
//!
//! * A checkpoint is complete in the bucket when it has a manifest. The manifest is written after all other files, and
//!   deleted before them, so that an interruption leaves no incomplete checkpoint that looks complete.
//! * Before the manifest of a checkpoint is written, the files of the run are uploaded: metrics, the journal and the
//!   record of attempts lead up to every checkpoint in the bucket.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use millrace_checkpoint::{CheckpointOrigin, MANIFEST_FILE, checkpoint_name, superseded};
use object_store::path::Path as ObjectPath;

use super::fetch::{RemoteFiles, read_manifest};
use super::lease::Lease;
use super::names::{FileKind, file_of, is_manifest, kind_of, object_of};
use super::{CopyEvent, ModelDirError, Reporter};
use crate::address::BucketAddress;
use crate::bucket::Bucket;
use crate::transfer::{CONCURRENT_FILES, TransferError, upload};

/// Interval between two uploads of a file that changes, for a short file.
const MIN_CHANGED_FILE_INTERVAL: Duration = Duration::from_secs(15);
/// Bytes of a file by which this interval becomes a second longer, so that a growing file costs little traffic.
const BYTES_PER_INTERVAL_SECOND: u64 = 1 << 20;

/// Distinguishes two contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    bytes: u64,
    modified: Option<SystemTime>,
}

/// A checkpoint that the bucket has.
#[derive(Clone, Copy, Debug)]
struct RemoteCheckpoint {
    /// Digest of its manifest, which identifies its content.
    manifest: blake3::Hash,
    /// `None` if its manifest is damaged: such a checkpoint is never deleted.
    origin: Option<CheckpointOrigin>,
}

/// Uploads the files of one model_dir.
pub struct Uploader {
    bucket: Bucket,
    address: BucketAddress,
    dir: PathBuf,
    copy: String,
    report: Reporter,
    max_checkpoints: usize,
    /// The run's files in the bucket that this process has uploaded, and when.
    files: HashMap<PathBuf, (FileVersion, Instant)>,
    checkpoints: BTreeMap<u64, RemoteCheckpoint>,
    /// The manifests that were found in the directory, and of which the content is in the bucket.
    manifests: HashMap<u64, FileVersion>,
}

impl Uploader {
    /// Prepares the upload of `dir`, the copy `copy` of the model_dir at `address`, and removes what interrupted
    /// uploads have left in the bucket. `files` are the files there.
    pub async fn new(
        (bucket, address): (Bucket, BucketAddress),
        (dir, copy): (PathBuf, String),
        report: Reporter,
        files: &RemoteFiles,
        max_checkpoints: usize,
    ) -> Result<Self, ModelDirError> {
        let mut checkpoints = BTreeMap::new();
        for (&step, parts) in &files.checkpoints {
            let Some(manifest) = files.manifest(step) else {
                bucket.delete(parts.iter().map(|part| part.object.location.clone()).collect()).await?;
                continue;
            };
            let text = read_manifest(&bucket, manifest).await?;
            checkpoints.insert(step, RemoteCheckpoint::new(&text, &dir));
        }
        let (files, manifests) = (HashMap::new(), HashMap::new());
        Ok(Self { bucket, address, dir, copy, report, max_checkpoints, files, checkpoints, manifests })
    }

    /// Uploads what is new or changed; at the `last` call also what was uploaded a moment ago.
    pub async fn upload_changes(&mut self, last: bool) -> Result<(), ModelDirError> {
        for (step, version) in self.local_checkpoints()? {
            if self.manifests.get(&step) != Some(&version) && self.upload_checkpoint(step, version).await? {
                self.manifests.insert(step, version);
                self.delete_superseded().await?;
            }
        }
        self.upload_run_files(last).await
    }

    /// Returns the steps of the checkpoints in the directory, in ascending order, and the versions of their manifests.
    fn local_checkpoints(&self) -> Result<Vec<(u64, FileVersion)>, ModelDirError> {
        let mut found = Vec::new();
        for entry in read_dir(&self.dir)? {
            let manifest = Path::new(entry.name()).join(MANIFEST_FILE);
            let Some(FileKind::Checkpoint(step)) = kind_of(&[entry.name(), MANIFEST_FILE]) else { continue };
            if let Some(version) = version_of(&self.dir.join(manifest))? {
                found.push((step, version));
            }
        }
        found.sort_by_key(|(step, _)| *step);
        Ok(found)
    }

    /// Uploads the checkpoint of a step whose manifest is `version`, unless the bucket has it. Returns false if it was
    /// deleted or replaced meanwhile.
    async fn upload_checkpoint(&mut self, step: u64, version: FileVersion) -> Result<bool, ModelDirError> {
        let name = checkpoint_name(step);
        let manifest_path = self.dir.join(&name).join(MANIFEST_FILE);
        let manifest = if_present(&manifest_path, millrace_roots::read(&manifest_path))?;
        let Some(manifest) = manifest else { return Ok(false) };
        let checkpoint = RemoteCheckpoint::new(&manifest, &self.dir);
        if self.checkpoints.get(&step).is_some_and(|known| known.manifest == checkpoint.manifest) {
            return Ok(true);
        }
        self.check_lease().await?;
        if self.checkpoints.remove(&step).is_some() {
            self.delete_checkpoint(step).await?;
        }
        let files = self.files_below(Path::new(&name))?.into_iter().filter(|file| !is_manifest(file));
        let uploads = files.map(|file| self.upload_file(file).boxed()).collect::<Vec<_>>();
        let sent = futures::stream::iter(uploads).buffer_unordered(CONCURRENT_FILES);
        let bytes = match sent.try_collect::<Vec<u64>>().await {
            Ok(sent) => sent.iter().sum::<u64>() + manifest.len() as u64,
            // Retention has deleted the checkpoint. What is in the bucket has no manifest.
            Err(TransferError::File { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        self.upload_run_files(true).await?;
        if version_of(&manifest_path)? != Some(version) {
            return Ok(false);
        }
        self.check_lease().await?;
        self.bucket.put(&self.object(&Path::new(&name).join(MANIFEST_FILE)), Bytes::from(manifest)).await?;
        self.checkpoints.insert(step, checkpoint);
        (self.report)(CopyEvent::Uploaded { name, bytes, address: self.address.to_string() });
        Ok(true)
    }

    /// Checks that no other machine has taken the model_dir over, before anything is written to it.
    async fn check_lease(&self) -> Result<(), ModelDirError> {
        Lease::check_held(&self.bucket, &self.address, &self.copy).await
    }

    async fn upload_file(&self, file: PathBuf) -> Result<u64, TransferError> {
        upload(&self.bucket, &self.dir.join(&file), &self.object(&file)).await
    }

    /// Deletes the checkpoints that retention does not keep.
    async fn delete_superseded(&mut self) -> Result<(), ModelDirError> {
        let known = self.checkpoints.iter();
        let candidates = known.filter_map(|(step, checkpoint)| Some((checkpoint.origin?, *step))).collect();
        for step in superseded(candidates, &self.dir, self.max_checkpoints)? {
            self.delete_checkpoint(step).await?;
            self.checkpoints.remove(&step);
        }
        Ok(())
    }

    async fn delete_checkpoint(&self, step: u64) -> Result<(), ModelDirError> {
        let directory = self.object(Path::new(&checkpoint_name(step)));
        self.bucket.delete(vec![directory.clone().join(MANIFEST_FILE)]).await?;
        let objects = self.bucket.list(&directory).await?.into_iter().map(|object| object.location);
        let is_file = |object: &ObjectPath| file_of(self.bucket.prefix(), object).is_some();
        Ok(self.bucket.delete(objects.filter(is_file).collect()).await?)
    }

    /// Uploads the files of the run that are new or changed, and deletes those that were deleted. A file that changes
    /// all the time is uploaded at intervals, unless `all` are requested.
    async fn upload_run_files(&mut self, all: bool) -> Result<(), ModelDirError> {
        let (mut present, mut due) = (Vec::new(), Vec::new());
        for file in self.files_below(Path::new(""))? {
            let Some(version) = version_of(&self.dir.join(&file))? else { continue };
            let interval = MIN_CHANGED_FILE_INTERVAL + Duration::from_secs(version.bytes / BYTES_PER_INTERVAL_SECOND);
            let is_due = match self.files.get(&file) {
                None => true,
                Some((uploaded, at)) => *uploaded != version && (all || at.elapsed() >= interval),
            };
            if is_due {
                due.push((file.clone(), version));
            }
            present.push(file);
        }
        if !due.is_empty() {
            self.check_lease().await?;
        }
        for (file, version) in due {
            self.upload_file(file.clone()).await?;
            self.files.insert(file, (version, Instant::now()));
        }
        let is_deleted = |file: &&PathBuf| !present.contains(file);
        let deleted: Vec<PathBuf> = self.files.keys().filter(is_deleted).cloned().collect();
        self.bucket.delete(deleted.iter().map(|file| self.object(file)).collect()).await?;
        self.files.retain(|file, _| !deleted.contains(file));
        Ok(())
    }

    /// Returns the files below a directory of the model_dir: of a checkpoint, or, of the model_dir itself, those of the
    /// run. Paths begin in the model_dir.
    fn files_below(&self, directory: &Path) -> Result<Vec<PathBuf>, ModelDirError> {
        let (mut files, mut directories) = (Vec::new(), vec![directory.to_owned()]);
        while let Some(directory) = directories.pop() {
            for entry in read_dir(&self.dir.join(&directory))? {
                let is_checkpoint = directory.as_os_str().is_empty() && entry.name().starts_with("checkpoint_");
                let path = directory.join(entry.name());
                let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
                if entry.is_dir && !is_checkpoint {
                    directories.push(path);
                } else if entry.is_file && kind_of(&parts).is_some() {
                    files.push(path);
                }
            }
        }
        files.sort();
        Ok(files)
    }

    fn object(&self, file: &Path) -> ObjectPath {
        object_of(self.bucket.prefix(), file)
    }
}

impl RemoteCheckpoint {
    fn new(manifest: &[u8], dir: &Path) -> Self {
        let origin = CheckpointOrigin::from_manifest(manifest, dir).ok();
        Self { manifest: blake3::hash(manifest), origin }
    }
}

/// Lists a directory; one that was deleted has no entries.
fn read_dir(path: &Path) -> Result<Vec<millrace_roots::Entry>, TransferError> {
    Ok(if_present(path, millrace_roots::read_dir(path))?.unwrap_or_default())
}

/// Returns the version of a file; `None` if it does not exist.
fn version_of(path: &Path) -> Result<Option<FileVersion>, TransferError> {
    let metadata = if_present(path, millrace_roots::metadata(path))?;
    Ok(metadata.map(|metadata| FileVersion { bytes: metadata.len(), modified: metadata.modified().ok() }))
}

/// Returns the result of reading `path`; `None` if it does not exist.
fn if_present<T>(path: &Path, read: std::io::Result<T>) -> Result<Option<T>, TransferError> {
    match read {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        read => read.map(Some).map_err(TransferError::file("read", path)),
    }
}
