//! Counters, gauges and histograms of a process, rendered in Prometheus' text format 0.0.4.
//!
//! The crate `prometheus` keeps and renders the values. The types here let the compiler check the number of labels,
//! give all programs the same buckets for durations, and add values that are computed when the page is rendered.
//!
//! ```
//! use millrace_telemetry::prometheus::{Counter, Registry};
//!
//! let registry = Registry::new();
//! let bytes = registry.family::<Counter, 1>("bytes_total", "Bytes sent.", ["link"]);
//! let link = bytes.with(["swarmx-0"]); // look a metric up once and keep it
//! link.add(4096);
//! assert!(registry.render().ends_with("bytes_total{link=\"swarmx-0\"} 4096\n"));
//! ```
//!
//! An update of a counter or gauge is one atomic operation, one of a histogram is a few, all without a lock or an
//! allocation.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, TextEncoder, proto};

/// `Content-Type` of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the buckets of [`DurationHistogram`] in seconds: from an answer out of memory to a wait that a user
/// notices.
const SHORT_BUCKET_BOUNDS_SECONDS: [f64; 8] = [0.005, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// Upper bounds of the buckets of [`LongDurationHistogram`] in seconds: from a second to a week.
const LONG_BUCKET_BOUNDS_SECONDS: [f64; 10] =
    [1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0];

/// A number that only increases. Clones share the value.
#[derive(Clone, Debug)]
pub struct Counter(prometheus::IntCounter);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, amount: u64) {
        self.0.inc_by(amount);
    }

    /// Returns the sum so far.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// A number that can be set. Clones share the value.
#[derive(Clone, Debug)]
pub struct Gauge(prometheus::Gauge);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.set(value);
    }

    /// Returns the last value set; 0 before the first.
    pub fn get(&self) -> f64 {
        self.0.get()
    }
}

/// A histogram of durations from milliseconds to seconds. Clones share the values.
#[derive(Clone, Debug)]
pub struct DurationHistogram(prometheus::Histogram);

impl DurationHistogram {
    /// Counts one duration.
    pub fn add(&self, took: Duration) {
        self.0.observe(took.as_secs_f64());
    }
}

/// A histogram of durations from seconds to days. Clones share the values.
#[derive(Clone, Debug)]
pub struct LongDurationHistogram(prometheus::Histogram);

impl LongDurationHistogram {
    /// Counts one duration.
    pub fn add(&self, took: Duration) {
        self.0.observe(took.as_secs_f64());
    }
}

/// A type of metric: [`Counter`], [`Gauge`], [`DurationHistogram`] or [`LongDurationHistogram`].
pub trait Metric: Sized {
    /// A family of such metrics.
    type Vector: Collector + Clone + 'static;

    /// Creates a family.
    ///
    /// # Errors
    /// A name is invalid.
    fn vector(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self::Vector>;

    /// Returns the metric of the family with these label values, as many as the family has labels.
    fn with(vector: &Self::Vector, values: &[&str]) -> Self;
}

impl Metric for Counter {
    type Vector = IntCounterVec;

    fn vector(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self::Vector> {
        IntCounterVec::new(Opts::new(name, help), labels)
    }

    fn with(vector: &Self::Vector, values: &[&str]) -> Self {
        Self(vector.with_label_values(values))
    }
}

impl Metric for Gauge {
    type Vector = GaugeVec;

    fn vector(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self::Vector> {
        GaugeVec::new(Opts::new(name, help), labels)
    }

    fn with(vector: &Self::Vector, values: &[&str]) -> Self {
        Self(vector.with_label_values(values))
    }
}

impl Metric for DurationHistogram {
    type Vector = HistogramVec;

    fn vector(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self::Vector> {
        HistogramVec::new(HistogramOpts::new(name, help).buckets(SHORT_BUCKET_BOUNDS_SECONDS.into()), labels)
    }

    fn with(vector: &Self::Vector, values: &[&str]) -> Self {
        Self(vector.with_label_values(values))
    }
}

impl Metric for LongDurationHistogram {
    type Vector = HistogramVec;

