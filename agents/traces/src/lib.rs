//! Installs a program's `tracing` subscriber: a layer for its logs, and one that sends its spans to an OpenTelemetry
//! collector if one is configured.
//!
//! ```text
//!   tracing::info!, log::info! of libraries ──► the program's layer of logs ──► standard error
//!   tracing::info_span!                     ──► batches, on a thread        ──► OTLP over gRPC
//! ```
//!
//! Spans are sent if `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, unless
//! `OTEL_SDK_DISABLED` is `true` or `OTEL_TRACES_EXPORTER` is `none`. The other variables of the OpenTelemetry
//! specification for OTLP, certificates, batches, sampling and resources also apply. Without an endpoint a span costs
//! one comparison.
//!
//! Guarantees:
//! * A collector that can't be reached neither blocks nor ends the program. Spans beyond a bounded queue are dropped,
//!   and the failure is logged once until sending works again.
//! * Spans that end before [`Traces`] is dropped are sent, if the collector accepts them within [`FLUSH_TIMEOUT`].
//! * Only spans of our own crates are sent, down to the level INFO.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

mod exporter;
mod trace_context;
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

pub use trace_context::set_parent_from_headers;
pub use traceparent::{InvalidTraceParent, TraceParent};

use exporter::Exporter;

/// Bounds the time in which the last spans are sent when the program ends.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Prefix of the targets of our own crates.
const OWN_TARGETS: &str = "millrace";

/// A layer of a program's subscriber.
pub type BoxLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// No subscriber could be installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The variables of OTLP have a value that can't be used.
    #[error("traces can't be sent to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names")]
    Exporter(#[from] ExporterBuildError),
    /// The certificate authority of the collector can't be read.
    #[error("can't read {}, which OTEL_EXPORTER_OTLP_CERTIFICATE names", path.display())]
    Certificate {
        path: std::path::PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The thread that sends spans can't be started.
    #[error("can't start the thread that sends traces")]
    Thread(#[from] std::io::Error),
    /// This process already has a subscriber.
    #[error("this process already has a logger")]
    Installed,
}

/// Sends spans until it is dropped. Dropping it sends the spans that have ended; it blocks for about [`FLUSH_TIMEOUT`]
/// at most.
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
        // The exporter logs errors.
        let _ = self.provider.shutdown_with_timeout(FLUSH_TIMEOUT);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Installs `logs` as the subscriber's layer of logs. If the environment configures a collector, spans are sent as
/// those of the service `program`, or of `OTEL_SERVICE_NAME`.
///
/// # Errors
/// [`Error`] if the configured collector can't be used, or if this process already has a subscriber.
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

/// Returns whether the environment of this program configures a collector.
pub fn is_configured() -> bool {
    is_wanted(|name| std::env::var(name).ok())
}

/// Returns whether the environment variables configure a collector.
fn is_wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, value: &str| variable(name).is_some_and(|set| set.trim().eq_ignore_ascii_case(value));
    let endpoints = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    let named = endpoints.iter().any(|name| variable(name).is_some_and(|set| !set.trim().is_empty()));
    named && !is("OTEL_SDK_DISABLED", "true") && !is("OTEL_TRACES_EXPORTER", "none")
}

impl Sending {
    fn start(program: &'static str) -> Result<Self, Error> {
        // Spans are sent from a separate thread: those of the program may be busy, and have ended when the last spans
        // are sent.
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
