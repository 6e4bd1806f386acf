//! Copies of the blobs of a bucket on this server, for agents on the same machine, which read files.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, Shared};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use millrace_crds::TrainJob;
use millrace_params::{BlobDigest, LabelName};

use super::directory::DirectoryStorage;
use super::storage::{BlobAddress, BlobStorage as _, ReceivedBytes};
use super::{BlobStore, OpenBlob};
use crate::error::{ApiError, ErrorReason, Result};

/// Bytes that are read of a blob at a time.
const READ_BLOCK_BYTES: usize = 1 << 20;

/// Blobs that are fetched for a job at the same time.
const MAX_JOB_FETCHES: usize = 4;

/// Result of a fetch: false if there is no such blob.
type Fetch = Shared<BoxFuture<'static, Result<bool>>>;

/// Fetches blobs of a store into a directory that only this server uses. Clones share the fetches.
///
/// * A file with its final name has the content that its name says.
/// * A blob is fetched by one task at a time, which continues if no caller waits for it any more. A fetch that was
///   interrupted continues where it was.
/// * Memory does not grow with the length of a blob.
#[derive(Clone)]
pub struct BlobFetcher {
    source: BlobStore,
    files: DirectoryStorage,
    /// The same files, as a store without a limit.
    file_store: BlobStore,
    running: Arc<Mutex<HashMap<BlobAddress, Fetch>>>,
}

impl BlobFetcher {
    /// Fetches blobs of `source` into `dir`.
    pub fn new(source: BlobStore, dir: PathBuf) -> Self {
        let files = DirectoryStorage::new(dir);
        let file_store = BlobStore::with_storage(Arc::new(files.clone()), u64::MAX);
        Self { source, files, file_store, running: Arc::default() }
    }

    /// Returns the fetched files.
    pub const fn files(&self) -> &BlobStore {
        &self.file_store
    }

    /// Makes sure that the uploads of a job are files, within `timeout`. Those that do not exist are left out.
    ///
    /// # Errors
    /// They are not fetched yet, or the store or the disk fails, [`ErrorReason::Unavailable`].
    pub async fn fetch_job(&self, job: &TrainJob, timeout: Duration) -> Result<()> {
        let Ok(namespace) = LabelName::new(job.namespace().unwrap_or_default()) else { return Ok(()) };
        let digests: Vec<BlobDigest> = job.spec.uploads().filter_map(|digest| BlobDigest::new(digest).ok()).collect();
        let fetches = futures::stream::iter(digests).map(Ok).try_for_each_concurrent(MAX_JOB_FETCHES, |digest| {
            let namespace = namespace.clone();
            async move { self.fetch(namespace, digest).await.map(drop) }
        });
        tokio::time::timeout(timeout, fetches).await.unwrap_or_else(|_| {
            let detail = "the uploads of the job are still being fetched from the bucket: try again in a moment";
            Err(ApiError::new(ErrorReason::Unavailable, detail))
        })
    }

    /// Makes sure that a file has the content of a blob. Returns false if there is no complete blob with this digest.
    ///
    /// # Errors
    /// The store or the disk fails, [`ErrorReason::Unavailable`].
    pub async fn fetch(&self, namespace: LabelName, digest: BlobDigest) -> Result<bool> {
        let blob = (namespace, digest);
        if self.files.touch(&blob).await?.is_some() {
            return Ok(true);
        }
        let fetch = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.entry(blob.clone()).or_insert_with(|| self.begin(blob)).clone()
        };
        fetch.await
    }

    fn begin(&self, blob: BlobAddress) -> Fetch {
        let fetcher = self.clone();
        let task = tokio::spawn(async move {
            let fetched = fetcher.fetch_now(&blob).await;
            fetcher.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&blob);
            fetched
        });
        let result = task.map(|done| done.unwrap_or_else(|error| Err(ApiError::internal("fetch an upload", error))));
        result.boxed().shared()
    }

    async fn fetch_now(&self, blob: &BlobAddress) -> Result<bool> {
        let (namespace, digest) = blob.clone();
        let OpenBlob::Complete(reader) = self.source.open(namespace.into(), digest).await? else { return Ok(false) };
        let received = ReceivedBytes::default();
        let mut file = self.files.begin_upload(blob, reader.bytes(), received.clone()).await?;
        let content = reader.read(received.get(), READ_BLOCK_BYTES);
        match file.append(content).await {
            // The part of an earlier fetch was changed on the disk, and is fetched again by the next call.
            Err(error) if error.reason == ErrorReason::Invalid => {
                let detail = format!("the file of the upload {} was changed on the server: try again", blob.1);
                Err(ApiError::new(ErrorReason::Unavailable, detail))
            }
            done => done.map(|()| true),
        }
    }
}
