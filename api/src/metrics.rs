//! Metrics of the server for Prometheus. No label names a job or a user, because their number is unbounded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millrace_control::metrics::certificates_page;
use millrace_store::{ConnectionCounts, Store};
use millrace_telemetry::metric_definitions::register_process;
use millrace_telemetry::prometheus::{
    Counter, DurationHistogram, Gauge, LongDurationHistogram, MetricFamily, Registry,
};

use crate::tls;

/// Time for the database to return its size. Prometheus itself waits for 10 s by default.
const DATABASE_SIZE_TIMEOUT: Duration = Duration::from_secs(3);
/// Label value of the server's HTTPS certificate in the metric of certificates.
const HTTPS_CERTIFICATE: &str = "https";

/// Metrics of requests and of the server.
pub struct ServerMetrics {
    registry: Registry,
    took: MetricFamily<DurationHistogram, 3>,
    streams: Arc<AtomicUsize>,
    certificate: Option<PathBuf>,
}

impl ServerMetrics {
    /// Creates the metrics, all zero. `certificate` is the file of the server's certificate.
    pub fn new(certificate: Option<PathBuf>) -> Self {
        let registry = Registry::new();
        let took = registry.family(
            "millrace_api_request_duration_seconds",
            "Time from a request to the first byte of its response.",
            ["method", "route", "code"],
        );
        let streams = Arc::new(AtomicUsize::new(0));
        let open = streams.clone();
        registry
            .computed_gauges("millrace_api_live_streams", "Live streams that are open.", [])
            .add([], move || open.load(Ordering::Relaxed) as f64);
        register_process(&registry);
        Self { registry, took, streams, certificate }
    }

    /// Records a request: its method, its route as in the table of routes, the status, and the time until the response.
    pub fn record_request(&self, method: &str, route: &str, code: &str, after: Duration) {
        self.took.with([method, route, code]).add(after);
    }

    /// Counts a live stream until the returned guard is dropped.
    pub fn count_stream(&self) -> GaugeGuard {
        GaugeGuard::new(self.streams.clone())
    }

    /// Renders all metrics in the text format.
    pub async fn render(&self, store: &Store) -> String {
        let mut page = self.registry.render();
        if let Some(file) = &self.certificate
            && let Some(expires) = tls::expiry(file).await
        {
            page += &certificates_page(&BTreeMap::from([(HTTPS_CERTIFICATE.to_owned(), expires)]));
        }
        page + &store_page(store).await + &JOURNAL_METRICS.render()
    }
}

/// A guard that counts one in a gauge until it is dropped.
pub struct GaugeGuard(Arc<AtomicUsize>);

impl GaugeGuard {
    fn new(of: Arc<AtomicUsize>) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(of)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Renders the metrics of the database.
async fn store_page(store: &Store) -> String {
    let registry = Registry::new();
    let ConnectionCounts { busy, idle } = store.connections();
    let connections =
        registry.family::<Gauge, 1>("millrace_store_connections", "Open connections to the database.", ["state"]);
    connections.with(["busy"]).set(f64::from(busy));
    connections.with(["idle"]).set(f64::from(idle));
    let failures =
        registry.family::<Counter, 1>("millrace_store_failures_total", "Failed database calls, by kind.", ["kind"]);
    for (kind, count) in millrace_store::failures() {
        failures.with([kind]).add(count);
    }
    let size = tokio::time::timeout(DATABASE_SIZE_TIMEOUT, store.size_bytes()).await;
    if let Ok(Ok(bytes)) = size {
        registry.metric::<Gauge>("millrace_store_bytes", "Size of the database.").set(bytes as f64);
    }
    registry.render()
}

/// Metrics of the copying of journals. They are static because the code that copies has no reference to the server's
/// metrics.
pub static JOURNAL_METRICS: std::sync::LazyLock<JournalMetrics> = std::sync::LazyLock::new(JournalMetrics::new);

/// The type of [`JOURNAL_METRICS`].
pub struct JournalMetrics {
    registry: Registry,
    lag: LongDurationHistogram,
    followed: Arc<AtomicUsize>,
}

impl JournalMetrics {
    fn new() -> Self {
        let registry = Registry::new();
        let lag = registry.metric(
            "millrace_api_journal_lag_seconds",
            "Time from writing a journal entry by a coordinator until it is in the database.",
        );
        let followed = Arc::new(AtomicUsize::new(0));
        let now = followed.clone();
        registry
            .computed_gauges("millrace_api_journals_followed", "Coordinators whose journals are being copied.", [])
            .add([], move || now.load(Ordering::Relaxed) as f64);
        Self { registry, lag, followed }
    }

    /// Counts a journal that is being copied until the returned guard is dropped.
    pub fn count_followed(&self) -> GaugeGuard {
        GaugeGuard::new(self.followed.clone())
    }

    /// Records the time between writing an entry at its coordinator and writing it here.
    pub fn record_lag(&self, lag: Duration) {
        self.lag.add(lag);
    }

    fn render(&self) -> String {
        self.registry.render()
    }
}

/// State of the Kubernetes backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterMetrics {
    pub trainjobs: usize,
    /// Number of jobs whose journals are copied or archived.
    pub archivers: usize,
    /// Number of jobs with an open reader.
    pub readers: usize,
}

impl ClusterMetrics {
    /// Renders the metrics in the text format.
    pub fn render(&self) -> String {
        let registry = Registry::new();
        let gauge = |name, help, value: usize| registry.metric::<Gauge>(name, help).set(value as f64);
        gauge("millrace_api_trainjobs", "Number of TrainJobs.", self.trainjobs);
        gauge("millrace_api_archivers", "Jobs whose journal is being followed or archived.", self.archivers);
        gauge("millrace_api_file_readers", "Jobs with an open file reader.", self.readers);
        registry.render()
    }
}
