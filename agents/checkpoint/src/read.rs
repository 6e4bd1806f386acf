//! Reads a checkpoint: file lengths and headers are checked when it is opened, every chunk is verified when it is read.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use millrace_emulator::graph::TensorId;
use millrace_emulator::numerics::little_endian;
use millrace_emulator::plan::{ChunkId, GroupId, StateShape};
use serde::Serialize;

use crate::digest::Digest;
use crate::error::{Damage, Error, Result};
use crate::files::read_limited;
use crate::info::CheckpointInfo;
use crate::layout::{ELEMENT_BYTES, Layout, Moments};
use crate::lineage::LineagePoint;
use crate::manifest::{DataFile, DocumentDigest, JOB_FILE, LAYOUT_FILE, MANIFEST_FILE, Manifest, StepHistory};
use crate::safetensors_header;
use crate::section::Section;

/// Bytes read and hashed at a time.
const READ_BLOCK_BYTES: usize = 1 << 17;

/// A complete checkpoint on disk.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    manifest: Manifest,
    layout: Layout,
    job: String,
    open: Vec<OnceLock<File>>,
}

/// A file of a checkpoint, for copying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileEntry {
    /// Relative to the checkpoint's directory, with `/`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

impl Checkpoint {
    /// Opens a checkpoint and verifies every byte.
    ///
    /// # Errors
    /// See [`Checkpoint::open`] and [`Checkpoint::verify`].
    pub fn open_verified(dir: impl Into<PathBuf>) -> Result<Self> {
        let checkpoint = Self::open(dir)?;
        checkpoint.verify()?;
        Ok(checkpoint)
    }

