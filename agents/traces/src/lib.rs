//! The one place where a program's subscriber is put together: what it logs, in a layer of its own, and its spans,
//! which go to an OpenTelemetry collector where one is named.
//!
//! ```text
//!   tracing::info!, log::info! of libraries ──► the program's layer of logs ──► standard error
//!   tracing::info_span!                     ──► batches, on a thread        ──► OTLP over gRPC
//! ```
//!
//! Spans are sent where `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, unless
//! `OTEL_SDK_DISABLED` is `true` or `OTEL_TRACES_EXPORTER` is `none`. The other variables of the OpenTelemetry
//! specification for OTLP, certificates, batches, sampling and resources count, too. Without an endpoint a span costs a comparison.
//!
//! Invariants:
//! * A collector that can't be reached neither blocks nor ends the program: spans beyond a bounded queue are dropped,
//!   and the failure is logged once until sending works again.
//! * What has ended before [`Traces`] is dropped is sent, if the collector takes it within [`FLUSH_TIMEOUT`].
//! * Of spans only those of our own crates are sent.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod exporter;
mod parent;
mod traceparent;

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider};
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;

pub use parent::follow;
pub use traceparent::{InvalidTraceParent, TraceParent};

use exporter::Exporter;

/// For the last spans to be sent when the program ends.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// How the targets of our own crates begin.
const OWN_TARGETS: &str = "millrace";

/// A layer of a program's subscriber.
pub type BoxLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Why no subscriber could be installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The variables of OTLP name something that can't be used.
    #[error("traces can't be sent to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The certificate authority of the collector can't be read.
    #[error("can't read {}, which OTEL_EXPORTER_OTLP_CERTIFICATE names: {source}", path.display())]
    Certificate {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no thread to send from.
    #[error("can't start the thread that sends traces: {0}")]
    Thread(#[from] std::io::Error),
    /// A second subscriber was installed in one process.
    #[error("this process already has a logger")]
    Installed,
}

/// The sending of spans, until it is dropped: then what has ended is sent.
#[derive(Default)]
pub struct Traces {
    _sending: Option<Sending>,
}

struct Sending {
    provider: SdkTracerProvider,
    runtime: Option<Runtime>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        // What fails is logged by the exporter.
        let _ = self.provider.shutdown_with_timeout(FLUSH_TIMEOUT);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Installs `logs`, and the sending of spans as of the service `program` where the environment asks for it.
///
/// # Errors
/// [`Error`].
pub fn install(program: &'static str, logs: BoxLayer) -> Result<Traces, Error> {
    let sending = if is_configured() { Some(Sending::start(program)?) } else { None };
    let mut layers = vec![logs];
    if let Some(sending) = &sending {
        let layer = tracing_opentelemetry::layer().with_tracer(sending.provider.tracer("millrace"));
        let own = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with(OWN_TARGETS));
        layers.push(layer.with_location(false).with_threads(false).with_filter(own.and(LevelFilter::INFO)).boxed());
    }
    tracing_subscriber::registry().with(layers).try_init().map_err(|_| Error::Installed)?;
    Ok(Traces { _sending: sending })
}

/// Whether this program's environment asks for traces.
pub fn is_configured() -> bool {
    is_wanted(|name| std::env::var(name).ok())
}

/// Whether the environment asks for traces.
fn is_wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, value: &str| variable(name).is_some_and(|set| set.trim().eq_ignore_ascii_case(value));
    let endpoints = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    let named = endpoints.iter().any(|name| variable(name).is_some_and(|set| !set.trim().is_empty()));
    named && !is("OTEL_SDK_DISABLED", "true") && !is("OTEL_TRACES_EXPORTER", "none")
}

impl Sending {
    fn start(program: &'static str) -> Result<Self, Error> {
        // A thread of its own: the program's may be busy, and are gone when the last spans are sent.
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("traces").enable_all().build()?;
        let exporter = {
            let _entered = runtime.enter();
            Exporter::new(runtime.handle().clone())?
        };
        let resource = Resource::builder()
            .with_service_name(std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| program.to_owned()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_span_processor(BatchSpanProcessor::builder(exporter).build())
            .build();
        Ok(Self { provider, runtime: Some(runtime) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_off_unless_an_endpoint_is_named() {
        let wanted = |set: &[(&str, &str)]| {
            is_wanted(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
        assert!(!wanted(&[]));
        assert!(!wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]));
        assert!(wanted(&[endpoint]));
        assert!(wanted(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4317")]));
        assert!(!wanted(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]));
        assert!(!wanted(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]));
    }
}
