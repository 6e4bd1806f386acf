//! A whole coordinator under mutual TLS: who has a client's certificate of its authority follows and commands it, nobody
//! else does.

use millrace_protocol::journal::{self, Tls};
use millrace_protocol::proto::journal_client::JournalClient;
use millrace_protocol::proto::{CheckpointRequest, Entry, FollowRequest, StopRequest};
use tokio_stream::StreamExt;
use tonic::transport::Channel;

use super::authority::{Authority, Identity, Use};
use super::harness::Place;
use super::job::{AGENTS, Job};

/// A job that says little, and whose journal is served as `localhost` of `authority`.
fn job<'a>(place: &'a Place, authority: &Authority) -> Job<'a> {
    let seldom = [("log_steps: 1", "log_steps: 1000000"), ("eval_frequency: 2", "eval_frequency: 1000000")];
    place.params("params.yaml", &seldom);
    let Identity { cert, key } = authority.sign("localhost", Use::Server);
    place.write("cert.pem", cert);
    place.write("key.pem", key);
    place.write("ca.pem", authority.pem());
    let files = ["--journal_cert", "cert.pem", "--journal_key", "key.pem", "--journal_ca", "ca.pem"];
    let mut job = Job::coordinator_only(place, 1_000_000, &files);
    AGENTS.into_iter().for_each(|agent| job.join(agent));
    job
}

/// Everything up to the first entry of `kind`.
async fn follow_to(client: &mut JournalClient<Channel>, kind: &str) -> Vec<Entry> {
    let mut stream = client.follow(FollowRequest { from: 1, newest: false }).await.unwrap().into_inner();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|entry: &Entry| entry.kind != kind) {
        seen.push(stream.next().await.expect("the journal goes on").unwrap());
    }
    seen
}

/// Whether somebody without a certificate, or with this one, is kept from reading.
async fn refused(address: &str, tls: Option<&Tls>) -> bool {
    match journal::connect(address, tls).await {
        Ok(mut client) => match client.follow(FollowRequest { from: 1, newest: false }).await {
            Ok(stream) => !matches!(stream.into_inner().next().await, Some(Ok(_))),
            Err(_) => true,
        },
        Err(_) => true,
    }
}

#[tokio::test]
async fn only_a_client_of_the_right_authority_follows_and_commands() {
    let (ours, other) = (Authority::new(), Authority::new());
    let place = Place::new();
    let job = job(&place, &ours);
    let address = job.listening("journal").replace("127.0.0.1", "localhost");
    let mut client = journal::connect(&address, Some(&ours.tls("operator", Use::Client, &ours))).await.unwrap();

    let entries = follow_to(&mut client, "metric").await;
    assert!(entries.iter().any(|entry| entry.kind == "state"), "{entries:?}");
    assert!(entries.is_sorted_by(|a, b| a.number < b.number), "{entries:?}");
    let saved = client.checkpoint(CheckpointRequest {}).await.unwrap().into_inner();
    let info = place.info(&format!("m/checkpoint_{}", saved.step));
    assert!(saved.step > 0);
    assert_eq!(info["parameters_blake3"], saved.parameters_blake3);

    assert!(refused(&address, None).await, "no certificate");
    assert!(refused(&address, Some(&other.tls("operator", Use::Client, &ours))).await, "another authority's");
    assert!(refused(&address, Some(&ours.tls("localhost", Use::Server, &ours))).await, "a server's");

    let stopped = client.stop(StopRequest { reason: "the test is over".into() }).await.unwrap().into_inner();
    assert_eq!(place.info(&format!("m/checkpoint_{}", stopped.step))["parameters_blake3"], stopped.parameters_blake3);
    assert_eq!(job.end(), Some(130));
}