    /// Opens the checkpoint in `dir`: reads its manifest and documents, checks every file's length and header. The data
    /// are verified when they are read, or all at once by [`Checkpoint::verify`].
    ///
    /// # Errors
    /// [`Error::NotACheckpoint`] or [`Error::Damaged`], which names the first damaged file.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self> {
        let checkpoint = Self::open_unchecked(dir)?;
        match checkpoint.damaged_files()?.into_iter().next() {
            Some(damage) => Err(Error::Damaged(damage)),
            None => Ok(checkpoint),
        }
    }

    /// Opens without reading any data file.
    fn open_unchecked(dir: impl Into<PathBuf>) -> Result<Self> {
        let dir = dir.into();
        let manifest = Manifest::read(&dir)?;
        let mut documents = [(LAYOUT_FILE, Vec::new()), (JOB_FILE, Vec::new())];
        for (name, bytes) in &mut documents {
            let file = manifest.documents.iter().find(|file| file.path == *name);
            let file =
                file.ok_or_else(|| Error::Damaged(Damage::file(dir.join(MANIFEST_FILE), format!("lists no {name}"))))?;
            *bytes = read_document(&dir, file)?;
        }
        let [(_, layout), (_, job)] = documents;
        let broken = |name: &str, reason: String| Error::Damaged(Damage::file(dir.join(name), reason));
        let layout = Layout::from_json(&layout).map_err(|e| broken(LAYOUT_FILE, format!("is not a layout: {e}")))?;
        let job = String::from_utf8(job).map_err(|_| broken(JOB_FILE, "is not UTF-8".into()))?;
        check_files(&layout, &manifest).map_err(|error| broken(MANIFEST_FILE, error.to_string()))?;
        let open = manifest.files.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { dir, manifest, layout, job, open })
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the step after which it was taken.
    pub const fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Returns the attempt that wrote it, and its step.
    pub const fn lineage_point(&self) -> LineagePoint {
        LineagePoint { attempt: self.manifest.epoch.attempt, step: self.manifest.step }
    }

    /// Returns files, chunks and tensors, as divided by the plan of the run that wrote it.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the optimizer's moments in it.
    pub const fn moments(&self) -> &Moments {
        &self.manifest.moments
    }

    /// Returns the resolved job of the run that wrote it, as JSON.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// Returns the numerics profile of the run that wrote it, as JSON.
    pub fn numerics_profile(&self) -> &str {
        &self.manifest.numerics_profile
    }

    /// Returns skipped batches and means up to the step.
    pub fn history(&self) -> StepHistory {
        self.manifest.history
    }

    /// Returns the output of `checkpoint info`.
    pub fn info(&self) -> CheckpointInfo {
        CheckpointInfo::new(&self.dir, &self.manifest)
    }

    /// Returns all its files, the manifest last: copied in this order, a copy is valid once it is complete.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn files(&self) -> Result<Vec<FileEntry>> {
        let path = self.dir.join(MANIFEST_FILE);
        let manifest = millrace_roots::metadata(&path).map_err(|e| Error::io("read", &path, e))?.len();
        let all = self.manifest.sizes().chain([(MANIFEST_FILE, manifest)]);
        Ok(all.map(|(path, bytes)| FileEntry { path: path.to_owned(), bytes }).collect())
    }

    /// Returns the digest of a chunk's section from the manifest.
    pub fn digest(&self, section: Section, chunk: ChunkId) -> Option<Digest> {
        let location = self.layout.chunks().get(chunk).filter(|_| section.index() <= self.moments().len())?;
        let first = self.layout.groups().get(location.group)?.chunks.start;
        self.manifest.files.get(self.layout.file_of(location.group, section))?.chunks.get(chunk - first).copied()
    }

    /// Reads and verifies one chunk's section. The chunk is one of [`Checkpoint::layout`]; use a
    /// [`PlanReader`](crate::PlanReader) to read by another plan.
    ///
    /// # Errors
    /// [`Error::Damaged`] with file, bytes and tensors if the digest does not match; `out` then holds the data read.
    pub fn read_chunk(&self, chunk: ChunkId, section: Section, out: &mut [f32]) -> Result<()> {
        let unknown_chunk = || Error::argument(format!("{section} of chunk {chunk}"));
        let expected = self.digest(section, chunk).ok_or_else(unknown_chunk)?;
        let location = *self.layout.chunks().get(chunk).ok_or_else(unknown_chunk)?;
        let range = self.layout.chunk_range(chunk, self.moments().shape(section)).ok_or_else(unknown_chunk)?;
        if out.len() != range.len() {
            let (found_elements, expected_elements) = (out.len(), range.len());
            return Err(Error::argument(format!(
                "{found_elements} elements for {section} of chunk {chunk}, which has {expected_elements}"
            )));
        }
        let index = self.layout.file_of(location.group, section);
        let bytes = self.file_range(index, &range);
        let is_full = self.moments().shape(section) == StateShape::Full;
        let damaged = |reason: &str| self.damage(index, location.group, &range, is_full, reason);
        let read = self.file(index).and_then(|file| read_f32(file, bytes.start, out));
        match read {
            Ok(found) if found == expected => Ok(()),
            Ok(_) => Err(damaged("does not match its digest in the manifest")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(damaged("is missing")),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(damaged("is too short")),
            Err(e) => Err(Error::io("read", self.dir.join(&self.manifest.files[index].path), e)),
        }
    }

    /// Reads a tensor's section and verifies its chunks.
    ///
    /// # Errors
    /// See [`Checkpoint::read_chunk`].
    pub fn read_tensor(&self, tensor: TensorId, section: Section) -> Result<Vec<f32>> {
        let ranges = self.layout.tensor_ranges(self.moments().shape(section));
        let (group, range) = ranges.get(tensor).ok_or_else(|| Error::argument(format!("tensor {tensor}")))?;
        let mut values = vec![0.0; range.len()];
        RangeCache::default().read(self, *group, range.clone(), section, &mut values)?;
        Ok(values)
    }

    /// Verifies everything and returns every damaged part. `progress` receives the bytes done so far after each chunk.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn find_damage(&self, mut progress: impl FnMut(u64)) -> Result<Vec<Damage>> {
        let mut found = self.damaged_files()?;
        let (mut done, mut values) = (0, Vec::new());
        for section in self.moments().sections() {
            for (chunk, location) in self.layout.chunks().iter().enumerate() {
                let file = self.dir.join(&self.manifest.files[self.layout.file_of(location.group, section)].path);
                // A missing or truncated file was already reported.
                if !found.iter().any(|damage| damage.file == file && damage.bytes.is_none()) {
                    let range = self.layout.chunk_range(chunk, self.moments().shape(section)).unwrap_or_default();
                    values.resize(range.len(), 0.0);
                    match self.read_chunk(chunk, section, &mut values) {
                        Err(Error::Damaged(damage)) => found.push(damage),
                        read => read?,
                    }
                }
                done += location.elements as u64 * ELEMENT_BYTES;
                progress(done);
            }
        }
        Ok(found)
    }

    /// Verifies everything and returns the first damage as an error.
    ///
    /// # Errors
    /// [`Error::Damaged`], or an error of the file system.
    pub fn verify(&self) -> Result<()> {
        match self.find_damage(|_| ())?.into_iter().next() {
            Some(damage) => Err(Error::Damaged(damage)),
            None => Ok(()),
        }
    }

    /// Returns documents and data files that are missing or have the wrong length or header.
    fn damaged_files(&self) -> Result<Vec<Damage>> {
        let mut found = Vec::new();
        for document in &self.manifest.documents {
            match read_document(&self.dir, document) {
                Err(Error::Damaged(damage)) => found.push(damage),
                read => drop(read?),
            }
        }
        for file in &self.manifest.files {
            let path = self.dir.join(&file.path);
            let reason = match millrace_roots::open(&path).and_then(|open| Ok((open.metadata()?.len(), open))) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Some("is missing".to_owned()),
                Err(e) => return Err(Error::io("read", path, e)),
                Ok((bytes, _)) if bytes != file.bytes => Some(wrong_length(bytes, file.bytes)),
                Ok((_, open)) => match safetensors_header::read_bytes(&open) {
                    Ok(header) if Digest::of(&header) == file.header_blake3 => None,
                    Ok(_) => Some("has a header that does not match its digest in the manifest".to_owned()),
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => Some(format!("can't be decoded: {e}")),
                    Err(e) => return Err(Error::io("read", path, e)),
                },
            };
            found.extend(reason.map(|reason| Damage::file(path, reason)));
        }
        Ok(found)
    }

    /// Returns the byte range of elements `range` of a group in its file.
    fn file_range(&self, index: usize, range: &Range<usize>) -> Range<u64> {
        let first = self.manifest.files[index].header_bytes;
        first + range.start as u64 * ELEMENT_BYTES..first + range.end as u64 * ELEMENT_BYTES
    }

    /// Returns damage of elements `range` of a group in file `index`. Without `is_full`, they are state of rows or
    /// columns of all of its tensors.
    fn damage(&self, index: usize, group: GroupId, range: &Range<usize>, is_full: bool, reason: &str) -> Error {
        let of_weights = if is_full { range.clone() } else { 0..usize::MAX };
        Error::Damaged(Damage {
            file: self.dir.join(&self.manifest.files[index].path),
            bytes: Some(self.file_range(index, range)),
            tensors: self.layout.tensor_names(group, &of_weights),
            reason: reason.to_owned(),
        })
    }

    fn file(&self, index: usize) -> io::Result<&File> {
        if let Some(file) = self.open[index].get() {
            return Ok(file);
        }
        let file = millrace_roots::open(self.dir.join(&self.manifest.files[index].path))?;
        Ok(self.open[index].get_or_init(|| file))
    }
}

