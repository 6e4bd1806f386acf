//! Mutual TLS on the journal's port: who has a certificate of the right authority reads, nobody else does.

use std::path::Path;

use millrace_protocol::journal::{self, JournalError, TlsFiles};
use millrace_protocol::proto;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A journal with one entry.
struct OneEntry;

#[tonic::async_trait]
impl proto::journal_server::Journal for OneEntry {
    type FollowStream = tokio_stream::Once<Result<proto::Entry, Status>>;

    async fn follow(&self, request: Request<proto::FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let number = request.into_inner().from;
        Ok(Response::new(tokio_stream::once(Ok(proto::Entry { number, ..Default::default() }))))
    }

    async fn checkpoint(&self, _: Request<proto::CheckpointRequest>) -> Result<Response<proto::CommandReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn stop(&self, _: Request<proto::StopRequest>) -> Result<Response<proto::CommandReply>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// An authority that makes certificates in a directory.
struct Authority<'a> {
    dir: &'a Path,
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    fn new(dir: &'a Path, name: &'static str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(dir.join(format!("{name}.pem")), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, name, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.join(format!("{name}.pem"))
    }

    /// The identity of `subject`, which trusts `trusted`.
    fn files(&self, subject: &str, trusted: &Self) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new([subject.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let of = |what: &str| self.path(&format!("{}-{subject}-{what}", self.name));
        let files = TlsFiles { cert: of("cert"), key: of("key"), ca: trusted.path(trusted.name) };
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

/// Reads the first entry, whichever way it fails.
async fn first_entry(address: &str, tls: Option<&TlsFiles>) -> Result<u64, String> {
    let mut client = journal::connect(address, tls).await.map_err(|error| error.to_string())?;
    let reply = client.follow(proto::FollowRequest { from: 7 }).await.map_err(|status| status.to_string())?;
    let entry = reply.into_inner().next().await.ok_or("no entry")?;
    entry.map(|entry| entry.number).map_err(|status| status.to_string())
}

#[tokio::test]
async fn only_a_certificate_of_the_right_authority_reads_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = journal::server(Some(&ours.files("localhost", &ours))).unwrap();
    let service = proto::journal_server::JournalServer::new(OneEntry);
    tokio::spawn(async move {
        let mut server = server;
        server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    let address = format!("localhost:{port}");

    assert_eq!(first_entry(&address, Some(&ours.files("operator", &ours))).await, Ok(7));
    // Nobody's certificate, a stranger's, and a server that is not the one this client trusts.
    first_entry(&address, None).await.unwrap_err();
    first_entry(&address, Some(&other.files("stranger", &ours))).await.unwrap_err();
    first_entry(&address, Some(&ours.files("wary", &other))).await.unwrap_err();
    // Nor is the name in the certificate for decoration.
    first_entry(&format!("127.0.0.1:{port}"), Some(&ours.files("operator", &ours))).await.unwrap_err();
    // It was the same server all the while.
    assert_eq!(first_entry(&address, Some(&ours.files("api", &ours))).await, Ok(7));
}

#[test]
fn files_that_can_not_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let mut files = ours.files("localhost", &ours);
    std::fs::write(&files.key, "not a key").unwrap();
    assert!(matches!(journal::server(Some(&files)), Err(JournalError::Transport(_))));
    files.key = dir.path().join("missing.pem");
    let error = journal::server(Some(&files)).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("missing.pem"), "{error}");
}
