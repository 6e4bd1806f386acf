//! Tests of unauthorized connections to the ports of a running job: without a certificate, with one of another job or
//! of an earlier attempt, or with another agent's name. All are rejected, the reason is logged, and the results do not
//! change.

use std::future::poll_fn;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use millrace_engine::types::AgentId;
use millrace_protocol::packet::{self, AGENT_HEADER, EPOCH_HEADER};
use millrace_protocol::proto::control_client::ControlClient;
use millrace_protocol::proto::{self, CheckpointRequest, FollowRequest, from_agent};
use millrace_protocol::security::{AttemptName, Authority, ExpectedPeer, Identity, MemberName, Protection, Service};
use millrace_protocol::{error_chain, transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::harness::TestDir;
use super::identities::{authority, first_attempt, journal, today};
use super::job::Job;
use super::ports::free_port;

const STEPS: u64 = 300;

fn agent(attempt: &AttemptName, name: &str) -> MemberName {
    MemberName::Agent(attempt.clone(), AgentId::parse(name).unwrap())
}

fn identity(authority: &Authority, name: &MemberName) -> Identity {
    Identity::new(&authority.issue(name, today()).unwrap()).unwrap()
}

/// Returns whether a client that speaks HTTP/2 without TLS is disconnected without an HTTP/2 response.
async fn is_rejected_without_certificate(address: &str) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut answer = Vec::new();
    // Waits for the connection to close, with or without a TLS alert. An HTTP/2 server would keep it open.
    let ended = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
    // 21 is the type of a TLS alert record.
    ended.is_ok() && answer.first().is_none_or(|&byte| byte == 21)
}

async fn dial(address: &str, identity: &Identity, to: &str, protection: Protection) -> Result<Channel, String> {
    let expected = ExpectedPeer::new(agent(&first_attempt(), to));
    transport::dial(address, identity, expected, protection).await.map_err(|error| error_chain(&error))
}

/// Sends a hello as `name`, as a shard that joins for the first time; returns the error.
async fn join(channel: Channel, name: &str) -> Status {
    let AgentId { role, index } = AgentId::parse(name).unwrap();
    let hello = proto::Hello {
        role: role.as_str().to_owned(),
        index,
        address: "127.0.0.1:1".to_owned(),
        instruction_sets: vec!["portable".to_owned()],
        instance: 7,
        ..proto::Hello::default()
    };
    let hello = proto::FromAgent { message: Some(from_agent::Message::Hello(hello)) };
    let stream = ControlClient::new(channel).join(tokio_stream::iter([hello])).await;
    match stream {
        Ok(stream) => stream.into_inner().message().await.expect_err("it is not welcome"),
        Err(status) => status,
    }
}