/// Returns every damaged part of the checkpoint in `dir`, even if it can't be opened; empty if it is undamaged.
///
/// # Errors
/// `dir` is not a checkpoint, or an error of the file system.
pub fn verify(dir: impl Into<PathBuf>, progress: impl FnMut(u64)) -> Result<Vec<Damage>> {
    match Checkpoint::open_unchecked(dir) {
        Ok(checkpoint) => checkpoint.find_damage(progress),
        Err(Error::Damaged(damage)) => Ok(vec![damage]),
        Err(error) => Err(error),
    }
}

fn wrong_length(found: u64, expected: u64) -> String {
    format!("is {found} bytes long instead of {expected}")
}

fn read_document(dir: &Path, file: &DocumentDigest) -> Result<Vec<u8>> {
    let path = dir.join(&file.path);
    let damaged = |reason: String| Err(Error::Damaged(Damage::file(&path, reason)));
    match read_limited(&path, file.bytes) {
        Ok(bytes) if bytes.len() as u64 != file.bytes => damaged(wrong_length(bytes.len() as u64, file.bytes)),
        Ok(bytes) if Digest::of(&bytes) != file.blake3 => damaged("does not match its digest in the manifest".into()),
        Ok(bytes) => Ok(bytes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => damaged("is missing".into()),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => damaged(format!("can't be decoded: {e}")),
        Err(e) => Err(Error::io("read", path, e)),
    }
}

/// A manifest that lists other files than its layout needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum FileListError {
    #[error("lists a different number of files than its layout needs")]
    Count,
    #[error("lists {file}, which does not fit group {group}")]
    Size { file: String, group: String },
}

