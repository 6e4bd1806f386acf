//! Writing a checkpoint: staged by the coordinator, filled by the shards, published at once.
//!
//! 1. The coordinator makes a [`Staging`]: the directory `checkpoint_<step>.partial-<epoch>.<n>` with every file at its
//!    full length and with its header. Only a holder of the model_dir's lock can.
//! 2. Each shard opens a [`RangeWriter`] on it and writes the chunks it owns, in any order, and reports their digests
//!    once [`RangeWriter::finish`] has put them on disk. Ranges of different shards never overlap.
//! 3. The coordinator enters the digests and calls [`Staging::publish`]: documents, manifest (last, by rename), and the
//!    directory's own rename to `checkpoint_<step>`; every step is on disk before the next.
//!
//! A run that dies in between leaves a `.partial-` directory, never a checkpoint; [`crate::clean_up`] removes it. The
//! epoch in the name keeps writers of an abandoned attempt away from the next one's files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use millrace_emulator::plan::{ChunkId, StreamPlan};

use crate::digest::{CheckpointDigests, Digest};
use crate::error::{Error, Result};
use crate::files::{remove_dir, rename_synced, sync_dir, to_le_bytes, write_synced};
use crate::layout::{ELEMENT_BYTES, FileSpec, Layout, Moments, Section};
use crate::list::{name_of, partial_name, replaced_name};
use crate::lock::ModelDirLock;
use crate::manifest::{
    CheckpointMetadata, DocumentDigest, INDEX_FILE, JOB_FILE, LAYOUT_FILE, MANIFEST_FILE, Manifest, WriterEpoch,
};

/// Stagings that this process has made.
static STAGINGS: AtomicU64 = AtomicU64::new(0);

