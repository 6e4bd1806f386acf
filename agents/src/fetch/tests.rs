//! Tests of fetching over loopback, from a server that fails as its script says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use millrace_protocol::proto::blobs_server::{Blobs, BlobsServer};
use millrace_protocol::proto::{BlobPart, BlobRequest};
use millrace_protocol::security::{AdmissionPolicy, Authority, MemberName, Protection, Service, Validity, listen};
use millrace_protocol::transport;
use tokio::net::TcpListener;
use tokio_stream::Iter;
use tonic::{Request, Response, Status};

use super::*;

const UID: &str = "6a0c1c3e-0000-4000-8000-000000000001";

/// The reply to a read.
enum Reply {
    /// The first bytes, then an error.
    Cut(usize),
    /// Other bytes.
    Damaged,
    Failed(Status),
}

/// Serves one blob. Requests are answered by the script; after its end, with all that is missing.
#[derive(Clone)]
struct Script {
    content: Vec<u8>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
    /// The offsets of all requests.
    offsets: Arc<Mutex<Vec<u64>>>,
}

#[tonic::async_trait]
impl Blobs for Script {
    type ReadStream = Iter<std::vec::IntoIter<Result<BlobPart, Status>>>;

    async fn read(&self, request: Request<BlobRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let BlobRequest { job_uid, offset, .. } = request.into_inner();
        assert_eq!(job_uid, UID);
        self.offsets.lock().unwrap().push(offset);
        let rest = &self.content[offset as usize..];
        let part = |data: &[u8]| Ok(BlobPart { blob_bytes: self.content.len() as u64, data: data.to_vec().into() });
        let parts = match self.replies.lock().unwrap().pop_front() {
            Some(Reply::Cut(bytes)) => vec![part(&rest[..bytes]), Err(Status::unknown("broken pipe"))],
            Some(Reply::Damaged) => vec![part(&vec![b'x'; rest.len()])],
            Some(Reply::Failed(status)) => return Err(status),
            None => rest.chunks(4).map(part).collect(),
        };
        Ok(Response::new(tokio_stream::iter(parts)))
    }
}

struct Case {
    dir: tempfile::TempDir,
    script: Script,
    server: BlobServer,
}

impl Case {
    async fn new(content: &[u8], replies: impl IntoIterator<Item = Reply>) -> Self {
        let script = Script {
            content: content.to_vec(),
            replies: Arc::new(Mutex::new(replies.into_iter().collect())),
            offsets: Arc::default(),
        };
        let today = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
        let authority = Authority::new(today).unwrap();
        let identity = |name| Identity::new(&authority.issue(&name, today).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server_identity = identity(MemberName::Service(Service::RestServer));
        let incoming =
            listen(listener, "uploads", server_identity, AdmissionPolicy::BlobReaders, Protection::Encrypted);
        let service = BlobsServer::new(script.clone());
        tokio::spawn(transport::server().add_service(service).serve_with_incoming(incoming));
        let fetcher = identity(MemberName::for_fetcher(UID).unwrap());
        let server = BlobServer::new(address, fetcher, UID.to_owned(), Duration::from_secs(30));
        Self { dir: tempfile::tempdir().unwrap(), script, server }
    }

    fn file(&self, path: &str) -> FetchedFile {
        let digest = format!("blake3:{}", blake3::hash(&self.script.content).to_hex());
        FetchedFile { path: self.dir.path().join(path), digest: BlobDigest::new(digest).unwrap() }
    }

    async fn fetch(&mut self, paths: &[&str]) -> Result<u64, FetchError> {
        let files: Vec<_> = paths.iter().map(|path| self.file(path)).collect();
        let files: Vec<_> = files.iter().collect();
        fetch_into(&mut self.server, self.dir.path(), &files).await
    }

    fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.dir.path().join(path)).unwrap()
    }

    fn offsets(&self) -> Vec<u64> {
        self.script.offsets.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn broken_read_continues_where_it_was() {
    let unavailable = Reply::Failed(Status::unavailable("being uploaded"));
    let mut case = Case::new(b"some weights of a model", [Reply::Cut(7), unavailable, Reply::Cut(0)]).await;
    assert_eq!(case.fetch(&["0/x.npy", "1/deep/x.npy"]).await.unwrap(), 23);
    assert_eq!(case.offsets(), [0, 7, 7, 7], "the second file is a link");
    for path in ["0/x.npy", "1/deep/x.npy"] {
        assert_eq!(case.read(path), case.script.content);
    }
    assert_eq!(case.fetch(&["0/x.npy", "1/deep/x.npy"]).await.unwrap(), 0, "all is there");
    assert!(!case.dir.path().join(UNFINISHED_FILE).exists());
}

#[tokio::test]
async fn failed_fetch_is_explained_and_leaves_no_file() {
    let failed = |status| Reply::Failed(status);
    for (reply, message, exit) in [
        (failed(Status::not_found("no")), "does not exist: upload it", Exit::BadInput),
        (failed(Status::permission_denied("another job")), "rejects the request for the upload blake3:", Exit::Failed),
        (Reply::Damaged, "sent another content than blake3:", Exit::Failed),
    ] {
        let mut case = Case::new(b"weights", [reply]).await;
        let error = case.fetch(&["0/x"]).await.unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!((error.exit(), case.dir.path().join("0/x").exists()), (exit, false));
    }
}

#[tokio::test]
async fn fetch_without_progress_fails() {
    let busy = || Reply::Failed(Status::unavailable("not now"));
    let mut case = Case::new(b"weights", [busy(), busy(), busy(), busy()]).await;
    case.server.set_progress_timeout(Duration::from_millis(300));
    let error = case.fetch(&["x"]).await.unwrap_err();
    assert!(matches!(error, FetchError::NoProgress { .. }), "{error}");
    assert!(error.to_string().contains("check that the REST server runs"), "{error}");
}
