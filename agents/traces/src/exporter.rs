//! Sends batches of spans over gRPC; logs the first of several consecutive failures only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{SpanExporter as Otlp, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::Handle;

use crate::Error;

/// Returns the TLS configuration for an `https` endpoint; `None` for other endpoints. The collector's certificate must
/// be issued by the authority in the file that `OTEL_EXPORTER_OTLP_CERTIFICATE`, or its variant for traces, names. If
/// neither is set, it must be issued by an authority that the system trusts.
fn tls(variable: impl Fn(&str) -> Option<String>) -> Result<Option<ClientTlsConfig>, Error> {
    let of_traces = |name: &str| {
        let (traces, any) = (format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), format!("OTEL_EXPORTER_OTLP_{name}"));
        [traces, any].into_iter().find_map(|name| variable(&name).filter(|value| !value.trim().is_empty()))
    };
    let is_https = of_traces("ENDPOINT").is_some_and(|endpoint| endpoint.trim().starts_with("https://"));
    if !is_https {
        return Ok(None);
    }
    let Some(path) = of_traces("CERTIFICATE") else { return Ok(Some(ClientTlsConfig::new().with_native_roots())) };
    let authority = std::fs::read(&path).map_err(|source| Error::Certificate { path: path.into(), source })?;
    Ok(Some(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority))))
}

/// Sends batches of spans to a collector.
#[derive(Debug)]
pub struct Exporter {
    inner: Arc<Otlp>,
    /// Runtime of the thread that sends. Batches are passed in by a thread of the batch processor, not one of the
    /// runtime's.
    runtime: Handle,
    failing: AtomicBool,
}

impl Exporter {
    /// Creates an exporter configured by the environment. Must be called within `runtime`.
    ///
    /// # Errors
    /// The value of the endpoint or of another variable can't be used.
    pub fn new(runtime: Handle) -> Result<Self, Error> {
        let builder = Otlp::builder().with_tonic();
        let inner = match tls(|name| std::env::var(name).ok())? {
            Some(tls) => builder.with_tls_config(tls).build()?,
            None => builder.build()?,
        };
        Ok(Self { inner: Arc::new(inner), runtime, failing: AtomicBool::new(false) })
    }

    /// Logs a failure that follows a success, and a success that follows a failure.
    fn log_transition(&self, result: &OTelSdkResult) {
        match result {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("trace export recovered");
                }
            }
            Err(error) => {
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!("can't export traces; dropping them until the collector is reachable: {error}");
                }
            }
        }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let inner = self.inner.clone();
        let sent = self.runtime.spawn(async move { inner.export(batch).await }).await;
        let result = sent.unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())));
        self.log_transition(&result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        // Before the first batch there is no other reference.
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.set_resource(resource);
        }
    }
}
