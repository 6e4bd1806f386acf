//! model_dirs whose files are uploaded to a bucket (`--model-dir-store`).
//!
//! Agents work in directories of the data directory. From the first attempt of a job until it has finished, what they
//! write is uploaded to `<prefix>/<namespace>/<job>/…`, and a job that starts on a server without these files fetches
//! them first, see [`ModelDirCopy`].

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_bucket::{
    Bucket, BucketAddress, CopyEvent, ModelDirCopy, ModelDirError, Reporter, UploadHandle, WantedCheckpoints,
    upload_handle,
};
use millrace_protocol::error_chain;
use tokio::sync::watch;

use crate::blobs::bucket::connect_logged;
use crate::error::{ApiError, ErrorReason, Result};

/// model_dirs in a bucket. Clones share the copies.
#[derive(Clone)]
pub struct BucketModelDirs {
    bucket: Bucket,
    address: BucketAddress,
    /// The directory of all model_dirs.
    root: PathBuf,
    copies: Arc<Mutex<HashMap<PathBuf, OpenCopy>>>,
}

/// A copy that a job uses.
#[derive(Clone)]
struct OpenCopy {
    /// UID of the job.
    job: String,
    run: Arc<UploadHandle>,
    state: watch::Receiver<CopyState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CopyState {
    Opening,
    /// Agents may work in it.
    Open,
    /// Everything is uploaded, or the reason why not.
    Closed(Option<String>),
}

impl BucketModelDirs {
    /// Uploads what is below `root` to the bucket at `address`.
    ///
    /// # Errors
    /// The settings can't be used, the bucket does not exist, or it rejects the credentials.
    pub async fn connect(address: BucketAddress, root: PathBuf) -> Result<Self, millrace_bucket::BucketError> {
        let bucket = connect_logged(&address, "--model-dir-store", "model_dirs").await?;
        Ok(Self { bucket, address, root, copies: Arc::default() })
    }

    fn copies(&self) -> MutexGuard<'_, HashMap<PathBuf, OpenCopy>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that the agents of a job may work in a model_dir, within `timeout`: its files are fetched, and
    /// uploaded from now on. A model_dir that is not below the directory of all model_dirs, such as one on a volume, is
    /// left alone.
    ///
    /// # Errors
    /// The files are not fetched yet, another server uses the model_dir, or the bucket or the disk fails.
    pub async fn open(
        &self,
        job: &str,
        model_dir: &Path,
        max_checkpoints: usize,
        report: Reporter,
        timeout: Duration,
    ) -> Result<()> {
        let Some(address) = self.address_of(model_dir) else { return Ok(()) };
        let mut state = {
            let mut copies = self.copies();
            let running = copies.get(model_dir).map(|copy| copy.state.clone());
            running.unwrap_or_else(|| {
                let copy = self.start(job, address, model_dir.to_owned(), max_checkpoints, report);
                let state = copy.state.clone();
                copies.insert(model_dir.to_owned(), copy);
                state
            })
        };
        let is_finishing = self.copies().get(model_dir).is_some_and(|copy| copy.run.has_ended());
        let decided =
            state.wait_for(|state| *state != CopyState::Opening && !(is_finishing && *state == CopyState::Open));
        let unavailable = |detail: String| Err(ApiError::new(ErrorReason::Unavailable, detail));
        let decided = match tokio::time::timeout(timeout, decided).await {
            Ok(Ok(decided)) => decided.clone(),
            _ => CopyState::Opening,
        };
        match decided {
            CopyState::Open => Ok(()),
            CopyState::Opening => unavailable(
                "the model_dir of the job is still being copied from or to the bucket: try again in a moment"
                    .to_owned(),
            ),
            CopyState::Closed(reason) => {
                // The next call opens the model_dir again.
                self.copies().remove(model_dir);
                unavailable(
                    reason.unwrap_or_else(|| "the model_dir of the job was just uploaded: try again".to_owned()),
                )
            }
        }
    }

    /// Uploads the rest of the model_dir of a job that has finished or was deleted, in the background.
    pub fn finish(&self, job: &str) {
        for copy in self.copies().values().filter(|copy| copy.job == job) {
            copy.run.end();
        }
    }

    /// Uploads the rest of all model_dirs, and waits for it until the caller drops the future.
    pub async fn shut_down(&self) {
        let copies: Vec<OpenCopy> = self.copies().values().cloned().collect();
        for mut copy in copies {
            copy.run.end();
            // An error: the task has ended.
            let _ = copy.state.wait_for(|state| matches!(state, CopyState::Closed(_))).await;
        }
    }

    /// Returns the address of a model_dir: the server's, and the path below the directory of all model_dirs.
    fn address_of(&self, model_dir: &Path) -> Option<BucketAddress> {
        let inside = model_dir.strip_prefix(&self.root).ok()?;
        let parts = inside.components().map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        parts.collect::<Option<Vec<&str>>>().map(|parts| self.address.join(parts))
    }

    fn start(
        &self,
        job: &str,
        address: BucketAddress,
        dir: PathBuf,
        max_checkpoints: usize,
        report: Reporter,
    ) -> OpenCopy {
        let (run, control) = upload_handle();
        let (state, states) = watch::channel(CopyState::Opening);
        let (bucket, copies) = (self.bucket.at(&address), self.copies.clone());
        tokio::spawn(async move {
            let uploaded = async {
                let wanted = [WantedCheckpoints::Newest];
                let copy = ModelDirCopy::open(bucket, &address, &dir, &wanted, report).await?;
                state.send_replace(CopyState::Open);
                copy.upload(control, max_checkpoints).await
            };
            let reason: Option<String> = uploaded.await.err().map(|error: ModelDirError| error_chain(&error));
            if let Some(reason) = &reason {
                tracing::error!(model_dir = %dir.display(), "files are not uploaded: {reason}");
            } else {
                copies.lock().unwrap_or_else(PoisonError::into_inner).remove(&dir);
            }
            state.send_replace(CopyState::Closed(reason));
        });
        OpenCopy { job: job.to_owned(), run: Arc::new(run), state: states }
    }
}

/// Returns the reason of the job's event about what happened to a copy; `None` if the job needs none.
pub const fn event_reason(event: &CopyEvent) -> Option<&'static str> {
    match event {
        CopyEvent::Skipped { .. } => Some("CheckpointSkipped"),
        CopyEvent::UploadFailed(_) => Some("ModelDirNotUploaded"),
        CopyEvent::UploadsContinue => Some("ModelDirUploaded"),
        CopyEvent::MovedAway { .. } => Some("ModelDirReplaced"),
        CopyEvent::OpenFailed(_)
        | CopyEvent::WaitingForLease(_)
        | CopyEvent::Fetched { .. }
        | CopyEvent::Uploaded { .. } => None,
    }
}