/// Requests weights as `name`; returns status and text of the response.
async fn request_link(mut channel: Channel, name: &str) -> (StatusCode, String) {
    let request = Request::post(packet::LINK_DOWN_PATH).header(EPOCH_HEADER, "1.1").header(AGENT_HEADER, name);
    let request = request.body(Body::empty()).unwrap();
    poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let response = channel.call(request).await.unwrap();
    let status = response.status();
    let text = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    (status, String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn unauthorized_peers_are_rejected_at_every_port() {
    let place = TestDir::new();
    place.params("params.yaml", &[("eval_frequency: 2", "eval_frequency: 40")]);
    let [data, metrics] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let mut job = Job::coordinator_only(&place, STEPS, &["--metrics_listen", &metrics]);
    let link_port = format!("127.0.0.1:{}", free_port());
    job.join_with("memoryx-0", &["--listen", &data]);
    job.join_with("swarmx-0", &["--listen", &link_port]);
    ["memoryx-1", "activation-0", "activation-1", "cs2-0", "cs2-1"].into_iter().for_each(|agent| job.join(agent));
    job.wait_for_step(5);
    let (control, journal_port) = (job.listening("control").to_owned(), job.listening("journal").to_owned());

    for port in [&control, &journal_port, &data, &link_port] {
        assert!(is_rejected_without_certificate(port).await, "{port}");
    }
    // Any client may read metrics; the port accepts no commands.
    let mut stream = TcpStream::connect(&metrics).await.unwrap();
    stream
        .write_all(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");

    let (ours, other) = (authority(&place), Authority::new(today()).unwrap());
    let this = first_attempt();
    let shard = agent(&this, "memoryx-0");
    let mut forged = other.issue(&shard, today()).unwrap();
    forged.authority = ours.certificate().to_owned();
    let unauthorized = [
        (Identity::new(&forged).unwrap(), "alert"),
        (identity(&ours, &agent(&AttemptName::new("another", 1).unwrap(), "memoryx-0")), "of job another"),
        (identity(&ours, &agent(&AttemptName::new(this.job(), 0).unwrap(), "memoryx-0")), "of attempt 0"),
        (identity(&ours, &MemberName::Service(Service::RestServer)), "is not authorized for this port"),
    ];
    for (peer, reason) in &unauthorized {
        for (port, of) in [(&control, "coordinator-0"), (&data, "memoryx-0"), (&link_port, "swarmx-0")] {
            let error = dial(port, peer, of, Protection::Encrypted).await.unwrap_err();
            assert!(error.contains(reason), "{of}: {error}");
        }
    }

    // An agent of the job that claims another agent's name.
    let system = identity(&ours, &agent(&this, "cs2-1"));
    let status =
        join(dial(&control, &system, "coordinator-0", Protection::Encrypted).await.unwrap(), "memoryx-0").await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let channel = dial(&link_port, &system, "swarmx-0", Protection::Encrypted).await.unwrap();
    let (status, text) = request_link(channel.clone(), "cs2-0").await;
    assert_eq!((status, text.as_str()), (StatusCode::FORBIDDEN, "cs2-1 requested a link of cs2-0"));
    // A second process with the name of a live one.
    let (status, text) = request_link(channel, "cs2-1").await;
    assert_eq!(status, StatusCode::CONFLICT, "{text}");
    let shard = identity(&ours, &shard);
    let status = join(dial(&control, &shard, "coordinator-0", Protection::Encrypted).await.unwrap(), "memoryx-0").await;
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");

    // The journal admits the launcher of the attempt and the control plane only.
    for peer in [agent(&this, "cs2-1"), MemberName::Launcher(AttemptName::new("another", 1).unwrap())] {
        journal(&journal_port, &this, &ours, &peer).connect().await.unwrap_err();
    }
    let mut operator =
        journal(&journal_port, &this, &ours, &MemberName::Service(Service::Operator)).connect().await.unwrap();
    let entries = operator
        .follow(FollowRequest { from: 1, from_current_state: false })
        .await
        .unwrap()
        .into_inner()
        .message()
        .await;
    assert_eq!(entries.unwrap().unwrap().attempt, 1);
    assert!(operator.checkpoint(CheckpointRequest {}).await.unwrap().into_inner().step >= 5);

    assert_eq!(job.end(), Some(0));
    place.succeed(&format!("train_and_eval -p params.yaml -o whole --num_csx 1 --max_steps {STEPS}"));
    assert_eq!(place.result("m", STEPS), place.result("whole", STEPS));
    for (agent, reason) in [
        ("coordinator-0", "its certificate is of job another, this is job e2e"),
        ("coordinator-0", "its certificate is for cs2-1, but it identifies itself as memoryx-0"),
        ("coordinator-0", "rejected a second memoryx-0"),
        ("coordinator-0", "rejected a connection from 127.0.0.1"),
        ("memoryx-0", "its certificate is of attempt 0, this is attempt 1"),
        ("swarmx-0", "cs2-1 requested a link of cs2-0"),
    ] {
        let log = std::fs::read_to_string(place.path(format!("m/logs/attempt-1/{agent}.log"))).unwrap();
        assert!(log.contains(reason), "{agent}: {reason:?} is not in\n{log}");
    }
}

/// Encryption of the data between agents is a setting of the job: a client with another setting is rejected.
#[tokio::test]
async fn plaintext_data_requires_both_ends() {
    let place = TestDir::new();
    let data = format!("127.0.0.1:{}", free_port());
    let mut job = Job::coordinator_only(&place, STEPS, &[]);
    job.join_with("memoryx-0", &["--listen", &data, "--data_encryption", "off"]);
    for agent in ["memoryx-1", "swarmx-0", "activation-0", "activation-1", "cs2-0", "cs2-1"] {
        job.join_with(agent, &["--data_encryption", "off"]);
    }
    job.wait_for_step(5);
    let system = identity(&authority(&place), &agent(&first_attempt(), "cs2-1"));
    dial(&data, &system, "memoryx-0", Protection::Encrypted).await.unwrap_err();
    dial(&data, &system, "memoryx-0", Protection::Authenticated).await.unwrap();
    assert!(is_rejected_without_certificate(&data).await);
    assert_eq!(job.end(), Some(0));
}
