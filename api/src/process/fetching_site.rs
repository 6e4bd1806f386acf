//! The site of jobs whose uploads are in a bucket.

use std::sync::mpsc;

use kube::ResourceExt;
use millrace_control::{DocumentError, JobSite, ModelDirLocation, SiteError};
use millrace_crds::TrainJob;
use millrace_params::{BlobDigest, LabelName};
use tokio::runtime::Handle;

use super::directories::ServerDirectories;
use crate::blobs::BlobFetcher;
use crate::error::ApiError;

/// The server's directories. A graph document that is not there yet is fetched from the bucket.
pub struct FetchingSite {
    directories: ServerDirectories,
    fetcher: BlobFetcher,
    /// The threads that serve requests.
    runtime: Handle,
}

/// The bucket or the disk fails.
#[derive(Debug, thiserror::Error)]
#[error("can't read the graph document now: {0}")]
struct Unreadable(ApiError);

/// This server is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the server is shutting down: try again in a moment")]
struct ShuttingDown;

impl FetchingSite {
    /// Fetches with `fetcher` into `directories`. Must be called within a Tokio runtime.
    pub fn new(directories: ServerDirectories, fetcher: BlobFetcher) -> Self {
        Self { directories, fetcher, runtime: Handle::current() }
    }

    fn fetch(&self, namespace: LabelName, digest: BlobDigest) -> Result<(), DocumentError> {
        let (sender, receiver) = mpsc::channel();
        let fetcher = self.fetcher.clone();
        self.runtime.spawn(async move {
            // The receiver waits.
            let _ = sender.send(fetcher.fetch(namespace, digest).await);
        });
        // The channel is closed if the runtime is shut down.
        let fetched = receiver.recv().map_err(|_| DocumentError::Unavailable(ShuttingDown.into()))?;
        fetched.map(drop).map_err(|error| DocumentError::Unavailable(Unreadable(error).into()))
    }
}

impl JobSite for FetchingSite {
    fn image(&self) -> Option<String> {
        self.directories.image()
    }

    fn model_dir(&self, job: &TrainJob, written: &str) -> Result<ModelDirLocation, SiteError> {
        self.directories.model_dir(job, written)
    }

    fn graph_document(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
        let namespace = LabelName::new(job.namespace().unwrap_or_default());
        let namespace = namespace.map_err(|error| DocumentError::Unusable(error.into()))?;
        self.fetch(namespace, digest.clone())?;
        self.directories.graph_document(job, digest)
    }

    fn check_readable(&self, job: &TrainJob, written: &str) -> Result<(), SiteError> {
        self.directories.check_readable(job, written)
    }
}
