//! A cache of checkpoints in the format of Hugging Face: exported at the first request, and kept within a limit.
//!
//! ```text
//! <exports>/<uid of the job>/<digest of the manifest>/    one export, its modification time that of its last use
//! <exports>/.<random>/                                    an export in progress
//! ```
//!
//! Guarantees:
//! * One export runs at a time. A request for a checkpoint that is being exported waits for its result.
//! * All exports together have at most the limit's bytes: the least recently used ones are evicted first. The one that
//!   was just finished stays, even if it alone is larger than was estimated and exceeds the limit.
//! * A directory with its final name is complete.

use std::fs::FileTimes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use millrace_agents::exported_tokenizer::exported_tokenizer;
use millrace_checkpoint::{Checkpoint, MANIFEST_FILE, hf};
use millrace_control::WorkerPool;
use millrace_params::ObjectName;
use tokio::sync::Semaphore;

use super::checkpoint::{job_of_checkpoint, open_checkpoint_dir};
use super::errors::{checkpoint_unreadable, file_not_found, io_error};
use crate::error::{ApiError, ErrorReason, Result};

/// Default limit on all exports together: one of a model of 8 billion parameters in f32.
pub const DEFAULT_MAX_EXPORT_BYTES: u64 = 32 << 30;
/// Limit on requests that wait for an export.
const MAX_PENDING_EXPORTS: usize = 32;

/// The cache. Clones share the limits.
#[derive(Clone)]
pub struct ExportCache {
    shared: Arc<Shared>,
    /// Directory of the exports of one job.
    dir: PathBuf,
}

struct Shared {
    root: PathBuf,
    max_bytes: u64,
    /// One thread of its own: an export may take minutes and must not delay the planning of jobs.
    workers: WorkerPool,
    /// A permit for each request that waits for an export or runs one.
    pending: Arc<Semaphore>,
}

impl std::fmt::Debug for ExportCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exports").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl ExportCache {
    /// Creates the cache in the directory `root`, which only the server uses, with at most `max_bytes` bytes.
    pub fn new(root: PathBuf, max_bytes: u64) -> Self {
        let (workers, pending) = (WorkerPool::new(1), Arc::new(Semaphore::new(MAX_PENDING_EXPORTS)));
        Self { dir: root.clone(), shared: Arc::new(Shared { root, max_bytes, workers, pending }) }
    }

    /// Returns the exports of the job with this UID.
    pub fn of_job(&self, uid: &ObjectName) -> Self {
        Self { dir: self.shared.root.join(uid), shared: self.shared.clone() }
    }

    /// Removes incomplete exports of an earlier server and exports in an earlier layout.
    pub async fn clean_up(&self) {
        let root = self.shared.root.clone();
        let cleaned = tokio::task::spawn_blocking(move || clean_up(&root)).await;
        if let Ok(Err(error)) = cleaned {
            tracing::warn!("can't list the exports of earlier checkpoints: {error}");
        }
    }

    /// Removes the exports of this job.
    pub async fn remove(&self) {
        if self.dir == self.shared.root {
            return;
        }
        let dir = self.dir.clone();
        let removed = tokio::task::spawn_blocking(move || millrace_roots::remove_dir_all(dir)).await;
        if let Ok(Err(error)) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("can't remove the exports of a deleted job in {}: {error}", self.dir.display());
        }
    }

    /// Returns the directory with the export of the checkpoint in `dir`; exports it if needed.
    ///
    /// # Errors
    /// [`ErrorReason::NotFound`]: there is no such checkpoint. [`ErrorReason::Gone`]: it can't be read.
    /// [`ErrorReason::TooManyRequests`]: too many requests wait. [`ErrorReason::PayloadTooLarge`]: the export alone exceeds the
    /// limit.
    pub async fn export_of(&self, checkpoint: PathBuf) -> Result<PathBuf> {
        let pending = self.shared.pending.clone().try_acquire_owned().map_err(|_| {
            let detail = "many checkpoints are being exported: try again in a few seconds";
            ApiError::new(ErrorReason::TooManyRequests, detail)
        })?;
        let (exports, owner) = (self.clone(), self.dir.display().to_string());
        let exporting = self.shared.workers.run_heavy(&owner, move || {
            let _pending = pending;
            exports.make(&checkpoint)
        });
        exporting.await.map_err(|error| ApiError::internal("export a checkpoint", error))?
    }

    fn make(&self, dir: &Path) -> Result<PathBuf> {
        let checkpoint =
            open_checkpoint_dir(dir, || file_not_found(&dir.file_name().unwrap_or_default().to_string_lossy()))?;
        // The whole manifest is the key: several models may have the same parameters.
        let manifest = millrace_roots::read(dir.join(MANIFEST_FILE)).map_err(io_error)?;
        let out = self.dir.join(blake3::hash(&manifest).to_string());
        if millrace_roots::is_dir(&out) {
            touch(&out);
            return Ok(out);
        }
        let Shared { root, max_bytes, .. } = &*self.shared;
        // The weights in f32, a third of the checkpoint: it may also hold two moments of the same size.
        let needed = bytes_below(dir) / 3;
        if needed > *max_bytes {
            let detail = format!(
                "the export would have about {} MB, but this server keeps at most {} MB: download the checkpoint as it \
                 is, and export it with `millrace-agent checkpoint export`",
                needed / 1_000_000,
                max_bytes / 1_000_000
            );
            return Err(ApiError::new(ErrorReason::PayloadTooLarge, detail));
        }
        evict_until_free(root, max_bytes - needed, None).map_err(io_error)?;
        let making = root.join(format!(".{}", uuid::Uuid::new_v4()));
        millrace_roots::create_dir_all(&self.dir).map_err(io_error)?;
        let tokenizer = tokenizer_of(&checkpoint)?;
        let exported = hf::export_hf(&checkpoint, &making, tokenizer.as_ref());
        let exported = exported.map_err(|error| checkpoint_unreadable(&error));
        let renamed = exported.and_then(|_| millrace_roots::rename(&making, &out).map_err(io_error));
        let _ = millrace_roots::remove_dir_all(&making);
        renamed?;
        evict_until_free(root, *max_bytes, Some(&out)).map_err(io_error)?;
        Ok(out)
    }
}

