//! Connects to the REST server of a cluster for reading uploads, see `proto/millrace/v1/blobs.proto`.
//!
//! Both ends authenticate with certificates of the operator's authority, see [`security`](crate::security). Clients are
//! the fetchers of jobs and the operator.

use millrace_params::BlobDigest;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::proto::blobs_client::BlobsClient;
use crate::proto::{BlobPart, BlobRequest};
use crate::security::{ExpectedPeer, Identity, MemberName, Protection, Service};
use crate::transport;

/// Maximum bytes of a part of a blob. A stream that is not read holds a few parts.
pub const MAX_PART_BYTES: usize = 256 << 10;

/// Connects to the REST server at `address` (`host:port`). The connection is encrypted.
///
/// # Errors
/// The address is invalid, nothing listens there, or one end rejects the identity of the other.
pub async fn connect(address: &str, identity: &Identity) -> Result<BlobsClient<Channel>, tonic::transport::Error> {
    let server = ExpectedPeer::new(MemberName::Service(Service::RestServer));
    Ok(BlobsClient::new(transport::dial(address, identity, server, Protection::Encrypted).await?))
}

/// Why a blob can't be read.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The namespace of the job has no such blob.
    #[error("the upload does not exist")]
    NotFound,
    /// The server rejects the request, for this reason.
    #[error("{}", .0.message())]
    Rejected(#[source] Box<Status>),
    /// The server has the blob not yet, or does not know the job yet.
    #[error("{}", .0.message())]
    NotYet(#[source] Box<Status>),
    /// The server can't be reached, or one end rejects the identity of the other.
    #[error("can't connect")]
    Connect(#[from] tonic::transport::Error),
    /// The server closed the stream before the end of the blob.
    #[error("the server closed the stream before the end of the upload")]
    Incomplete,
}

impl From<Status> for ReadError {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::NotFound => Self::NotFound,
            Code::PermissionDenied | Code::InvalidArgument | Code::OutOfRange => Self::Rejected(Box::new(status)),
            _ => Self::NotYet(Box::new(status)),
        }
    }
}

/// Reads a blob that the job with the UID `job_uid` names, at most its first `max_bytes` bytes and the rest of a part.
///
/// # Errors
/// See [`ReadError`].
pub async fn read(
    address: &str,
    identity: &Identity,
    (job_uid, digest): (&str, &BlobDigest),
    max_bytes: u64,
) -> Result<Vec<u8>, ReadError> {
    let mut client = connect(address, identity).await?;
    let request = BlobRequest { job_uid: job_uid.to_owned(), digest: digest.to_string(), offset: 0 };
    let mut parts = client.read(request).await?.into_inner();
    let mut content = Vec::new();
    while let Some(BlobPart { blob_bytes, data }) = parts.message().await? {
        content.extend_from_slice(&data);
        let received = content.len() as u64;
        if received >= max_bytes.min(blob_bytes) {
            return Ok(content);
        }
    }
    Err(ReadError::Incomplete)
}
