//! The service that sends blobs to the pods of jobs and to the operator.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use millrace_crds::TrainJob;
use millrace_params::{BlobDigest, LabelName};
use millrace_protocol::blobs::MAX_PART_BYTES;
use millrace_protocol::proto::blobs_server::Blobs;
use millrace_protocol::proto::{BlobPart, BlobRequest};
use millrace_protocol::security::{MemberName, Peer, Service};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::FindNamespace;
use crate::blobs::{BlobReader, BlobStore, OpenBlob};
use crate::error::ApiError;
use crate::files::wire;

/// Limit on the reads of one job at the same time; further ones wait for their turn, so that a job with many systems
/// leaves the disk to others.
const MAX_JOB_READS: usize = 8;
/// Time after which a read whose client takes no part ends. The client continues where it was.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

type PartStream = BoxStream<'static, Result<BlobPart, Status>>;

/// Sends blobs.
pub struct BlobService<N> {
    store: BlobStore,
    /// The jobs of the cluster, as this server has observed them.
    jobs: Store<TrainJob>,
    namespaces: N,
    reads: JobReads,
}

/// The reads of each job, by its UID.
#[derive(Default)]
struct JobReads(Mutex<HashMap<String, Weak<Semaphore>>>);

impl JobReads {
    /// Waits for the turn of a job.
    async fn begin(&self, uid: &str) -> Result<OwnedSemaphorePermit, Status> {
        let turns = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, turns| turns.strong_count() > 0);
            let turns = all.get(uid).and_then(Weak::upgrade);
            let turns = turns.unwrap_or_else(|| Arc::new(Semaphore::new(MAX_JOB_READS)));
            all.insert(uid.to_owned(), Arc::downgrade(&turns));
            turns
        };
        // The semaphore is never closed.
        turns.acquire_owned().await.map_err(|_| Status::unavailable("the server is shutting down"))
    }
}

impl<N: FindNamespace> BlobService<N> {
    /// Sends blobs of `store` to the jobs in `jobs`.
    pub fn new(store: BlobStore, jobs: Store<TrainJob>, namespaces: N) -> Self {
        Self { store, jobs, namespaces, reads: JobReads::default() }
    }

    /// Returns the job of a request, if the client may read the blob for it.
    fn authorize(&self, peer: &MemberName, uid: &str, digest: &BlobDigest) -> Result<Arc<TrainJob>, Status> {
        if let MemberName::Fetcher { job } = peer
            && job != uid
        {
            return Err(Status::permission_denied(format!("the certificate is of job {job}, not of job {uid}")));
        }
        // The watch of this server may be behind that of the operator.
        let job = self.jobs.find(|job| job.metadata.uid.as_deref() == Some(uid));
        let job = job.ok_or_else(|| Status::unavailable(format!("the server does not know job {uid} yet")))?;
        let graph = job.spec.model.as_ref().and_then(|model| model.graph.as_deref());
        let is_named = match peer {
            MemberName::Fetcher { .. } => job.spec.uploads().any(|named| named == digest.as_str()),
            MemberName::Service(Service::Operator) => graph == Some(digest.as_str()),
            _ => false,
        };
        let name = job.name_any();
        is_named.then_some(job).ok_or_else(|| {
            Status::permission_denied(format!("the spec of job {name} does not name the upload {digest} for {peer}"))
        })
    }

    /// Opens a blob of the job's namespace.
    async fn open(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Box<dyn BlobReader>, Status> {
        let not_found = || Status::not_found(format!("the job's namespace has no upload {digest}"));
        let name = LabelName::new(job.namespace().unwrap_or_default()).map_err(|_| not_found())?;
        let namespace = self.namespaces.find(&name).await.map_err(status)?.ok_or_else(not_found)?;
        match self.store.open(namespace, digest.clone()).await.map_err(status)? {
            OpenBlob::Complete(reader) => Ok(reader),
            OpenBlob::Incomplete => Err(Status::unavailable(format!("the upload {digest} is not complete yet"))),
            OpenBlob::Missing => Err(not_found()),
        }
    }
}

#[tonic::async_trait]
impl<N: FindNamespace> Blobs for BlobService<N> {
    type ReadStream = PartStream;

    async fn read(&self, request: Request<BlobRequest>) -> Result<Response<PartStream>, Status> {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.name.clone());
        let peer = peer.ok_or_else(|| Status::permission_denied("the connection has no certificate"))?;
        let BlobRequest { job_uid, digest, offset } = request.into_inner();
        let digest = BlobDigest::new(digest).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let job = self.authorize(&peer, &job_uid, &digest)?;
        let turn = self.reads.begin(&job_uid).await?;
        let reader = self.open(&job, &digest).await?;
        let blob_bytes = reader.bytes();
        let rest = blob_bytes.checked_sub(offset);
        let rest = rest.ok_or_else(|| Status::out_of_range(format!("the upload {digest} has {blob_bytes} bytes")))?;
        if rest == 0 {
            let end = BlobPart { blob_bytes, data: Bytes::new() };
            return Ok(Response::new(stream::iter([Ok(end)]).boxed()));
        }
        let parts = reader.read(offset, MAX_PART_BYTES);
        let parts = parts.map_ok(move |data| BlobPart { blob_bytes, data }).map_err(status);
        Ok(Response::new(until_stalled(parts, turn)))
    }
}

/// Sends `parts` as the client takes them, and ends if it takes none for [`STALL_TIMEOUT`]. Holds `turn` until then.
fn until_stalled(
    parts: impl Stream<Item = Result<BlobPart, Status>> + Send + 'static,
    turn: OwnedSemaphorePermit,
) -> PartStream {
    // One part is read ahead; the others stay on the disk until the client takes it.
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _turn = turn;
        tokio::pin!(parts);
        while let Some(part) = parts.next().await {
            match tokio::time::timeout(STALL_TIMEOUT, sender.send(part)).await {
                Ok(Ok(())) => {}
                // The client has closed the stream, or takes nothing.
                Ok(Err(_)) | Err(_) => return,
            }
        }
    });
    ReceiverStream::new(receiver).boxed()
}

/// Converts an error of the store or of the cluster. It may be temporary, so that the client tries again.
fn status(error: ApiError) -> Status {
    wire::to_status(error)
}
