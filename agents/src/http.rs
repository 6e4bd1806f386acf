//! Serves `/metrics`, `/healthz` and `/readyz` of a role.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use millrace_telemetry::metric_definitions::RoleMetrics;
use millrace_telemetry::prometheus::CONTENT_TYPE;
use tokio::net::TcpListener;

use crate::error::AgentError;
use crate::launch::announce_ready;

/// Whether the role is ready. A coordinator is ready once agents may join it. Every other role is ready while it has
/// joined its job and all its links are established.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    ready: Arc<AtomicBool>,
    /// Whether every change is printed to standard output, which the launcher reads.
    announced: bool,
}

impl Readiness {
    /// Creates a state that is not ready and prints changes to standard output.
    pub fn announce_on_stdout() -> Self {
        Self { announced: true, ..Self::default() }
    }

    pub fn set(&self, ready: bool) {
        if self.ready.swap(ready, Ordering::Relaxed) != ready && self.announced {
            announce_ready(ready);
        }
    }

    fn get(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

/// Serves on `address` while the process lives; returns the address of the listener.
///
/// # Errors
/// See [`listen`].
pub async fn serve(address: &str, metrics: RoleMetrics, ready: Readiness) -> Result<String, AgentError> {
    let listener = listen(address).await?;
    let bound = listener.local_addr().map_err(AgentError::local)?.to_string();
    let readyz = move || async move { if ready.get() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE } };
    let router = Router::new()
        .route("/metrics", get(move || async move { ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.render()) }))
        .route("/healthz", get(|| async { StatusCode::OK }))
        .route("/readyz", get(readyz));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::warn!("metrics are no longer served: {error}");
        }
    });
    Ok(bound)
}

/// Listens on `address`.
///
/// # Errors
/// The port is in use or the address is invalid; the failure has a hint.
pub async fn listen(address: &str) -> Result<TcpListener, AgentError> {
    TcpListener::bind(address).await.map_err(|error| {
        AgentError::local(error)
            .context(format!("can't listen on {address}"))
            .hint("choose another port, or stop the process that uses this one")
    })
}
