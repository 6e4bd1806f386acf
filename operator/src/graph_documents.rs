//! Reads the graph documents of jobs from the REST server, to plan the jobs.
//!
//! * The threads for plans call this; connections are driven by the threads of the control loop.
//! * A server that does not answer delays a plan by `READ_TIMEOUT`, and for `UNRESPONSIVE_TTL` no other plan: the
//!   threads are few, and jobs without uploads need them, too.
//! * A document has the content of its digest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use millrace_cluster::pod_site::GraphDocuments;
use millrace_control::DocumentError;
use millrace_control::world::MAX_GRAPH_BYTES;
use millrace_crds::TrainJob;
use millrace_params::BlobDigest;
use millrace_protocol::blobs::{self, ReadError};
use millrace_protocol::error_chain;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::authority::CertificateManager;

/// Bounds the read of one document.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// A read that fails after this time counts as a server that does not respond; one that fails sooner delays nothing.
const UNRESPONSIVE_THRESHOLD: Duration = Duration::from_secs(2);
/// Time for which a server that did not respond gets no further requests.
const UNRESPONSIVE_TTL: Duration = Duration::from_secs(20);

/// Why a document can't be read from the REST server.
#[derive(Clone, Debug, thiserror::Error)]
enum RemoteError {
    /// The namespace has no such upload.
    #[error(
        "spec.model.graph names the upload {0}, which does not exist: upload the document, and submit the job again"
    )]
    NotFound(BlobDigest),
    /// The server rejects the request.
    #[error("the REST server rejects the request for the graph document: {0}")]
    Rejected(String),
    /// The server can't send it at present.
    #[error(
        "the graph document can't be read from the REST server at {server} yet: {reason}; the job is planned when it \
         can"
    )]
    Unavailable { server: String, reason: String },
}

impl From<RemoteError> for DocumentError {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::NotFound(_) | RemoteError::Rejected(_) => Self::Unusable(error.into()),
            RemoteError::Unavailable { .. } => Self::Unavailable(error.into()),
        }
    }
}

/// The REST server as a source of documents.
pub struct RemoteDocuments {
    /// `host:port`.
    server: String,
    /// Issues the operator's identity.
    certificates: Arc<CertificateManager>,
    /// The threads of the control loop.
    runtime: Handle,
    /// When the server last did not respond.
    unresponsive_since: Mutex<Option<Instant>>,
}

impl RemoteDocuments {
    /// Reads documents from `server` (`host:port`). Must be called within a Tokio runtime, which then drives the
    /// connections.
    pub fn new(server: String, certificates: Arc<CertificateManager>) -> Self {
        Self { server, certificates, runtime: Handle::current(), unresponsive_since: Mutex::default() }
    }

    fn unresponsive_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unresponsive_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unavailable(&self, error: impl ToString) -> RemoteError {
        RemoteError::Unavailable { server: self.server.clone(), reason: error.to_string() }
    }

    fn fetch(&self, uid: String, digest: &BlobDigest) -> Result<Vec<u8>, RemoteError> {
        if self.unresponsive_since().is_some_and(|since| since.elapsed() < UNRESPONSIVE_TTL) {
            return Err(self.unavailable("it does not respond"));
        }
        let identity = self.certificates.operator().map_err(|error| self.unavailable(error))?;
        let (sender, receiver) = mpsc::channel();
        let (server, requested, started) = (self.server.clone(), digest.clone(), Instant::now());
        self.runtime.spawn(async move {
            let read = blobs::read(&server, &identity, (&uid, &requested), MAX_GRAPH_BYTES + 1);
            // The receiver waits.
            let _ = sender.send(timeout(READ_TIMEOUT, read).await);
        });
        let read = receiver.recv();
        let is_slow = started.elapsed() >= UNRESPONSIVE_THRESHOLD && !matches!(read, Ok(Ok(Ok(_))));
        *self.unresponsive_since() = is_slow.then(Instant::now);
        // The channel is closed if the runtime is shut down.
        match read.map_err(|_| self.unavailable("this operator is no longer the leader"))? {
            Ok(Ok(document)) => Ok(document),
            Ok(Err(ReadError::NotFound)) => Err(RemoteError::NotFound(digest.clone())),
            Ok(Err(error @ ReadError::Rejected(_))) => Err(RemoteError::Rejected(error.to_string())),
            Ok(Err(error @ ReadError::NotYet(_))) => Err(self.unavailable(error)),
            Ok(Err(error)) => Err(self.unavailable(error_chain(&error))),
            Err(_) => Err(self.unavailable(format!("no answer within {} s", READ_TIMEOUT.as_secs()))),
        }
    }
}

impl GraphDocuments for RemoteDocuments {
    fn read(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
        let document = self.fetch(job.uid().unwrap_or_default(), digest)?;
        let is_whole = document.len() as u64 <= MAX_GRAPH_BYTES;
        if is_whole && format!("blake3:{}", blake3::hash(&document).to_hex()) != digest.as_str() {
            return Err(self.unavailable("its content has another digest").into());
        }
        Ok(document)
    }
}
