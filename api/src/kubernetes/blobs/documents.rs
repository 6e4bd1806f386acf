//! Reads graph documents from this server's own store, to plan jobs.

use std::sync::mpsc;

use kube::ResourceExt;
use millrace_cluster::pod_site::GraphDocuments;
use millrace_control::DocumentError;
use millrace_control::world::MAX_GRAPH_BYTES;
use millrace_crds::TrainJob;
use millrace_params::{BlobDigest, LabelName};
use tokio::runtime::Handle;

use super::FindNamespace;
use crate::blobs::BlobStore;
use crate::error::{ApiError, Result};

/// The graph documents in the store.
pub struct LocalDocuments<N> {
    store: BlobStore,
    namespaces: N,
    /// The threads that serve requests.
    runtime: Handle,
}

/// The namespace of a job has no such upload.
#[derive(Debug, thiserror::Error)]
#[error("namespace {namespace} has no upload {digest}, which spec.model.graph names: upload it before the job")]
struct NotUploaded {
    namespace: String,
    digest: BlobDigest,
}

/// The API server or the disk fails.
#[derive(Debug, thiserror::Error)]
#[error("can't read the graph document now")]
struct Unreadable(#[from] ApiError);

/// This server is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the server is shutting down: try again in a moment")]
struct ShuttingDown;

impl<N: FindNamespace + Clone> LocalDocuments<N> {
    /// Reads from `store`. Must be called within a Tokio runtime.
    pub fn new(store: BlobStore, namespaces: N) -> Self {
        Self { store, namespaces, runtime: Handle::current() }
    }

    /// Begins to read a document; the receiver gets `None` if there is none.
    fn begin(&self, namespace: LabelName, digest: BlobDigest) -> mpsc::Receiver<Result<Option<Vec<u8>>>> {
        let (sender, receiver) = mpsc::channel();
        let (store, namespaces) = (self.store.clone(), self.namespaces.clone());
        self.runtime.spawn(async move {
            let read = async {
                match namespaces.find(&namespace).await? {
                    Some(namespace) => store.read(namespace, digest, MAX_GRAPH_BYTES + 1).await,
                    None => Ok(None),
                }
            };
            // The receiver waits.
            let _ = sender.send(read.await);
        });
        receiver
    }
}

impl<N: FindNamespace + Clone> GraphDocuments for LocalDocuments<N> {
    fn read(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
        let namespace = job.namespace().unwrap_or_default();
        let name = LabelName::new(&*namespace).map_err(|error| DocumentError::Unusable(error.into()))?;
        // The channel is closed if the runtime is shut down.
        let read = self.begin(name, digest.clone()).recv();
        match read.map_err(|_| DocumentError::Unavailable(ShuttingDown.into()))? {
            Ok(Some(document)) => Ok(document),
            Ok(None) => Err(DocumentError::Unusable(NotUploaded { namespace, digest: digest.clone() }.into())),
            Err(error) => Err(DocumentError::Unavailable(Unreadable(error).into())),
        }
    }
}