/// Returns the tokenizer of the training data of a checkpoint, if it has one.
fn tokenizer_of(checkpoint: &Checkpoint) -> Result<Option<hf::ExportedTokenizer>> {
    exported_tokenizer(&job_of_checkpoint(checkpoint)?, checkpoint.path())
        .map_err(|error| ApiError::new(ErrorReason::Gone, format!("the checkpoint can't be exported: {error}")))
}

/// Sets the time of last use. If that fails, the export is evicted earlier than others.
fn touch(dir: &Path) {
    let now = FileTimes::new().set_modified(SystemTime::now());
    let _ = millrace_roots::open_dir(dir).and_then(|dir| dir.set_times(now));
}

/// Evicts the least recently used exports until all together have at most `bytes`; `keep` stays.
fn evict_until_free(root: &Path, bytes: u64, keep: Option<&Path>) -> io::Result<()> {
    let mut all = Vec::new();
    for export in exports(root)? {
        let used = millrace_roots::metadata(&export).and_then(|about| about.modified());
        let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
        all.push((used, bytes_below(&export), export));
    }
    all.sort();
    let mut total: u64 = all.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, own, export) in all {
        if total <= bytes {
            break;
        }
        if keep != Some(&*export) {
            millrace_roots::remove_dir_all(&export)?;
            total = total.saturating_sub(own);
        }
    }
    Ok(())
}

/// Returns every finished export: the directories that contain files.
fn exports(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for dir in directories(root)? {
        if has_files(&dir) {
            found.push(dir);
        } else {
            found.extend(directories(&dir)?);
        }
    }
    Ok(found)
}

fn clean_up(root: &Path) -> io::Result<()> {
    for entry in millrace_roots::read_dir(root)? {
        // Exports of the earlier layout are next to the directories of jobs.
        if entry.name().starts_with('.') || has_files(&entry.path) {
            millrace_roots::remove_dir_all(&entry.path)?;
        }
    }
    Ok(())
}

fn has_files(dir: &Path) -> bool {
    millrace_roots::read_dir(dir).is_ok_and(|entries| entries.iter().any(|entry| entry.is_file))
}

fn directories(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match millrace_roots::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let visible = entries.into_iter().filter(|entry| entry.is_dir && !entry.name().starts_with('.'));
    Ok(visible.map(|entry| entry.path).collect())
}

/// Returns the bytes of all files in a directory, without subdirectories.
fn bytes_below(dir: &Path) -> u64 {
    let files = millrace_roots::read_dir(dir).into_iter().flatten().filter(|entry| entry.is_file);
    files.filter_map(|entry| millrace_roots::metadata(entry.path).ok()).map(|about| about.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn export(root: &Path, job: &str, name: &str, bytes: usize, seconds: u64) {
        let dir = root.join(job).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("model.safetensors"), vec![0; bytes]).unwrap();
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::open(&dir).unwrap().set_times(FileTimes::new().set_modified(used)).unwrap();
    }

    fn remaining(root: &Path) -> Vec<String> {
        let mut remaining: Vec<String> =
            exports(root).unwrap().iter().map(|dir| dir.file_name().unwrap().to_string_lossy().into_owned()).collect();
        remaining.sort();
        remaining
    }

    #[tokio::test]
    async fn least_recently_used_export_is_evicted() {
        let root = tempfile::TempDir::new().unwrap();
        let root = root.path();
        for (job, name, seconds) in [("a", "old", 1), ("a", "older", 0), ("b", "new", 3), ("b", "middle", 2)] {
            export(root, job, name, 100, seconds);
        }
        touch(&root.join("a/older"));
        evict_until_free(root, 300, None).unwrap();
        assert_eq!(remaining(root), ["middle", "new", "older"]);
        evict_until_free(root, 150, Some(&root.join("b/middle"))).unwrap();
        assert_eq!(remaining(root), ["middle"]);
        evict_until_free(root, 0, Some(&root.join("b/middle"))).unwrap();
        assert_eq!(remaining(root), ["middle"], "what was just made stays");

        let all = ExportCache::new(root.to_owned(), 1000);
        all.of_job(&ObjectName::new("b").unwrap()).remove().await;
        assert!(remaining(root).is_empty());
        all.remove().await;
        assert!(root.exists(), "only what is of one job is removed");
    }

    #[tokio::test]
    async fn unfinished_exports_are_removed_at_start() {
        let root = tempfile::TempDir::new().unwrap();
        let root = root.path();
        export(root, "a", "whole", 10, 1);
        export(root, ".3f2a", "half", 10, 1);
        std::fs::create_dir(root.join("0123")).unwrap();
        std::fs::write(root.join("0123/config.json"), "{}").unwrap();
        ExportCache::new(root.to_owned(), 1000).clean_up().await;
        let mut names: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a"]);
    }
}
