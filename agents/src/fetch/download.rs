//! Downloads one blob after the other, over one connection as long as it lasts.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_params::BlobDigest;
use millrace_protocol::blobs;
use millrace_protocol::proto::blobs_client::BlobsClient;
use millrace_protocol::proto::{BlobPart, BlobRequest};
use millrace_protocol::security::Identity;
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::FetchError;

/// Delay after the first failure in a row, which doubles with each.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Longest delay between two tries.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The server, and the connection to it.
pub struct BlobServer {
    address: String,
    identity: Identity,
    job_uid: String,
    /// Time without any received byte after which a download fails.
    progress_timeout: Duration,
    client: Option<BlobsClient<Channel>>,
}

/// What has been received of a blob.
struct Download {
    file: File,
    hasher: blake3::Hasher,
    received: u64,
    last_progress: Instant,
    retry_interval: Duration,
}

/// How a read of a blob ended before its end.
enum Interruption {
    /// Another read may succeed.
    Broken(Status),
    Write(std::io::Error),
}

impl From<Status> for Interruption {
    fn from(status: Status) -> Self {
        Self::Broken(status)
    }
}

impl BlobServer {
    /// Names the server at `address` (`host:port`) for the fetcher `identity` of a job. Nothing is connected yet.
    pub const fn new(address: String, identity: Identity, job_uid: String, progress_timeout: Duration) -> Self {
        Self { address, identity, job_uid, progress_timeout, client: None }
    }

    #[cfg(test)]
    pub fn set_progress_timeout(&mut self, timeout: Duration) {
        self.progress_timeout = timeout;
    }

    /// Downloads a blob into the file `to`, and verifies its digest; returns its length. `path` is its path in errors.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn download(&mut self, digest: &BlobDigest, path: &Path, to: &Path) -> Result<u64, FetchError> {
        let write_error = |source| FetchError::Write { path: path.to_owned(), source };
        let mut download = Download {
            file: File::create(to).map_err(write_error)?,
            hasher: blake3::Hasher::new(),
            received: 0,
            last_progress: Instant::now(),
            retry_interval: MIN_RETRY_INTERVAL,
        };
        loop {
            match self.read(digest, &mut download).await {
                Ok(()) => break,
                Err(Interruption::Write(source)) => return Err(write_error(source)),
                Err(Interruption::Broken(status)) => self.wait_after(status, digest, path, &mut download).await?,
            }
        }
        if format!("blake3:{}", download.hasher.finalize().to_hex()) != digest.as_str() {
            let (server, digest) = (self.address.clone(), digest.clone());
            return Err(FetchError::Damaged { server, digest, path: path.to_owned() });
        }
        Ok(download.received)
    }

    /// Reads the rest of a blob.
    async fn read(&mut self, digest: &BlobDigest, download: &mut Download) -> Result<(), Interruption> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(
                blobs::connect(&self.address, &self.identity)
                    .await
                    .map_err(|error| Status::unavailable(millrace_protocol::error_chain(&error)))?,
            ),
        };
        let request =
            BlobRequest { job_uid: self.job_uid.clone(), digest: digest.to_string(), offset: download.received };
        let timeout = self.progress_timeout;
        let mut parts = answered(timeout, client.read(request)).await?.into_inner();
        let mut blob_bytes = None;
        while let Some(BlobPart { blob_bytes: length, data }) = answered(timeout, parts.message()).await? {
            blob_bytes = Some(length);
            download.append(&data).map_err(Interruption::Write)?;
            if download.received > length {
                break;
            }
        }
        // A stream that was cut in a way that looks like its end is continued, too.
        match blob_bytes {
            Some(length) if download.received >= length => Ok(()),
            _ => Err(Status::unavailable("the server closed the stream before the end of the upload").into()),
        }
    }

    /// Waits before the next try, unless no try can succeed.
    async fn wait_after(
        &mut self,
        status: Status,
        digest: &BlobDigest,
        path: &Path,
        download: &mut Download,
    ) -> Result<(), FetchError> {
        let (server, digest, path) = (self.address.clone(), digest.clone(), path.to_owned());
        match status.code() {
            Code::NotFound => return Err(FetchError::NotFound { digest, path }),
            Code::PermissionDenied | Code::InvalidArgument | Code::OutOfRange => {
                return Err(FetchError::Rejected { server, digest, path, source: status });
            }
            _ => {}
        }
        if download.last_progress.elapsed() >= self.progress_timeout {
            let timeout = self.progress_timeout;
            return Err(FetchError::NoProgress { server, digest, path, timeout, source: status });
        }
        eprintln!("retrying the upload {digest} from byte {}: {}", download.received, status.message());
        // The name of the server may lead to another pod by now.
        self.client = None;
        sleep(download.retry_interval).await;
        download.retry_interval = MAX_RETRY_INTERVAL.min(download.retry_interval * 2);
        Ok(())
    }
}

/// Bounds a wait for the server.
async fn answered<T>(timeout: Duration, wait: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let timed_out = || Err(Status::deadline_exceeded("the server does not answer"));
    tokio::time::timeout(timeout, wait).await.unwrap_or_else(|_| timed_out())
}

impl Download {
    /// Appends received bytes.
    fn append(&mut self, data: &[u8]) -> std::io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.file.write_all(data)?;
        self.hasher.update(data);
        self.received += data.len() as u64;
        self.last_progress = Instant::now();
        self.retry_interval = MIN_RETRY_INTERVAL;
        Ok(())
    }
}
