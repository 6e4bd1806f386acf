//! Tests that the spans of all roles reach an OTLP collector as one trace.

use std::collections::{BTreeMap, BTreeSet};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::harness::TestDir;

/// Forwards the requests it receives to the test.
struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let _ = self.0.send(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Runs `arguments` of `millrace-agent` with a collector, and returns the spans that it received.
fn spans_of_run(place: &TestDir, arguments: &[&str]) -> Vec<Span> {
    let runtime = Runtime::new().unwrap();
    let (sender, mut received) = mpsc::unbounded_channel();
    let endpoint = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = Server::builder().add_service(TraceServiceServer::new(Collector(sender)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        endpoint
    });
    let mut command = place.command_of(env!("CARGO_BIN_EXE_millrace-agent"), arguments);
    let output = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env_remove("TRACEPARENT").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut spans = Vec::new();
    while let Ok(request) = received.try_recv() {
        let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        spans.extend(scopes.flat_map(|scope| scope.spans));
    }
    spans
}

#[test]
fn spans_of_all_roles_are_one_trace() {
    let place = TestDir::new();
    let spans = spans_of_run(&place, &["train", "-p", "params.yaml", "-o", "m", "--num_csx", "2"]);
    let traces: BTreeSet<_> = spans.iter().map(|span| &span.trace_id).collect();
    assert_eq!(traces.len(), 1);
    let by_id: BTreeMap<_, _> = spans.iter().map(|span| (&span.span_id, span)).collect();
    let parent = |span: &Span| by_id.get(&span.parent_span_id).map_or("", |parent| &*parent.name);
    let mut found = BTreeMap::new();
    for span in &spans {
        *found.entry((parent(span), &*span.name)).or_insert(0) += 1;
    }
    let count = |parent, name| found.get(&(parent, name)).copied().unwrap_or(0);
    assert_eq!(count("", "run"), 1, "{found:?}");
    for agent in ["memoryx-0", "memoryx-1", "swarmx-0", "activation-0", "cs2-0", "cs2-1"] {
        assert_eq!((count("run", agent), count(agent, "connect")), (1, 1), "{agent}: {found:?}");
    }
    for agent in ["memoryx-0", "memoryx-1", "swarmx-0", "cs2-0", "cs2-1"] {
        assert_eq!(count(agent, "train step"), 6, "{agent}: {found:?}");
    }
    assert_eq!((count("memoryx-0", "load parameters"), count("memoryx-0", "write snapshot")), (1, 1), "{found:?}");
    // Six steps in two shards, one node and two systems.
    for (phase, agents) in [
        ("gather gradients", 2),
        ("await commit", 2),
        ("distribute weights", 1),
        ("reduce gradients", 1),
        ("forward", 2),
        ("backward", 2),
    ] {
        assert_eq!(count("train step", phase), 6 * agents, "{phase}: {found:?}");
    }
    let system_steps = spans.iter().filter(|span| span.name == "train step" && parent(span).starts_with("cs2"));
    let waits = system_steps.flat_map(|span| &span.attributes).filter(|attribute| attribute.key == "wait.weights");
    assert!(waits.count() > 0, "a system waits for weights in some step");
}
