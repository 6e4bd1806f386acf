//! Writes a checkpoint: the coordinator stages it, the shards fill it, and the coordinator publishes it atomically.
//!
//! 1. The coordinator creates a [`Staging`]: the directory `checkpoint_<step>.partial-<epoch>.<n>` with every file at
//!    its full length and with its header. This requires the lock of the model_dir.
//! 2. Each shard opens a [`RangeWriter`] on it, writes the chunks it owns in any order, and reports their digests once
//!    [`RangeWriter::finish`] has synced them to disk. Ranges of different shards never overlap.
//! 3. The coordinator records the digests and calls [`Staging::publish`]: documents, manifest (last, by rename), and
//!    the rename of the directory to `checkpoint_<step>`. Each step is synced to disk before the next.
//!
//! A run that dies in between leaves a `.partial-` directory, never a checkpoint; [`crate::clean_up`] removes it.
//! Because the epoch is in the name, writers of an abandoned attempt can't write to the next one's files.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use millrace_emulator::plan::{ChunkId, StreamPlan};

use crate::digest::{CheckpointDigests, Digest};
use crate::error::{Error, Result};
use crate::files::{remove_dir, rename_synced, sync_dir, to_le_bytes, write_synced};
use crate::layout::{ELEMENT_BYTES, FileSpec, Layout, Moments};
use crate::list::{checkpoint_name, partial_name, replaced_name};
use crate::lock::ModelDirLock;
use crate::manifest::{
    CheckpointMetadata, DocumentDigest, INDEX_FILE, JOB_FILE, LAYOUT_FILE, MANIFEST_FILE, Manifest, WriterEpoch,
};
use crate::section::Section;

/// Number of stagings that this process has created.
static STAGINGS: AtomicU64 = AtomicU64::new(0);

/// A checkpoint being written. Removed on drop unless [`Staging::publish`] succeeded.
#[derive(Debug)]
pub struct Staging {
    lock: Arc<ModelDirLock>,
    path: PathBuf,
    layout: Layout,
    moments: Moments,
    step: u64,
    epoch: WriterEpoch,
    digests: CheckpointDigests,
    published: bool,
}

impl Staging {
    /// Creates the staging directory with all its files.
    ///
    /// # Errors
    /// The lock was lost, the plan is invalid, or an error of the file system.
    pub fn create(
        lock: &Arc<ModelDirLock>,
        plan: &StreamPlan,
        step: u64,
        epoch: WriterEpoch,
        moments: &Moments,
    ) -> Result<Self> {
        let layout = Layout::from_plan(plan)?;
        moments.check().map_err(Error::argument)?;
        lock.check_held()?;
        // The same epoch may try the same step again: files of the two attempts must be distinguishable.
        let number = STAGINGS.fetch_add(1, Ordering::Relaxed);
        let path = lock.model_dir().join(partial_name(step, epoch, number));
        remove_dir(&path)?;
        let digests = CheckpointDigests::new(&layout, moments);
        let staging = Self {
            lock: Arc::clone(lock),
            path,
            layout,
            moments: moments.clone(),
            step,
            epoch,
            digests,
            published: false,
        };
        for dir in staging.directories() {
            millrace_roots::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
        }
        for spec in staging.layout.files(moments) {
            create_file(&staging.path.join(&spec.path), &spec)?;
        }
        Ok(staging)
    }

    /// Returns the directory, for the shards' [`RangeWriter::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the step.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Records the digest of a chunk that a shard has synced to disk.
    ///
    /// # Errors
    /// There is no such chunk, or another digest was recorded for it.
    pub fn record_digest(&mut self, section: Section, chunk: ChunkId, digest: Digest) -> Result<()> {
        self.digests.set(section, chunk, digest)
    }

    /// Returns the first chunk without a digest.
    pub fn first_missing(&self) -> Option<(Section, ChunkId)> {
        self.digests.missing()
    }