/// Checks that the manifest lists the files that the layout needs.
fn check_files(layout: &Layout, manifest: &Manifest) -> Result<(), FileListError> {
    let groups = layout.groups();
    if manifest.files.len() != groups.len() * (1 + manifest.moments.len()) {
        return Err(FileListError::Count);
    }
    let has_expected_size = |file: &DataFile, group: GroupId, section: Section| {
        let elements = layout.section_elements(group, manifest.moments.shape(section)) as u64;
        file.chunks.len() == groups[group].chunks.len()
            && file.header_bytes.checked_add(elements * ELEMENT_BYTES) == Some(file.bytes)
    };
    let parts = manifest.moments.sections().flat_map(|section| (0..groups.len()).map(move |group| (group, section)));
    match manifest.files.iter().zip(parts).find(|(file, (group, section))| !has_expected_size(file, *group, *section)) {
        Some((file, (group, _))) => {
            Err(FileListError::Size { file: file.path.clone(), group: groups[group].name.clone() })
        }
        None => Ok(()),
    }
}

/// Fills `out` from little-endian bytes at `offset` and returns their digest.
fn read_f32(file: &File, mut offset: u64, out: &mut [f32]) -> io::Result<Digest> {
    let (mut hasher, mut block) = (blake3::Hasher::new(), vec![0; READ_BLOCK_BYTES.min(out.len() * 4)]);
    for part in out.chunks_mut(READ_BLOCK_BYTES / 4) {
        let bytes = &mut block[..part.len() * 4];
        file.read_exact_at(bytes, offset)?;
        hasher.update(bytes);
        little_endian::read_f32(bytes, part);
        offset += bytes.len() as u64;
    }
    Ok(Digest::finish(&hasher))
}

/// Reads any range of a group in whole, verified chunks; caches the last one for the next range.
#[derive(Debug, Default)]
pub(crate) struct RangeCache {
    cached: Option<(ChunkId, Section)>,
    values: Vec<f32>,
}

impl RangeCache {
    pub fn read(
        &mut self,
        from: &Checkpoint,
        group: GroupId,
        range: Range<usize>,
        section: Section,
        out: &mut [f32],
    ) -> Result<()> {
        for (chunk, elements) in from.layout.overlapping(group, range.clone(), from.moments().shape(section)) {
            let part = elements.start.max(range.start)..elements.end.min(range.end);
            let target = &mut out[part.start - range.start..part.end - range.start];
            if part == elements {
                from.read_chunk(chunk, section, target)?;
                continue;
            }
            if self.cached != Some((chunk, section)) {
                self.cached = None;
                self.values.resize(elements.len(), 0.0);
                from.read_chunk(chunk, section, &mut self.values)?;
                self.cached = Some((chunk, section));
            }
            target.copy_from_slice(&self.values[part.start - elements.start..part.end - elements.start]);
        }
        Ok(())
    }
}
