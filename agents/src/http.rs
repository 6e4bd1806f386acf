//! `/metrics`, `/healthz` and `/readyz` of a role.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use millrace_telemetry::metric_definitions::RoleMetrics;
use millrace_telemetry::prometheus::CONTENT_TYPE;
use tokio::net::TcpListener;

use crate::failure::Failure;
use crate::launch::announce_ready;

/// Whether the role is ready. A coordinator is once agents may join it, and every other role while it has joined its
/// job and all its links are up.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    ready: Arc<AtomicBool>,
    /// Whether standard output is told of every change: whoever started this process reads it.
    announced: bool,
}

impl Readiness {
    /// Not ready yet; changes are told on standard output.
    pub fn announced() -> Self {
        Self { announced: true, ..Self::default() }
    }

    /// Sets it.
    pub fn set(&self, ready: bool) {
        if self.ready.swap(ready, Ordering::Relaxed) != ready && self.announced {
            announce_ready(ready);
        }
    }

    fn get(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

/// Serves on `address` for as long as the process lives; returns where it listens.
///
/// # Errors
/// The port is taken.
pub async fn serve(address: &str, metrics: RoleMetrics, ready: Readiness) -> Result<String, Failure> {
    let listener = listen(address).await?;
    let bound = listener.local_addr().map_err(Failure::own)?.to_string();
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
/// In one sentence with a hint when the port is taken.
pub async fn listen(address: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::own(format!("can't listen on {address}: {error}"))
            .hint("choose another port, or end the process that uses this one")
    })
}