/// A checkpoint being written. Dropped without [`Staging::publish`], it is removed.
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
    /// Makes the staging directory with all its files.
    ///
    /// # Errors
    /// When the lock was lost, the plan is not valid, or the file system refuses.
    pub fn create(
        lock: &Arc<ModelDirLock>,
        plan: &StreamPlan,
        step: u64,
        epoch: WriterEpoch,
        moments: &Moments,
    ) -> Result<Self> {
        let layout = Layout::from_plan(plan)?;
        moments.check().map_err(Error::Argument)?;
        lock.check_held()?;
        // The same epoch may try the same step again: no file of the first try may be taken for one of the second.
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

    /// The directory, for the shards' [`RangeWriter::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The step.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Enters the digest of a chunk that a shard has put on disk.
    ///
    /// # Errors
    /// When there is no such chunk, or another digest was entered for it.
    pub fn record_digest(&mut self, section: Section, chunk: ChunkId, digest: Digest) -> Result<()> {
        self.digests.set(section, chunk, digest)
    }

    /// The first chunk whose digest is still to come.
    pub fn first_missing(&self) -> Option<(Section, ChunkId)> {
        self.digests.missing()
    }

    /// Makes it a checkpoint and returns its directory. A checkpoint of the same step is replaced.
    ///
    /// # Errors
    /// When a chunk was not reported, a file is not as long as it was made, the lock was lost, or the file system
    /// refuses; the staging directory is then removed.
    pub fn publish(mut self, facts: CheckpointMetadata) -> Result<PathBuf> {
        if let Some((section, chunk)) = self.first_missing() {
            return Err(Error::Argument(format!("{section} of chunk {chunk}, never reported as written")));
        }
        for spec in self.layout.files(&self.moments) {
            // The shards have synced their ranges; this is for the header and the length, which are the coordinator's.
            let path = self.path.join(&spec.path);
            check_length(&path, spec.bytes)?;
            millrace_roots::open(&path).and_then(|file| file.sync_all()).map_err(|e| Error::io("sync", &path, e))?;
        }
        let documents = self.write_documents(&facts)?;
        let (layout, moments) = (&self.layout, &self.moments);
        let manifest = Manifest::new((self.step, self.epoch), facts, layout, moments, documents, &self.digests);
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

    fn write_documents(&self, facts: &CheckpointMetadata) -> Result<Vec<DocumentDigest>> {
        let json = |value: serde_json::Result<Vec<u8>>| value.map_err(|e| Error::Argument(e.to_string()));
        let documents = [
            (LAYOUT_FILE, json(serde_json::to_vec(&self.layout))?),
            (INDEX_FILE, json(serde_json::to_vec_pretty(&self.index()))?),
            (JOB_FILE, facts.job.clone().into_bytes()),
        ];
        for (name, bytes) in &documents {
            write_synced(&self.path.join(name), bytes)?;
        }
        Ok(documents.iter().map(|(name, bytes)| DocumentDigest::of(name, bytes)).collect())
    }

    /// Which tensor is in which file, in the form the Hugging Face tools read.
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
        let target = dir.join(name_of(self.step));
        let old = dir.join(replaced_name(self.step, self.epoch));
        let replaces = millrace_roots::metadata(&target).is_ok();
        if replaces {
            // A crash between the two renames leaves the old one under this name, from which it is brought back.
            remove_dir(&old)?;
            rename_synced(&target, &old)?;
        }
        rename_synced(&self.path, &target)?;
        self.published = true;
        if replaces {
            // Already replaced; what can't be removed now is removed at the next start.
            let _ = remove_dir(&old);
        }
        Ok(target)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // What can't be removed now is removed at the next start.
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

/// A shard's hand on a checkpoint being written: puts the chunks it owns at their places.
#[derive(Debug)]
pub struct RangeWriter {
    path: PathBuf,
    layout: Layout,
    sections: usize,
    specs: Vec<FileSpec>,
    open: Vec<OnceLock<File>>,
    block: Vec<u8>,
}

impl RangeWriter {
    /// Opens the staging directory the coordinator named. Files are opened as they are first written.
    ///
    /// # Errors
    /// When the plan is not valid or the directory is not there.
    pub fn open(staging: impl Into<PathBuf>, plan: &StreamPlan, moments: &Moments) -> Result<Self> {
        let path = staging.into();
        let layout = Layout::from_plan(plan)?;
        moments.check().map_err(Error::Argument)?;
        millrace_roots::metadata(&path).map_err(|e| Error::io("open", &path, e))?;
        let specs = layout.files(moments);
        let open = specs.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { path, layout, sections: 1 + moments.len(), specs, open, block: Vec::new() })
    }

    /// Writes the whole of one chunk's section and returns the digest to report, once [`RangeWriter::finish`] is done.
    ///
    /// # Errors
    /// When there is no such chunk, `values` is not as long as it, or the file system refuses.
    pub fn write_chunk(&mut self, chunk: ChunkId, section: Section, values: &[f32]) -> Result<Digest> {
        let place = self.layout.chunks().get(chunk).copied().filter(|_| section.index() < self.sections);
        let place = place.ok_or_else(|| Error::Argument(format!("{section} of chunk {chunk}")))?;
        if values.len() != place.elements {
            let (given, needed) = (values.len(), place.elements);
            return Err(Error::Argument(format!("{given} elements for chunk {chunk}, which has {needed}")));
        }
        to_le_bytes(values, &mut self.block);
        let at = self.layout.file_of(place.group, section);
        let offset = self.specs[at].header.len() as u64 + place.start as u64 * ELEMENT_BYTES;
        let written = self.file(at)?.write_all_at(&self.block, offset);
        written.map_err(|e| Error::io("write", self.path.join(&self.specs[at].path), e))?;
        Ok(Digest::of(&self.block))
    }

    /// Waits until all that was written is on disk.
    ///
    /// # Errors
    /// When the file system refuses, as a full one may only now.
    pub fn finish(self) -> Result<()> {
        for (file, spec) in self.open.iter().zip(&self.specs) {
            if let Some(file) = file.get() {
                file.sync_all().map_err(|e| Error::io("write", self.path.join(&spec.path), e))?;
                check_length(&self.path.join(&spec.path), spec.bytes)?;
            }
        }
        Ok(())
    }

    fn file(&self, at: usize) -> Result<&File> {
        if let Some(file) = self.open[at].get() {
            return Ok(file);
        }
        let path = self.path.join(&self.specs[at].path);
        check_length(&path, self.specs[at].bytes)?;
        let file =
            millrace_roots::OpenOptions::new().write(true).open(&path).map_err(|e| Error::io("open", &path, e))?;
        Ok(self.open[at].get_or_init(|| file))
    }
}