    /// Publishes the checkpoint and returns its directory. A checkpoint of the same step is replaced.
    ///
    /// # Errors
    /// A digest is missing, a file has the wrong length, the lock was lost, or an error of the file system. The staging
    /// directory is then removed.
    pub fn publish(mut self, metadata: CheckpointMetadata) -> Result<PathBuf> {
        if let Some((section, chunk)) = self.first_missing() {
            return Err(Error::Incomplete { section, chunk });
        }
        for spec in self.layout.files(&self.moments) {
            // The shards have synced their ranges; this syncs the header and the length, which the coordinator wrote.
            let path = self.path.join(&spec.path);
            check_length(&path, spec.bytes)?;
            millrace_roots::open(&path).and_then(|file| file.sync_all()).map_err(|e| Error::io("sync", &path, e))?;
        }
        let documents = self.write_documents(&metadata)?;
        let (layout, moments) = (&self.layout, &self.moments);
        let manifest = Manifest::new((self.step, self.epoch), metadata, layout, moments, documents, &self.digests);
        let draft = self.path.join("manifest.json.draft");
        write_synced(&draft, &manifest.encode())?;
        rename_synced(&draft, &self.path.join(MANIFEST_FILE))?;
        self.directories().iter().try_for_each(|dir| sync_dir(dir))?;
        self.lock.check_held()?;
        self.move_into_place()
    }

    fn directories(&self) -> Vec<PathBuf> {
        let mut all = vec![self.path.clone(), self.path.join("parameters")];
        all.extend((!self.moments.is_empty()).then(|| self.path.join("optimizer")));
        all
    }

    fn write_documents(&self, metadata: &CheckpointMetadata) -> Result<Vec<DocumentDigest>> {
        let json = |value: serde_json::Result<Vec<u8>>| value.map_err(Error::argument);
        let documents = [
            (LAYOUT_FILE, json(serde_json::to_vec(&self.layout))?),
            (INDEX_FILE, json(serde_json::to_vec_pretty(&self.index()))?),
            (JOB_FILE, metadata.job.clone().into_bytes()),
        ];
        for (name, bytes) in &documents {
            write_synced(&self.path.join(name), bytes)?;
        }
        Ok(documents.iter().map(|(name, bytes)| DocumentDigest::of(name, bytes)).collect())
    }

    /// Returns the index of tensors and files, in the format of the Hugging Face tools.
    fn index(&self) -> serde_json::Value {
        let specs = self.layout.files(&Moments::none());
        let members = specs.iter().zip(self.layout.groups());
        let weight_map: serde_json::Map<_, _> = members
            .flat_map(|(spec, group)| group.tensors.iter().map(move |(tensor, _)| (spec, *tensor)))
            .map(|(spec, tensor)| (self.layout.graph().tensors[tensor].name.clone(), spec.path.clone().into()))
            .collect();
        serde_json::json!({"metadata": {"total_size": self.layout.parameters() * ELEMENT_BYTES}, "weight_map": weight_map})
    }

    fn move_into_place(&mut self) -> Result<PathBuf> {
        let dir = self.lock.model_dir();
        let target = dir.join(checkpoint_name(self.step));
        let old = dir.join(replaced_name(self.step, self.epoch));
        let replaces = millrace_roots::metadata(&target).is_ok();
        if replaces {
            // After a crash between the two renames the old one has this name, from which it is restored.
            remove_dir(&old)?;
            rename_synced(&target, &old)?;
        }
        rename_synced(&self.path, &target)?;
        self.published = true;
        if replaces {
            // Already replaced; if it can't be removed now, the next start removes it.
            let _ = remove_dir(&old);
        }
        Ok(target)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // If it can't be removed now, the next start removes it.
            let _ = remove_dir(&self.path);
        }
    }
}

fn create_file(path: &Path, spec: &FileSpec) -> Result<()> {
    let file = millrace_roots::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|e| Error::io("create", path, e))?;
    let written = file.write_all_at(&spec.header, 0).and_then(|()| file.set_len(spec.bytes));
    written.map_err(|e| Error::io("write", path, e))
}

fn check_length(path: &Path, expected: u64) -> Result<()> {
    let found = millrace_roots::metadata(path).map_err(|e| Error::io("read", path, e))?.len();
    if found == expected {
        return Ok(());
    }
    let cause = std::io::Error::other(format!("it is {found} bytes long instead of {expected}"));
    Err(Error::io("finish", path, cause))
}

