//! Serves `/metrics`, `/healthz` and `/readyz`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use millrace_control::metrics::Metrics;
use millrace_control::watchdog::Watchdog;
use millrace_telemetry::prometheus::CONTENT_TYPE;
use tokio::net::TcpListener;

/// Serves in a task until the process ends. `/readyz` is 200 once the operator has read the cluster's state, as leader
/// or candidate. `/healthz` is 503 with a sentence while the loops of a leader are stuck, and 200 otherwise.
///
/// # Errors
/// The address is in use or invalid.
pub async fn serve(
    address: &str,
    metrics: Arc<Metrics>,
    watchdog: Arc<Watchdog>,
    ready: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let readyz = move || async move {
        if ready.load(Ordering::Relaxed) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    };
    let healthz = move || async move {
        match watchdog.stuck() {
            None => (StatusCode::OK, String::new()),
            Some(stuck) => {
                tracing::error!("this operator is stuck: {stuck}");
                (StatusCode::SERVICE_UNAVAILABLE, stuck + "\n")
            }
        }
    };
    let text = [(header::CONTENT_TYPE, CONTENT_TYPE)];
    let router = Router::new()
        .route("/metrics", get(move || async move { (text, metrics.render()) }))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!("metrics and probes are no longer served: {error}");
        }
    });
    Ok(())
}
