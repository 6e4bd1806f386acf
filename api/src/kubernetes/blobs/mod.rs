//! The uploads of a cluster: stored on this server's claim, and served to the pods of jobs and to the operator.
//!
//! ```text
//!   client ── REST ──► BlobStore ◄── service ◄── mutual TLS ── init containers of jobs, operator
//!                          ▲
//!                          └── documents ◄── the threads for plans of this server
//! ```
//!
//! * A job's certificate reads what the spec of this job names, from the namespace of the job, and nothing else.
//! * A blob is sent in parts as the client reads them. Memory does not depend on its length.

mod documents;
mod service;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use async_trait::async_trait;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use millrace_crds::TrainJob;
use millrace_params::{BlobDigest, LabelName};
use millrace_protocol::proto::blobs_server::BlobsServer;
use millrace_protocol::security::{AdmissionPolicy, Identity, Protection, listen_renewed};
use millrace_protocol::transport;
use tokio::sync::watch;

use super::identity::IdentitySecret;
use super::namespaces::Namespaces;
use crate::blobs::{BlobNamespace, BlobStore};
use crate::error::{ApiError, ErrorReason, Result};
pub use documents::LocalDocuments;
use service::BlobService;

/// Where uploads are stored and served.
pub struct BlobSettings {
    /// The store, on a claim of this server or in a bucket.
    pub store: BlobStore,
    /// The port for pods and the operator.
    pub listener: TcpListener,
}

/// Finds namespaces by their names.
#[async_trait]
pub trait FindNamespace: Send + Sync + 'static {
    /// Returns the namespace of this name; `None` if there is none.
    ///
    /// # Errors
    /// The cluster fails.
    async fn find(&self, name: &LabelName) -> Result<Option<BlobNamespace>>;
}

#[async_trait]
impl FindNamespace for Namespaces {
    async fn find(&self, name: &LabelName) -> Result<Option<BlobNamespace>> {
        let Some(version) = self.current(name.as_str()).await? else { return Ok(None) };
        let uid = LabelName::new(version.uid).map_err(|error| ApiError::internal("read a namespace", error))?;
        Ok(Some(BlobNamespace::with_uid(name.clone(), uid)))
    }
}

/// Returns the error for uploads on a server that stores none.
pub fn no_uploads() -> ApiError {
    ApiError::new(
        ErrorReason::NotFound,
        "this server stores no uploads, because it has no claim: put the files into a volume, or have an administrator \
         set api.uploads.bucket, or install the chart without api.database.secretName",
    )
}

/// Removes the blobs that none of `jobs` names and that were not used for a day; returns how many.
///
/// # Errors
/// The cluster fails, and nothing is removed; or an error of the file system.
pub async fn remove_unused(
    store: &BlobStore,
    namespaces: &impl FindNamespace,
    jobs: &[Arc<TrainJob>],
) -> Result<usize> {
    let mut used: HashSet<(LabelName, BlobDigest)> = HashSet::new();
    for job in jobs.iter().filter(|job| job.spec.uploads().next().is_some()) {
        let Ok(name) = LabelName::new(job.namespace().unwrap_or_default()) else { continue };
        // A namespace that does not exist is being deleted, with its jobs.
        let Some(namespace) = namespaces.find(&name).await? else { continue };
        let digests = job.spec.uploads().filter_map(|digest| BlobDigest::new(digest).ok());
        used.extend(digests.map(|digest| (namespace.dir().clone(), digest)));
    }
    store.remove_unused(move |dir, digest| used.contains(&(dir.clone(), digest.clone()))).await
}

/// Serves the blobs of the store on the listener to the jobs in `jobs`, until the server fails. Waits until the
/// operator has issued this server's identity.
pub async fn serve(
    BlobSettings { store, listener }: BlobSettings,
    jobs: Store<TrainJob>,
    namespaces: Namespaces,
    secret: Arc<IdentitySecret>,
) {
    let (sender, identity) = watch::channel(secret.wait().await);
    let service = BlobService::new(store, jobs, namespaces);
    let served = async {
        tokio::select! {
            served = run(listener, identity, service) => served,
            () = secret.send_renewals(sender) => Ok(()),
        }
    };
    if let Err(error) = served.await {
        tracing::error!("uploads are no longer served: {error:#}");
    }
}

/// Serves `service` on `listener`, as the newest `identity`.
async fn run(
    listener: TcpListener,
    identity: watch::Receiver<Identity>,
    service: BlobService<impl FindNamespace>,
) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let address: SocketAddr = listener.local_addr()?;
    tracing::info!("uploads are served to jobs at {address}");
    let incoming = listen_renewed(listener, "uploads", identity, AdmissionPolicy::BlobReaders, Protection::Encrypted);
    Ok(transport::server().add_service(BlobsServer::new(service)).serve_with_incoming(incoming).await?)
}
