//! Files on this machine.

use std::io::{self, SeekFrom};
use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::jiff::Timestamp;
use millrace_checkpoint::CheckpointInfo;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::{CheckpointFiles, Content, Exports, FileInfo, Files, Opened, PIECE, Pieces, Shelf};
use crate::refusal::{Reason, Refusal, Result};

/// Files on this machine.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    model_dir: PathBuf,
    /// The exported checkpoints of the job.
    exports: Exports,
}

impl LocalFiles {
    /// Of `model_dir`, with the exports of its job.
    pub const fn new(model_dir: PathBuf, exports: Exports) -> Self {
        Self { model_dir, exports }
    }

    fn checkpoint_dir(&self, step: u64) -> PathBuf {
        self.model_dir.join(format!("checkpoint_{step}"))
    }

    /// The directory of a shelf.
    async fn dir(&self, shelf: &Shelf) -> Result<PathBuf> {
        match shelf {
            Shelf::Checkpoint(step) => Ok(self.checkpoint_dir(*step)),
            Shelf::Artifacts => Ok(self.model_dir.clone()),
            Shelf::HuggingFace(step) => self.exports.of(self.checkpoint_dir(*step)).await,
        }
    }
}

#[async_trait]
impl Files for LocalFiles {
    async fn checkpoints(&self) -> Result<Vec<CheckpointFiles>> {
        let dir = self.model_dir.clone();
        blocking(move || {
            let mut listing = millrace_checkpoint::list(&dir).map_err(|error| broken(&error))?.whole;
            listing.reverse();
            listing.into_iter().map(described).collect()
        })
        .await
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<FileInfo>> {
        let (dir, artifacts) = (self.dir(shelf).await?, *shelf == Shelf::Artifacts);
        blocking(move || {
            let mut files = Vec::new();
            walk(&dir, &dir, artifacts, &mut files).map_err(|error| unreadable(&error))?;
            files.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(files)
        })
        .await
    }

    async fn open(&self, shelf: &Shelf, path: &str) -> Result<Opened> {
        let dir = self.dir(shelf).await?;
        let inside = Path::new(path);
        let plain = inside.components().all(|part| matches!(part, Component::Normal(name) if !hidden(name)));
        let top = inside.components().next().and_then(|part| part.as_os_str().to_str().map(str::to_owned));
        let other_shelf = *shelf == Shelf::Artifacts && top.is_none_or(|name| is_checkpoint(&name));
        if !plain || path.is_empty() || other_shelf {
            return Err(no_file(path));
        }
        // A link may lead anywhere: what is not where it seems to be is not there.
        let place = tokio::fs::canonicalize(&dir).await.map(|dir| dir.join(inside));
        let real = tokio::fs::canonicalize(dir.join(inside)).await;
        let (Ok(place), Ok(real)) = (place, real) else { return Err(no_file(path)) };
        if place != real {
            return Err(no_file(path));
        }
        let file = File::open(real).await.map_err(|error| unreadable(&error))?;
        let about = file.metadata().await.map_err(|error| unreadable(&error))?;
        if !about.is_file() {
            return Err(no_file(path));
        }
        let changed = about.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
        let tag = format!("\"{:x}-{:x}\"", about.len(), changed.map_or(0, Timestamp::as_nanosecond));
        Ok(Opened { bytes: about.len(), tag, content: Box::new(file) })
    }
}

#[async_trait]
impl Content for File {
    async fn part(mut self: Box<Self>, first: u64, length: u64) -> Result<Pieces> {
        self.seek(SeekFrom::Start(first)).await.map_err(|error| unreadable(&error))?;
        let pieces = ReaderStream::with_capacity(self.take(length), PIECE);
        Ok(pieces.map_err(|error| unreadable(&error)).boxed())
    }
}

fn described(info: CheckpointInfo) -> Result<CheckpointFiles> {
    let mut files = Vec::new();
    walk(&info.path, &info.path, false, &mut files).map_err(|error| unreadable(&error))?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(CheckpointFiles {
        step: info.step,
        digest: info.parameters_blake3.to_string(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        time: files.iter().filter_map(|file| file.time).max(),
        files,
    })
}

/// Adds every file below `dir`, without checkpoints where they are not wanted.
fn walk(root: &Path, dir: &Path, without_checkpoints: bool, files: &mut Vec<FileInfo>) -> io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if hidden(&name) || without_checkpoints && is_checkpoint(&name.to_string_lossy()) {
            continue;
        }
        if kind.is_dir() {
            walk(root, &entry.path(), false, files)?;
        } else if kind.is_file() {
            let about = entry.metadata()?;
            let path = entry.path();
            files.push(FileInfo {
                path: path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned(),
                bytes: about.len(),
                time: about.modified().ok().and_then(|time| Timestamp::try_from(time).ok()),
            });
        }
    }
    Ok(())
}

/// Locks and what is being written.
fn hidden(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with('.')
}

fn is_checkpoint(name: &str) -> bool {
    name.starts_with("checkpoint_")
}

pub(super) fn no_file(path: &str) -> Refusal {
    Refusal::new(Reason::NotFound, format!("there is no file {path}: the list above it says which there are"))
}

pub(super) fn broken(error: &millrace_checkpoint::Error) -> Refusal {
    Refusal::new(Reason::Gone, format!("the checkpoint can't be read: {error}"))
}

pub(super) fn unreadable(error: &io::Error) -> Refusal {
    Refusal::internal("read a job's files", error)
}

/// Does what waits for a disk elsewhere than where requests are served.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Refusal::internal("read a job's files", &error)))
}
