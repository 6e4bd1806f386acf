//! Fetches the uploads of a job from the REST server of a cluster into the pod of an agent, before the agent starts.
//!
//! ```text
//! FetchDocument ── files below --into ──► one blob after the other ──► DIR/.fetching ── verified ──► DIR/0/x.npy
//! ```
//!
//! * A file with its final name has the content of its digest.
//! * A read continues where it was after the connection broke. Without any progress for [`PROGRESS_TIMEOUT`] the fetch
//!   fails, so that the job's status has the reason.
//! * A fetch that is repeated skips what is complete.
//! * Memory does not depend on the length of an upload.

mod download;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millrace_params::BlobDigest;
use millrace_protocol::launch::{
    DocumentError, Exit, FetchCommand, FetchDocument, FetchedFile, MAX_FETCH_DOCUMENT_BYTES,
};
use millrace_protocol::security::{Identity, IdentityError};
use tokio::signal::unix::{SignalKind, signal};
use tonic::Status;

use download::BlobServer;

/// Time without any received byte after which a fetch fails.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);
/// Name of the file that is being fetched. No file of a job can have it: names do not begin with a dot.
const UNFINISHED_FILE: &str = ".fetching";

/// Why the uploads of a job can't be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The list can't be read.
    #[error("can't read the list of uploads {}", path.display())]
    ReadDocument { path: PathBuf, source: io::Error },
    /// The list was written by another release, or is damaged.
    #[error("the list of uploads {}", path.display())]
    Document { path: PathBuf, source: DocumentError },
    /// The certificate can't be used.
    #[error("the certificate for fetching uploads")]
    Identity(#[from] IdentityError),
    /// No threads.
    #[error("can't start an async runtime")]
    Runtime(#[source] io::Error),
    /// The namespace has no such upload.
    #[error("the upload {digest} of {} does not exist: upload it, and submit the job again", path.display())]
    NotFound { digest: BlobDigest, path: PathBuf },
    /// The server rejects the request.
    #[error("the server {server} rejects the request for the upload {digest} of {}", path.display())]
    Rejected { server: String, digest: BlobDigest, path: PathBuf, source: Status },
    /// The server has not answered for a long time.
    #[error(
        "received nothing of the upload {digest} of {} from the server {server} for {} s: check that the REST server \
         runs and that its network policies admit this pod", path.display(), timeout.as_secs()
    )]
    NoProgress { server: String, digest: BlobDigest, path: PathBuf, timeout: Duration, source: Status },
    /// The content is not what its digest says.
    #[error("the server {server} sent another content than {digest} for {}: upload the file again", path.display())]
    Damaged { server: String, digest: BlobDigest, path: PathBuf },
    /// The pod is being deleted.
    #[error("interrupted by SIGTERM while fetching uploads")]
    Interrupted,
    /// A file can't be written.
    #[error("can't write the upload {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl FetchError {
    /// Returns the exit: another attempt may help, unless the user has to upload something.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::NotFound { .. } => Exit::BadInput,
            Self::Interrupted => Exit::Interrupted,
            _ => Exit::Failed,
        }
    }
}

/// Fetches the uploads that `command` names; returns a sentence about the result. Blocks.
///
/// # Errors
/// See [`FetchError`].
pub fn fetch_uploads(command: &FetchCommand) -> Result<String, FetchError> {
    let document = read_document(&command.document)?;
    let identity = Identity::read(&command.identity)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(FetchError::Runtime)?;
    let (began, mut bytes, mut count) = (Instant::now(), 0, 0);
    let mut server = BlobServer::new(command.server.clone(), identity, document.job_uid.clone(), PROGRESS_TIMEOUT);
    for dir in &command.into {
        let files: Vec<_> = document.files_below(dir).collect();
        count += files.len();
        bytes += runtime.block_on(until_terminated(fetch_into(&mut server, dir, &files)))?;
    }
    Ok(format!("fetched {bytes} bytes of {count} upload(s) in {:.1} s", began.elapsed().as_secs_f64()))
}

/// Ends `work` at SIGTERM, which the first process of a container ignores unless it handles it.
async fn until_terminated<T>(work: impl Future<Output = Result<T, FetchError>>) -> Result<T, FetchError> {
    let mut terminated = signal(SignalKind::terminate()).map_err(FetchError::Runtime)?;
    tokio::select! {
        done = work => done,
        _ = terminated.recv() => Err(FetchError::Interrupted),
    }
}

fn read_document(path: &Path) -> Result<FetchDocument, FetchError> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_FETCH_DOCUMENT_BYTES).read_to_string(&mut text))
        .map_err(|source| FetchError::ReadDocument { path: path.to_owned(), source })?;
    FetchDocument::from_json(&text).map_err(|source| FetchError::Document { path: path.to_owned(), source })
}

/// Fetches `files` into `dir`; returns the received bytes.
async fn fetch_into(server: &mut BlobServer, dir: &Path, files: &[&FetchedFile]) -> Result<u64, FetchError> {
    let mut bytes = 0;
    let mut complete: HashMap<&BlobDigest, &Path> = HashMap::new();
    let unfinished = dir.join(UNFINISHED_FILE);
    for FetchedFile { path, digest } in files {
        let write_error = |source| FetchError::Write { path: path.clone(), source };
        fs::create_dir_all(path.parent().unwrap_or(dir)).map_err(write_error)?;
        // Files with the same content are links to one.
        let is_linked = complete.get(digest).is_some_and(|existing| fs::hard_link(existing, path).is_ok());
        if !is_linked && !path.exists() {
            bytes += server.download(digest, path, &unfinished).await?;
            fs::rename(&unfinished, path).map_err(write_error)?;
        }
        complete.insert(digest, path);
    }
    Ok(bytes)
}
