//! The files of a job on this machine.

use std::io::{self, SeekFrom};
use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::jiff::Timestamp;
use millrace_checkpoint::{CheckpointInfo, MANIFEST_FILE};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::checkpoint::checkpoint_dir;
use super::errors::{checkpoint_unreadable, file_not_found, io_error};
use super::job_paths::{is_artifact, is_checkpoint_file, may_hold_artifacts};
use super::{
    ByteChunks, CheckpointFiles, ExportCache, FileContent, FileInfo, FileSet, Files, Generator, OpenFile,
    READ_CHUNK_BYTES,
};
use crate::error::{ApiError, Result};
use crate::generation::{GenerationRequest, GenerationStream};

/// Limit on the files that a listing contains, and on the directories that are read for it.
const MAX_LISTED_FILES: usize = 10_000;

/// The files of a job on this machine.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    model_dir: PathBuf,
    /// The exported checkpoints of the job.
    exports: ExportCache,
    generator: Generator,
}

impl LocalFiles {
    /// Serves the files of `model_dir`, with the exports of its job.
    pub const fn new(model_dir: PathBuf, exports: ExportCache, generator: Generator) -> Self {
        Self { model_dir, exports, generator }
    }

    /// Returns the directory of a file set.
    async fn dir(&self, file_set: &FileSet) -> Result<PathBuf> {
        match file_set {
            FileSet::Checkpoint(step) => Ok(checkpoint_dir(&self.model_dir, *step)),
            FileSet::Artifacts => Ok(self.model_dir.clone()),
            FileSet::HuggingFace(step) => self.exports.export_of(checkpoint_dir(&self.model_dir, *step)).await,
        }
    }
}

#[async_trait]
impl Files for LocalFiles {
    async fn checkpoints(&self) -> Result<Vec<CheckpointFiles>> {
        let dir = self.model_dir.clone();
        blocking(move || {
            let mut listing = millrace_checkpoint::list(&dir).map_err(|error| checkpoint_unreadable(&error))?.complete;
            listing.reverse();
            listing.into_iter().map(checkpoint_files).collect()
        })
        .await
    }

    async fn list(&self, file_set: &FileSet) -> Result<Vec<FileInfo>> {
        let (dir, file_set) = (self.dir(file_set).await?, file_set.clone());
        blocking(move || listed(&dir, &file_set).map_err(io_error)).await
    }

    async fn open(&self, file_set: &FileSet, path: &str) -> Result<OpenFile> {
        let inside = PathBuf::from(path);
        if !is_plain_path(&inside) || path.is_empty() || !is_served_path(file_set, &inside) {
            return Err(file_not_found(path));
        }
        let dir = self.dir(file_set).await?;
        let (requested, is_checkpoint) = (path.to_owned(), matches!(file_set, FileSet::Checkpoint(_)));
        blocking(move || {
            let open = || {
                if is_checkpoint {
                    millrace_roots::open_without_links(&dir, MANIFEST_FILE)?;
                }
                millrace_roots::open_without_links(&dir, &inside)
            };
            // Links, pipes and names that are too long are reported like missing files.
            let file = open().map_err(|error| {
                tracing::debug!("can't serve {requested} of {}: {error}", dir.display());
                file_not_found(&requested)
            })?;
            let about = file.metadata().map_err(io_error)?;
            let changed = about.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
            let tag = format!("\"{:x}-{:x}\"", about.len(), changed.map_or(0, Timestamp::as_nanosecond));
            Ok(OpenFile { bytes: about.len(), tag, content: Box::new(File::from_std(file)) })
        })
        .await
    }

    async fn generate(&self, request: GenerationRequest) -> Result<GenerationStream> {
        self.generator.generate(self.model_dir.clone(), request).await
    }
}

/// Whether a path consists of plain names, none of them hidden.
fn is_plain_path(path: &Path) -> bool {
    let is_name = |part: Component<'_>| match part {
        Component::Normal(name) => name.to_str().is_some_and(|name| !name.starts_with('.')),
        _ => false,
    };
    path.components().all(is_name)
}

/// Whether a file set may contain a file with this path.
fn is_served_path(file_set: &FileSet, path: &Path) -> bool {
    match file_set {
        FileSet::Artifacts => is_artifact(path),
        FileSet::Checkpoint(_) => is_checkpoint_file(path),
        // The server itself has written all its files.
        FileSet::HuggingFace(_) => true,
    }
}

#[async_trait]
impl FileContent for File {
    async fn read_range(mut self: Box<Self>, first: u64, length: u64) -> Result<ByteChunks> {
        self.seek(SeekFrom::Start(first)).await.map_err(io_error)?;
        let pieces = ReaderStream::with_capacity(self.take(length), READ_CHUNK_BYTES);
        Ok(pieces.map_err(io_error).boxed())
    }
}

fn checkpoint_files(info: CheckpointInfo) -> Result<CheckpointFiles> {
    let files = listed(&info.path, &FileSet::Checkpoint(info.step)).map_err(io_error)?;
    Ok(CheckpointFiles {
        step: info.step,
        digest: info.parameters_blake3.to_string(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        time: files.iter().filter_map(|file| file.time).max(),
        files,
    })
}

/// Lists the files of a file set in its directory, ordered by path. A checkpoint without a manifest has none.
fn listed(dir: &Path, file_set: &FileSet) -> io::Result<Vec<FileInfo>> {
    let mut files = Vec::new();
    if matches!(file_set, FileSet::Checkpoint(_)) && !millrace_roots::is_file(dir.join(MANIFEST_FILE)) {
        return Ok(files);
    }
    let (mut dirs, mut seen) = (vec![dir.to_owned()], 0);
    while let Some(next) = dirs.pop() {
        let entries = match millrace_roots::read_dir(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let inside = entry.path.strip_prefix(dir).unwrap_or(&entry.path);
            if !is_plain_path(inside) {
                continue;
            }
            if entry.is_dir
                && seen < MAX_LISTED_FILES
                && (*file_set != FileSet::Artifacts || may_hold_artifacts(inside))
            {
                seen += 1;
                dirs.push(entry.path);
            } else if entry.is_file && files.len() < MAX_LISTED_FILES && is_served_path(file_set, inside) {
                // A file that was deleted meanwhile is skipped.
                let Ok(about) = millrace_roots::metadata(&entry.path) else { continue };
                files.push(FileInfo {
                    path: inside.to_string_lossy().into_owned(),
                    bytes: about.len(),
                    time: about.modified().ok().and_then(|time| Timestamp::try_from(time).ok()),
                });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Runs blocking file operations on another thread than those that serve requests.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ApiError::internal("read a job's files", error)))
}