    fn vector(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self::Vector> {
        HistogramVec::new(HistogramOpts::new(name, help).buckets(LONG_BUCKET_BOUNDS_SECONDS.into()), labels)
    }

    fn with(vector: &Self::Vector, values: &[&str]) -> Self {
        Self(vector.with_label_values(values))
    }
}

/// Metrics with the same name and different values of `N` labels.
#[derive(Clone)]
pub struct MetricFamily<M: Metric, const N: usize>(M::Vector);

impl<M: Metric, const N: usize> MetricFamily<M, N> {
    /// Returns the metric with these label values, the same one for the same values. Look it up once and keep it.
    pub fn with(&self, values: [&str; N]) -> M {
        M::with(&self.0, &values)
    }
}

/// Metrics with the same name and different values of `N` labels, which are computed when the page is rendered.
#[derive(Clone)]
pub struct ComputedFamily<const N: usize>(Arc<Computed<N>>);

type ComputeValue = Box<dyn Fn() -> f64 + Send + Sync>;

struct Computed<const N: usize> {
    description: Desc,
    kind: proto::MetricType,
    labels: [&'static str; N],
    series: Mutex<BTreeMap<[String; N], ComputeValue>>,
}

impl<const N: usize> ComputedFamily<N> {
    /// Adds the metric with these label values, whose value `compute` returns.
    pub fn add(&self, values: [&str; N], compute: impl Fn() -> f64 + Send + Sync + 'static) {
        lock(&self.0.series).insert(values.map(str::to_owned), Box::new(compute));
    }
}

impl<const N: usize> Collector for ComputedFamily<N> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.description]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let Computed { description, kind, labels, series } = &*self.0;
        let series = lock(series);
        let metrics = series.iter().map(|(values, compute)| {
            let mut metric = proto::Metric::from_label(label_pairs(labels, values));
            match kind {
                proto::MetricType::COUNTER => {
                    let mut counter = proto::Counter::default();
                    counter.set_value(compute());
                    metric.set_counter(counter);
                }
                _ => {
                    let mut gauge = proto::Gauge::default();
                    gauge.set_value(compute());
                    metric.set_gauge(gauge);
                }
            }
            metric
        });
        let mut family = proto::MetricFamily::default();
        family.set_name(description.fq_name.clone());
        family.set_help(description.help.clone());
        family.set_field_type(*kind);
        family.set_metric(metrics.collect());
        vec![family]
    }
}

fn label_pairs<const N: usize>(labels: &[&str; N], values: &[String; N]) -> Vec<proto::LabelPair> {
    let pair = |(name, value): (&&str, &String)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value(value.clone());
        pair
    };
    labels.iter().zip(values).map(pair).collect()
}

/// All metrics of a process.
#[derive(Default)]
pub struct Registry(prometheus::Registry);

impl Registry {
    /// Creates a registry without metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a family. The family appears on the page with its first metric.
    ///
    /// # Panics
    /// A name is invalid, or a family of this name was added before.
    pub fn family<M: Metric, const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> MetricFamily<M, N> {
        let vector = constant(name, M::vector(name, help, &labels));
        self.register(name, vector.clone());
        MetricFamily(vector)
    }

    /// Adds a metric without labels.
    ///
    /// # Panics
    /// Like [`Registry::family`].
    pub fn metric<M: Metric>(&self, name: &'static str, help: &'static str) -> M {
        self.family::<M, 0>(name, help, []).with([])
    }

    /// Adds a family of gauges that are computed.
    ///
    /// # Panics
    /// Like [`Registry::family`].
    pub fn computed_gauges<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> ComputedFamily<N> {
        self.computed(proto::MetricType::GAUGE, name, help, labels)
    }

    /// Adds a family of counters that are computed.
    ///
    /// # Panics
    /// Like [`Registry::family`].
    pub fn computed_counters<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> ComputedFamily<N> {
        self.computed(proto::MetricType::COUNTER, name, help, labels)
    }

