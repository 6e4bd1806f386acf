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

use super::shape::{is_artifact, may_hold_artifacts, of_checkpoint};
use super::{CheckpointFiles, Content, Exports, FileInfo, Files, Opened, PIECE, Pieces, Shelf};
use crate::refusal::{Reason, Refusal, Result};

/// Limit on the files that a listing contains, and on the directories that are read for it.
const MAX_LISTED: usize = 10_000;

/// The files of a job on this machine.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    model_dir: PathBuf,
    /// The exported checkpoints of the job.
    exports: Exports,
}

impl LocalFiles {
    /// Serves the files of `model_dir`, with the exports of its job.
    pub const fn new(model_dir: PathBuf, exports: Exports) -> Self {
        Self { model_dir, exports }
    }

    fn checkpoint_dir(&self, step: u64) -> PathBuf {
        self.model_dir.join(format!("checkpoint_{step}"))
    }

    /// Returns the directory of a file set.
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
            let mut listing = millrace_checkpoint::list(&dir).map_err(|error| broken(&error))?.complete;
            listing.reverse();
            listing.into_iter().map(described).collect()
        })
        .await
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<FileInfo>> {
        let (dir, shelf) = (self.dir(shelf).await?, shelf.clone());
        blocking(move || listed(&dir, &shelf).map_err(|error| unreadable(&error))).await
    }

    async fn open(&self, shelf: &Shelf, path: &str) -> Result<Opened> {
        let inside = PathBuf::from(path);
        if !is_plain(&inside) || path.is_empty() || !belongs(shelf, &inside) {
            return Err(no_file(path));
        }
        let dir = self.dir(shelf).await?;
        let (asked, is_checkpoint) = (path.to_owned(), matches!(shelf, Shelf::Checkpoint(_)));
        blocking(move || {
            let open = || {
                if is_checkpoint {
                    millrace_roots::open_without_links(&dir, MANIFEST_FILE)?;
                }
                millrace_roots::open_without_links(&dir, &inside)
            };
            // Links, pipes and names that are too long are reported like missing files.
            let file = open().map_err(|error| {
                tracing::debug!("{asked} of {} is not served: {error}", dir.display());
                no_file(&asked)
            })?;
            let about = file.metadata().map_err(|error| unreadable(&error))?;
            let changed = about.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
            let tag = format!("\"{:x}-{:x}\"", about.len(), changed.map_or(0, Timestamp::as_nanosecond));
            Ok(Opened { bytes: about.len(), tag, content: Box::new(File::from_std(file)) })
        })
        .await
    }
}

/// Whether a path consists of plain names, none of them hidden.
fn is_plain(path: &Path) -> bool {
    let is_name = |part: Component<'_>| match part {
        Component::Normal(name) => name.to_str().is_some_and(|name| !name.starts_with('.')),
        _ => false,
    };
    path.components().all(is_name)
}

/// Whether a file set may contain a file with this path.
fn belongs(shelf: &Shelf, path: &Path) -> bool {
    match shelf {
        Shelf::Artifacts => is_artifact(path),
        Shelf::Checkpoint(_) => of_checkpoint(path),
        // The server itself has written all its files.
        Shelf::HuggingFace(_) => true,
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
    let files = listed(&info.path, &Shelf::Checkpoint(info.step)).map_err(|error| unreadable(&error))?;
    Ok(CheckpointFiles {
        step: info.step,
        digest: info.parameters_blake3.to_string(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        time: files.iter().filter_map(|file| file.time).max(),
        files,
    })
}

/// Lists the files of a file set in its directory, ordered by path. A checkpoint without a manifest has none.
fn listed(dir: &Path, shelf: &Shelf) -> io::Result<Vec<FileInfo>> {
    let mut files = Vec::new();
    if matches!(shelf, Shelf::Checkpoint(_)) && !millrace_roots::is_file(dir.join(MANIFEST_FILE)) {
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
            if !is_plain(inside) {
                continue;
            }
            if entry.is_dir && seen < MAX_LISTED && (*shelf != Shelf::Artifacts || may_hold_artifacts(inside)) {
                seen += 1;
                dirs.push(entry.path);
            } else if entry.is_file && files.len() < MAX_LISTED && belongs(shelf, inside) {
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

pub(super) fn no_file(path: &str) -> Refusal {
    Refusal::new(Reason::NotFound, format!("there is no file {path}: the list above it says which there are"))
}

pub(super) fn broken(error: &millrace_checkpoint::Error) -> Refusal {
    Refusal::new(Reason::Gone, format!("the checkpoint can't be read: {error}"))
}

pub(super) fn unreadable(error: &io::Error) -> Refusal {
    Refusal::internal("read a job's files", error)
}

/// Runs blocking file operations on another thread than those that serve requests.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Refusal::internal("read a job's files", &error)))
}
