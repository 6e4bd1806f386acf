//! Mutual TLS on the journal's port: who has a certificate of the right authority reads, nobody else does.

mod authority;

use millrace_protocol::journal::{self, JournalError, Tls};
use millrace_protocol::proto;
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use authority::{Authority, Identity, Use};

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

/// Reads the first entry, whichever way it fails.
async fn first_entry(address: &str, tls: Option<&Tls>) -> Result<u64, String> {
    let mut client = journal::connect(address, tls).await.map_err(|error| error.to_string())?;
    let reply =
        client.follow(proto::FollowRequest { from: 7, newest: false }).await.map_err(|status| status.to_string())?;
    let entry = reply.into_inner().next().await.ok_or("no entry")?;
    entry.map(|entry| entry.number).map_err(|status| status.to_string())
}

#[tokio::test]
async fn only_a_clients_certificate_of_the_right_authority_reads_the_journal() {
    let (ours, other) = (Authority::new(), Authority::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut server = journal::server(Some(&ours.tls("localhost", Use::Server, &ours))).unwrap();
    let service = proto::journal_server::JournalServer::new(OneEntry);
    tokio::spawn(async move {
        server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    let address = format!("localhost:{port}");
    let read = async |tls: Tls| first_entry(&address, Some(&tls)).await;

    assert_eq!(read(ours.tls("operator", Use::Client, &ours)).await, Ok(7));
    // Nobody's certificate, a stranger's, a server's own, and a server that is not the one this client trusts.
    first_entry(&address, None).await.unwrap_err();
    read(other.tls("stranger", Use::Client, &ours)).await.unwrap_err();
    read(ours.tls("localhost", Use::Server, &ours)).await.unwrap_err();
    read(ours.tls("wary", Use::Client, &other)).await.unwrap_err();
    // Nor is the name in the certificate for decoration.
    let operator = ours.tls("operator", Use::Client, &ours);
    first_entry(&format!("127.0.0.1:{port}"), Some(&operator)).await.unwrap_err();
    // It was the same server all the while.
    assert_eq!(read(operator).await, Ok(7));
}

#[tokio::test]
async fn a_client_is_no_server() {
    let ours = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("localhost:{}", listener.local_addr().unwrap().port());
    let mut server = journal::server(Some(&ours.tls("localhost", Use::Client, &ours))).unwrap();
    let service = proto::journal_server::JournalServer::new(OneEntry);
    tokio::spawn(async move {
        server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    first_entry(&address, Some(&ours.tls("operator", Use::Client, &ours))).await.unwrap_err();
}

#[test]
fn files_that_can_not_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    let Identity { cert, key } = ours.sign("localhost", Use::Server);
    let [cert, key, ca] =
        [("cert.pem", cert.as_str()), ("key.pem", &key), ("ca.pem", ours.pem())].map(|(name, pem)| {
            let path = dir.path().join(name);
            std::fs::write(&path, pem).unwrap();
            path
        });
    assert!(journal::server(Some(&Tls::read(&cert, &key, &ca).unwrap())).is_ok());
    let not_a_key = Tls::read(&cert, &ca, &ca).unwrap();
    assert!(matches!(journal::server(Some(&not_a_key)), Err(JournalError::Transport(_))));
    let error = Tls::read(&cert, &dir.path().join("missing.pem"), &ca).unwrap_err().to_string();
    assert!(error.contains("missing.pem"), "{error}");
}