/// Checks that `path` still names the file that was written: storage that was mounted again, or restored, may have
/// another file with this name.
fn check_same_file(file: &File, path: &Path) -> Result<()> {
    let written = file.metadata().map_err(|e| Error::io("finish", path, e))?;
    let named = millrace_roots::metadata(path).map_err(|e| Error::io("finish", path, e))?;
    if (written.dev(), written.ino()) == (named.dev(), named.ino()) {
        return Ok(());
    }
    Err(Error::io("finish", path, std::io::Error::other("it was replaced by another file meanwhile")))
}

/// A shard's writer of a staged checkpoint: writes the chunks that the shard owns.
#[derive(Debug)]
pub struct RangeWriter {
    path: PathBuf,
    layout: Layout,
    moments: Moments,
    specs: Vec<FileSpec>,
    open: Vec<OnceLock<File>>,
    block: Vec<u8>,
}

impl RangeWriter {
    /// Opens the staging directory given by the coordinator. Files are opened when they are first written.
    ///
    /// # Errors
    /// The plan is invalid or the directory does not exist.
    pub fn open(staging: impl Into<PathBuf>, plan: &StreamPlan, moments: &Moments) -> Result<Self> {
        let path = staging.into();
        let layout = Layout::from_plan(plan)?;
        moments.check().map_err(Error::argument)?;
        millrace_roots::metadata(&path).map_err(|e| Error::io("open", &path, e))?;
        let specs = layout.files(moments);
        let open = specs.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { path, layout, moments: moments.clone(), specs, open, block: Vec::new() })
    }

    /// Returns the elements of a chunk's section in its file. State of rows or columns belongs to the first chunk of
    /// its group.
    ///
    /// # Errors
    /// There is no such chunk or section.
    pub fn range(&self, chunk: ChunkId, section: Section) -> Result<Range<usize>> {
        let range = self.layout.chunk_range(chunk, self.moments.shape(section));
        let range = range.filter(|_| section.index() <= self.moments.len());
        range.ok_or_else(|| Error::argument(format!("{section} of chunk {chunk}")))
    }

    /// Writes one chunk's section and returns the digest to report after [`RangeWriter::finish`].
    ///
    /// # Errors
    /// There is no such chunk, `values` has the wrong length, or an error of the file system.
    pub fn write_chunk(&mut self, chunk: ChunkId, section: Section, values: &[f32]) -> Result<Digest> {
        let range = self.range(chunk, section)?;
        if values.len() != range.len() {
            let (found, expected) = (values.len(), range.len());
            return Err(Error::argument(format!(
                "{found} elements for {section} of chunk {chunk}, which has {expected}"
            )));
        }
        if range.is_empty() {
            return Ok(Digest::of(&[]));
        }
        to_le_bytes(values, &mut self.block);
        let index = self.layout.file_of(self.layout.chunks()[chunk].group, section);
        let offset = self.specs[index].header.len() as u64 + range.start as u64 * ELEMENT_BYTES;
        let written = self.file(index)?.write_all_at(&self.block, offset);
        written.map_err(|e| Error::io("write", self.path.join(&self.specs[index].path), e))?;
        Ok(Digest::of(&self.block))
    }

    /// Syncs everything that was written to disk.
    ///
    /// # Errors
    /// An error of the file system; lack of space may only be reported here.
    pub fn finish(self) -> Result<()> {
        for (file, spec) in self.open.iter().zip(&self.specs) {
            if let Some(file) = file.get() {
                let path = self.path.join(&spec.path);
                file.sync_all().map_err(|e| Error::io("write", &path, e))?;
                check_length(&path, spec.bytes)?;
                check_same_file(file, &path)?;
            }
        }
        Ok(())
    }

    fn file(&self, index: usize) -> Result<&File> {
        if let Some(file) = self.open[index].get() {
            return Ok(file);
        }
        let path = self.path.join(&self.specs[index].path);
        check_length(&path, self.specs[index].bytes)?;
        let file =
            millrace_roots::OpenOptions::new().write(true).open(&path).map_err(|e| Error::io("open", &path, e))?;
        Ok(self.open[index].get_or_init(|| file))
    }
}
