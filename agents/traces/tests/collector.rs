//! Tests that spans reach an OTLP receiver with their parent, and that a missing receiver blocks nothing.
//!
//! A process has one subscriber and reads its environment once. Each case therefore runs in a process of its own, which
//! executes this test program again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};
use tracing_subscriber::Layer;

/// Environment variable that marks the process as the traced one.
const TRACED: &str = "MILLRACE_TEST_TRACED";
/// A trace started by another program, and its span.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

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

#[test]
#[ignore = "is run by the others, as a process of its own"]
fn traced() {
    if std::env::var_os(TRACED).is_none() {
        return;
    }
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let logs = logs.with_filter(tracing_subscriber::filter::filter_fn(|metadata| metadata.is_event())).boxed();
    let traces = millrace_traces::install("test-program", logs).unwrap();
    let request = tracing::info_span!(target: "millrace_api", "request", otel.name = "GET /v1/jobs", code = 200_u16);
    let header = format!("00-{TRACE}-{PARENT}-01");
    millrace_traces::set_parent_from_headers(&request, |name| (name == "traceparent").then_some(&*header));
    millrace_traces::set_parent_from_headers(&request, |name| (name == "traceparent").then_some("nonsense"));
    request.in_scope(|| {
        let current = millrace_traces::TraceParent::current();
        eprintln!("current {}", current.map_or_else(|| "none".to_owned(), |span| span.to_string()));
        drop(tracing::info_span!(target: "hyper", "of a library").entered());
        drop(tracing::debug_span!(target: "millrace_api", "a detail").entered());
        drop(tracing::info_span!(target: "millrace_control", "reconcile", job = "team/job").entered());
    });
    drop(request);
    let began = Instant::now();
    drop(traces);
    eprintln!("flushed in {} ms", began.elapsed().as_millis());
}

/// Runs [`traced`] with an endpoint and returns what it printed.
async fn trace_to(endpoint: Option<&str>) -> String {
    trace_trusting(endpoint, None).await
}

/// Runs [`traced`] like [`trace_to`], and trusts the certificate authority in the file `authority`.
async fn trace_trusting(endpoint: Option<&str>, authority: Option<&Path>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "traced", "--ignored", "--nocapture"]).env(TRACED, "yes").stdout(Stdio::null());
    match endpoint {
        Some(endpoint) => command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        None => command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT"),
    };
    if let Some(authority) = authority {
        command.env("OTEL_EXPORTER_OTLP_CERTIFICATE", authority);
    }
    let output = tokio::task::spawn_blocking(move || command.stderr(Stdio::piped()).output().unwrap()).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_arrive_with_their_parent_and_those_of_libraries_do_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, mut received) = mpsc::unbounded_channel();
    let server = Server::builder().add_service(TraceServiceServer::new(Collector(sender)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

    let said = trace_to(Some(&endpoint)).await;
    assert!(!said.contains("can't export traces"), "{said}");
    let (mut spans, mut services): (Vec<Span>, Vec<String>) = (Vec::new(), Vec::new());
    while let Ok(request) = received.try_recv() {
        for resource in request.resource_spans {
            services.push(format!("{:?}", resource.resource));
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    assert!(services.iter().all(|service| service.contains("test-program")), "{services:?}");
    let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["reconcile", "GET /v1/jobs"], "in the order in which they ended");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let [visit, request] = &spans[..] else { unreachable!("two names") };
    let current = said.lines().find_map(|line| line.strip_prefix("current ")).unwrap();
    assert_eq!(current, format!("00-{TRACE}-{}-01", hex(&request.span_id)), "what agents continue");
    assert_eq!((hex(&request.trace_id), hex(&request.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!((&visit.trace_id, &visit.parent_span_id), (&request.trace_id, &request.span_id));
    assert!(visit.attributes.iter().any(|attribute| attribute.key == "job"), "{:?}", visit.attributes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_collector_is_verified_by_its_authority_only() {
    let directory = tempfile::tempdir().unwrap();
    let [ours, others] = ["ours.pem", "others.pem"].map(|name| directory.path().join(name));
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&ours, own.cert.pem()).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&others, other.cert.pem()).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let (sender, mut received) = mpsc::unbounded_channel();
    let identity = Identity::from_pem(own.cert.pem(), own.signing_key.serialize_pem());
    let mut server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
    let server = server.add_service(TraceServiceServer::new(Collector(sender)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

    let said = trace_trusting(Some(&endpoint), Some(&others)).await;
    assert!(said.contains("can't export traces") && received.try_recv().is_err(), "{said}");
    let said = trace_trusting(Some(&endpoint), Some(&ours)).await;
    assert!(!said.contains("can't export traces") && received.try_recv().is_ok(), "{said}");
}

#[tokio::test]
async fn unreachable_collector_is_logged_once_and_blocks_nothing() {
    // Nothing listens at this address after the listener is dropped.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let said = trace_to(Some(&endpoint)).await;
    assert_eq!(said.matches("can't export traces").count(), 1, "{said}");
    let flushed = said.lines().find_map(|line| line.strip_prefix("flushed in ")?.strip_suffix(" ms"));
    let milliseconds: u128 = flushed.unwrap().parse().unwrap();
    let most = millrace_traces::FLUSH_TIMEOUT + Duration::from_secs(2);
    assert!(milliseconds < most.as_millis(), "{said}");
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_sent() {
    let said = trace_to(None).await;
    assert!(said.contains("current none") && !said.contains("traces"), "{said}");
}
