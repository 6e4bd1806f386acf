//! Counters, gauges and histograms, rendered in Prometheus' text exposition format 0.0.4.
//!
//! A metric is looked up once and kept: an update is one atomic operation (two for a histogram), without a lock or an
//! allocation. Locks are taken only to add a series and to render the page.
//!
//! The crate `prometheus-client` is not used because it writes only OpenMetrics, where the family of a counter has no
//! `_total` at the end of its name, unlike its samples. Every scraper and shell script reads format 0.0.4, and it needs
//! little code.

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// `Content-Type` of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A number that only increases. Clones share the value.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Returns whether both share the same value.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Returns the sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that can be set. Clones share the value.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Returns the last value set; 0 before the first.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// Upper bounds of the buckets of [`DurationHistogram`] in seconds: from an answer out of memory to a wait that a user
/// notices.
const SHORT_BUCKET_BOUNDS_SECONDS: [f64; 8] = [0.005, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// Upper bounds of the buckets of [`LongDurationHistogram`] in seconds: from a second to a week.
const LONG_BUCKET_BOUNDS_SECONDS: [f64; 10] =
    [1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0];

/// A histogram of durations from milliseconds to seconds. Clones share the values.
#[derive(Clone, Debug)]
pub struct DurationHistogram(Arc<Buckets>);

impl Default for DurationHistogram {
    fn default() -> Self {
        Self(Arc::new(Buckets::new(&SHORT_BUCKET_BOUNDS_SECONDS)))
    }
}

impl DurationHistogram {
    /// Counts one duration.
    pub fn add(&self, took: Duration) {
        self.0.add(took);
    }
}

/// A histogram of durations from seconds to days. Clones share the values.
#[derive(Clone, Debug)]
pub struct LongDurationHistogram(Arc<Buckets>);

impl Default for LongDurationHistogram {
    fn default() -> Self {
        Self(Arc::new(Buckets::new(&LONG_BUCKET_BOUNDS_SECONDS)))
    }
}

impl LongDurationHistogram {
    /// Counts one duration.
    pub fn add(&self, took: Duration) {
        self.0.add(took);
    }
}

/// The buckets of a histogram.
#[derive(Debug)]
pub struct Buckets {
    bounds: &'static [f64],
    /// Number of durations in each bucket, not cumulative. The last bucket has no upper bound.
    counts: Vec<AtomicU64>,
    micros: AtomicU64,
}

impl Buckets {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = std::iter::repeat_with(AtomicU64::default).take(bounds.len() + 1).collect();
        Self { bounds, counts, micros: AtomicU64::new(0) }
    }

    fn add(&self, took: Duration) {
        let bounds = self.bounds;
        let at = bounds.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(bounds.len());
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Renders the samples of the series `name` with these rendered labels.
    fn render(&self, name: &str, labels: &str) -> String {
        let open = labels.strip_suffix('}').map_or_else(|| "{".to_owned(), |labels| format!("{labels},"));
        let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let (mut page, mut below) = (String::new(), 0);
        for (count, bound) in self.counts.iter().zip(bounds) {
            below += count.load(Ordering::Relaxed);
            page += &format!("{name}_bucket{open}le=\"{bound}\"}} {below}\n");
        }
        let seconds = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        page + &format!("{name}_sum{labels} {seconds}\n{name}_count{labels} {below}\n")
    }
}

/// A type of metric: [`Counter`], [`Gauge`], [`DurationHistogram`] or [`LongDurationHistogram`].
pub trait Metric: sealed::Metric {}
impl Metric for Counter {}
impl Metric for Gauge {}
impl Metric for DurationHistogram {}
impl Metric for LongDurationHistogram {}

mod sealed {
    use super::{Arc, Buckets, Counter, DurationHistogram, Gauge, LongDurationHistogram};

    /// The source of a series' value.
    #[derive(Clone)]
    pub enum SeriesSource {
        Counter(Counter),
        Gauge(Gauge),
        Histogram(Arc<Buckets>),
        Read(Arc<dyn Fn() -> f64 + Send + Sync>),
    }

    pub trait Metric: Clone + Default {
        const TYPE: &'static str;
        fn source(&self) -> SeriesSource;
        fn of(source: &SeriesSource) -> Option<Self>;
    }

    impl Metric for Counter {
        const TYPE: &'static str = "counter";
        fn source(&self) -> SeriesSource {
            SeriesSource::Counter(self.clone())
        }
        fn of(source: &SeriesSource) -> Option<Self> {
            if let SeriesSource::Counter(counter) = source { Some(counter.clone()) } else { None }
        }
    }

    impl Metric for Gauge {
        const TYPE: &'static str = "gauge";
        fn source(&self) -> SeriesSource {
            SeriesSource::Gauge(self.clone())
        }
        fn of(source: &SeriesSource) -> Option<Self> {
            if let SeriesSource::Gauge(gauge) = source { Some(gauge.clone()) } else { None }
        }
    }

    impl Metric for DurationHistogram {
        const TYPE: &'static str = "histogram";
        fn source(&self) -> SeriesSource {
            SeriesSource::Histogram(self.0.clone())
        }
        fn of(source: &SeriesSource) -> Option<Self> {
            if let SeriesSource::Histogram(buckets) = source { Some(Self(buckets.clone())) } else { None }
        }
    }

    impl Metric for LongDurationHistogram {
        const TYPE: &'static str = "histogram";
        fn source(&self) -> SeriesSource {
            SeriesSource::Histogram(self.0.clone())
        }
        fn of(source: &SeriesSource) -> Option<Self> {
            if let SeriesSource::Histogram(buckets) = source { Some(Self(buckets.clone())) } else { None }
        }
    }
}
use sealed::SeriesSource;

/// Series by their rendered labels, such as `{role="cs2"}`, or empty for no labels.
type Series = Arc<Mutex<BTreeMap<String, SeriesSource>>>;

/// Metrics with the same name and different values of `N` labels.
#[derive(Clone)]
pub struct MetricFamily<M, const N: usize> {
    labels: [&'static str; N],
    series: Series,
    metric: PhantomData<M>,
}

impl<M: Metric, const N: usize> MetricFamily<M, N> {
    /// Returns the metric with these label values, the same one for the same values. Look it up once and keep it.
    pub fn with(&self, values: [&str; N]) -> M {
        let mut series = lock(&self.series);
        let source = series.entry(render_labels(self.labels, values)).or_insert_with(|| M::default().source());
        // If `read` has added this series, the returned metric is not shown.
        M::of(source).unwrap_or_default()
    }

    /// Adds a series whose value `read` returns whenever the page is rendered.
    pub fn read(&self, values: [&str; N], read: impl Fn() -> f64 + Send + Sync + 'static) {
        lock(&self.series).insert(render_labels(self.labels, values), SeriesSource::Read(Arc::new(read)));
    }
}

/// All metrics of a process.
#[derive(Default)]
pub struct Registry {
    families: Mutex<Vec<FamilyDescription>>,
}

struct FamilyDescription {
    name: &'static str,
    help: &'static str,
    metric_type: &'static str,
    series: Series,
}

impl Registry {
    /// Creates a registry without metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a family. Must be called once per name. The family appears on the page with its first series.
    pub fn family<M: Metric, const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> MetricFamily<M, N> {
        debug_assert!(is_name(name) && labels.iter().all(|label| is_name(label)));
        let series = Series::default();
        lock(&self.families).push(FamilyDescription { name, help, metric_type: M::TYPE, series: Arc::clone(&series) });
        MetricFamily { labels, series, metric: PhantomData }
    }

    /// Adds a metric without labels. Must be called once per name.
    pub fn metric<M: Metric>(&self, name: &'static str, help: &'static str) -> M {
        self.family::<M, 0>(name, help, []).with([])
    }

    /// Renders the page: families in the order in which they were added, series in the order of their labels.
    pub fn render(&self) -> String {
        let mut page = String::with_capacity(4096);
        for family in lock(&self.families).iter() {
            let series = lock(&family.series).clone();
            if series.is_empty() {
                continue;
            }
            let FamilyDescription { name, help, metric_type, .. } = family;
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            page += &format!("# HELP {name} {help}\n# TYPE {name} {metric_type}\n");
            for (labels, source) in series {
                page += &render_series(name, &labels, &source);
            }
        }
        page
    }
}

/// Locks a map. A panic elsewhere leaves the maps consistent, so poisoned locks are ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn render_labels<const N: usize>(names: [&str; N], values: [&str; N]) -> String {
    let mut labels = String::new();
    for (at, (name, value)) in names.into_iter().zip(values).enumerate() {
        labels.push(if at == 0 { '{' } else { ',' });
        labels += name;
        labels += "=\"";
        for c in value.chars() {
            match c {
                '\\' => labels += "\\\\",
                '"' => labels += "\\\"",
                '\n' => labels += "\\n",
                c => labels.push(c),
            }
        }
        labels.push('"');
    }
    if N > 0 {
        labels.push('}');
    }
    labels
}

fn render_series(name: &str, labels: &str, source: &SeriesSource) -> String {
    let level = match source {
        SeriesSource::Histogram(buckets) => return buckets.render(name, labels),
        SeriesSource::Counter(counter) => return format!("{name}{labels} {}\n", counter.get()),
        SeriesSource::Gauge(gauge) => gauge.get(),
        SeriesSource::Read(read) => read(),
    };
    match level {
        f64::INFINITY => format!("{name}{labels} +Inf\n"),
        f64::NEG_INFINITY => format!("{name}{labels} -Inf\n"),
        level => format!("{name}{labels} {level}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_to_the_letter() {
        let registry = Registry::new();
        let bytes = registry.family::<Counter, 2>("bytes_total", "Bytes\\moved\n.", ["way", "link"]);
        let unused = registry.family::<Gauge, 1>("unused", "Never set.", ["x"]);
        let step: Gauge = registry.metric("step", "Committed steps.");
        let memory = registry.family::<Gauge, 1>("memory_bytes", "Memory.", ["kind"]);
        bytes.with(["up", "b"]).add(u64::MAX);
        bytes.with(["down", "quote \" back \\ line\n é"]).inc();
        bytes.with(["down", "quote \" back \\ line\n é"]).add(2);
        step.set(12.5);
        for (kind, value) in [("a", f64::NAN), ("b", f64::INFINITY), ("c", 1e300), ("d", 0.0)] {
            memory.read([kind], move || value);
        }
        memory.with(["a"]).set(1.0);
        drop(unused);

        let huge = format!("1{}", "0".repeat(300));
        assert_eq!(
            registry.render(),
            format!(
                r#"# HELP bytes_total Bytes\\moved\n.
# TYPE bytes_total counter
bytes_total{{way="down",link="quote \" back \\ line\n é"}} 3
bytes_total{{way="up",link="b"}} 18446744073709551615
# HELP step Committed steps.
# TYPE step gauge
step 12.5
# HELP memory_bytes Memory.
# TYPE memory_bytes gauge
memory_bytes{{kind="a"}} NaN
memory_bytes{{kind="b"}} +Inf
memory_bytes{{kind="c"}} {huge}
memory_bytes{{kind="d"}} 0
"#
            )
        );
    }

    #[test]
    fn a_histogram_to_the_letter() {
        let registry = Registry::new();
        let bare: DurationHistogram = registry.metric("visit_seconds", "Visits.");
        let took = registry.family::<DurationHistogram, 1>("request_seconds", "Requests.", ["code"]);
        for millis in [5, 6, 250, 31_000] {
            took.with(["200"]).add(Duration::from_millis(millis));
        }
        let long: LongDurationHistogram = registry.metric("wait_seconds", "Waits.");
        bare.add(Duration::from_micros(1));
        long.add(Duration::from_secs(7200));
        let page = registry.render();
        let (page, waits) = page.split_at(page.find("# HELP wait_seconds").unwrap());
        assert!(waits.contains("wait_seconds_bucket{le=\"3600\"} 0\nwait_seconds_bucket{le=\"14400\"} 1\n"), "{waits}");
        let (visits, requests) = page.split_at(page.find("# HELP request_seconds").unwrap());
        assert!(
            visits.contains("visit_seconds_bucket{le=\"0.005\"} 1\n") && visits.contains("visit_seconds_count 1\n")
        );
        assert_eq!(
            requests,
            r#"# HELP request_seconds Requests.
# TYPE request_seconds histogram
request_seconds_bucket{code="200",le="0.005"} 1
request_seconds_bucket{code="200",le="0.02"} 2
request_seconds_bucket{code="200",le="0.05"} 2
request_seconds_bucket{code="200",le="0.1"} 2
request_seconds_bucket{code="200",le="0.25"} 3
request_seconds_bucket{code="200",le="1"} 3
request_seconds_bucket{code="200",le="5"} 3
request_seconds_bucket{code="200",le="30"} 3
request_seconds_bucket{code="200",le="+Inf"} 4
request_seconds_sum{code="200"} 31.261
request_seconds_count{code="200"} 4
"#
        );
    }

    #[test]
    fn updates_from_many_threads_all_count() {
        let registry = Registry::new();
        let family = registry.family::<Counter, 1>("steps_total", "Steps.", ["role"]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let counter = family.with(["cs2"]);
                    (0..5000).for_each(|_| counter.inc());
                });
            }
        });
        assert_eq!(family.with(["cs2"]).get(), 20_000);
    }
}