    fn computed<const N: usize>(
        &self,
        kind: proto::MetricType,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> ComputedFamily<N> {
        let names = labels.map(str::to_owned).to_vec();
        let description = constant(name, Desc::new(name.to_owned(), help.to_owned(), names, HashMap::new()));
        let family = ComputedFamily(Arc::new(Computed { description, kind, labels, series: Mutex::default() }));
        self.register(name, family.clone());
        family
    }

    fn register(&self, name: &'static str, collector: impl Collector + 'static) {
        constant(name, self.0.register(Box::new(collector)));
    }

    /// Renders the page: families in the order of their names, metrics in the order of their label values.
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.0.gather()).unwrap_or_else(|error| {
            tracing::error!("metrics can't be rendered: {error}");
            String::new()
        })
    }
}

/// Unwraps the result of using a name that is a constant of the program.
#[allow(clippy::panic, reason = "every program's metrics are created by a test")]
fn constant<T>(name: &'static str, result: prometheus::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("metric {name}: {error}"))
}

/// Locks a map. A panic elsewhere leaves the maps consistent, so poisoned locks are ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_families_by_name_and_computed_values() {
        let registry = Registry::new();
        let bytes = registry.family::<Counter, 2>("bytes_total", "Bytes\\moved\n.", ["way", "link"]);
        let _unused = registry.family::<Gauge, 1>("unused", "Never set.", ["x"]);
        let step: Gauge = registry.metric("step", "Committed steps.");
        let memory = registry.computed_gauges("memory_bytes", "Memory.", ["kind"]);
        bytes.with(["up", "b"]).add(1 << 53);
        bytes.with(["down", "quote \" back \\ line\n é"]).inc();
        bytes.with(["down", "quote \" back \\ line\n é"]).add(2);
        step.set(12.5);
        for (kind, value) in [("a", f64::NAN), ("b", f64::INFINITY), ("c", 0.0)] {
            memory.add([kind], move || value);
        }
        registry.computed_counters("cpu_seconds_total", "CPU time.", []).add([], || 0.25);
        let expected = r#"# HELP bytes_total Bytes\\moved\n.
# TYPE bytes_total counter
bytes_total{link="b",way="up"} 9007199254740992
bytes_total{link="quote \" back \\ line\n é",way="down"} 3
# HELP cpu_seconds_total CPU time.
# TYPE cpu_seconds_total counter
cpu_seconds_total 0.25
# HELP memory_bytes Memory.
# TYPE memory_bytes gauge
memory_bytes{kind="a"} NaN
memory_bytes{kind="b"} inf
memory_bytes{kind="c"} 0
# HELP step Committed steps.
# TYPE step gauge
step 12.5
"#;
        assert_eq!(registry.render(), expected);
    }

    #[test]
    fn histograms_have_buckets_for_short_and_for_long_durations() {
        let registry = Registry::new();
        let short = registry.family::<DurationHistogram, 1>("request_seconds", "Requests.", ["code"]);
        for millis in [5, 6, 250, 31_000] {
            short.with(["200"]).add(Duration::from_millis(millis));
        }
        let long: LongDurationHistogram = registry.metric("wait_seconds", "Waits.");
        long.add(Duration::from_secs(7200));
        let page = registry.render();
        for sample in [
            "request_seconds_bucket{code=\"200\",le=\"0.005\"} 1\n",
            "request_seconds_bucket{code=\"200\",le=\"0.25\"} 3\n",
            "request_seconds_bucket{code=\"200\",le=\"+Inf\"} 4\n",
            "request_seconds_count{code=\"200\"} 4\n",
            "wait_seconds_bucket{le=\"3600\"} 0\nwait_seconds_bucket{le=\"14400\"} 1\n",
            "wait_seconds_sum 7200\n",
        ] {
            assert!(page.contains(sample), "{sample} is not in {page}");
        }
    }

    #[test]
    #[should_panic(expected = "metric step")]
    fn name_can_be_used_once() {
        let registry = Registry::new();
        let _: Gauge = registry.metric("step", "Committed steps.");
        let _: Counter = registry.metric("step", "Committed steps.");
    }
}
