//! Counters and histograms of the operator, for Prometheus. No label names a job, because the number of jobs has no
//! bound. Metrics that controllers have in common are named as in controller-runtime and client-go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, Weak};
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use millrace_crds::{ConditionType, FailureStatus, JobState, TrainJob, TrainJobStatus};
use millrace_telemetry::metric_definitions::register_process;
use millrace_telemetry::prometheus::{
    Counter, DurationHistogram, Gauge, LongDurationHistogram, MetricFamily, Registry,
};

use crate::lock::lock;
use crate::metrics_snapshot::wait_duration;

/// Reasons of restarts with a series of their own. Most are reasons of Kubernetes, whose number has no bound.
const MAX_REASON_LABELS: usize = 32;
/// The reason of all further restarts.
const OTHER_REASON: &str = "other";

/// Names of the controllers in labels: the one of jobs, and the one of appliances, which maintains their ledgers.
pub const CONTROLLERS: [&str; 2] = ["trainjob", "appliance"];

/// A source of gauges that are computed when `/metrics` is scraped.
pub trait SnapshotSource: Send + Sync {
    /// Renders its gauges as Prometheus text.
    fn render(&self) -> String;
}

/// The metrics of one process; see the module documentation.
pub struct Metrics {
    registry: Registry,
    trainjob: ControllerMetrics,
    appliance: ControllerMetrics,
    conflicts: Counter,
    queue_wait: LongDurationHistogram,
    admission: LongDurationHistogram,
    restarts: MetricFamily<Counter, 1>,
    restart_reasons: Mutex<BTreeSet<String>>,
    certificates: Mutex<BTreeMap<String, SystemTime>>,
    leads: Gauge,
    ledgers: Mutex<BTreeMap<String, f64>>,
    live: Mutex<Option<Weak<dyn SnapshotSource>>>,
}

struct ControllerMetrics {
    successes: Counter,
    errors: Counter,
    duration: DurationHistogram,
    queued: DurationHistogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let [trainjob, appliance] = controllers(&registry);
        let leads = registry.family::<Gauge, 1>(
            "leader_election_master_status",
            "Whether this operator is the leader: 1 or 0.",
            ["name"],
        );
        Self {
            trainjob,
            appliance,
            conflicts: registry.metric(
                "millrace_ledger_conflicts_total",
                "Updates of a ledger that were retried after a write conflict on the Appliance.",
            ),
            queue_wait: registry
                .metric("millrace_queue_wait_seconds", "Time that jobs waited for systems until they got them."),
            admission: registry.metric(
                "millrace_admission_duration_seconds",
                "Time from granting a job systems until its status lists them.",
            ),
            restarts: registry.family(
                "millrace_job_restarts_total",
                "Failed attempts that are retried, by the reason of the first agent that failed.",
                ["reason"],
            ),
            restart_reasons: Mutex::default(),
            certificates: Mutex::default(),
            leads: leads.with(["millrace-operator"]),
            ledgers: Mutex::default(),
            live: Mutex::default(),
            registry,
        }
    }
}

fn controllers(registry: &Registry) -> [ControllerMetrics; 2] {
    let visits = registry.family::<Counter, 2>(
        "controller_runtime_reconcile_total",
        "Reconciles of jobs, and updates of ledgers.",
        ["controller", "result"],
    );
    let duration = registry.family::<DurationHistogram, 1>(
        "controller_runtime_reconcile_time_seconds",
        "Duration of reconciles.",
        ["controller"],
    );
    let queued = registry.family::<DurationHistogram, 1>(
        "workqueue_queue_duration_seconds",
        "Time that objects wait for their reconcile.",
        ["name"],
    );
    CONTROLLERS.map(|name| ControllerMetrics {
        successes: visits.with([name, "success"]),
        errors: visits.with([name, "error"]),
        duration: duration.with([name]),
        queued: queued.with([name]),
    })
}

impl ControllerMetrics {
    fn record(&self, duration: Duration, succeeded: bool) {
        self.duration.add(duration);
        if succeeded { self.successes.inc() } else { self.errors.inc() }
    }
}

impl Metrics {
    /// Adds the resource usage of this process, for a program that shows it nowhere else.
    pub fn with_process(self) -> Self {
        register_process(&self.registry);
        self
    }

    /// Adds `live` to the page until it is dropped.
    pub fn set_snapshot_source(&self, live: Weak<dyn SnapshotSource>) {
        *lock(&self.live) = Some(live);
    }

    /// Records the duration of a reconcile of a job, and whether it succeeded.
    pub fn record_reconcile(&self, duration: Duration, succeeded: bool) {
        self.trainjob.record(duration, succeeded);
    }

    /// Records the duration of a reconcile of an appliance, and whether it succeeded.
    pub fn record_appliance_reconcile(&self, duration: Duration, succeeded: bool) {
        self.appliance.record(duration, succeeded);
    }

    /// Records that the ledger of `appliance` is up to date now.
    pub fn record_ledger_update(&self, appliance: &str) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        lock(&self.ledgers).insert(appliance.to_owned(), now.as_secs_f64());
    }

    /// Removes the times of appliances that no longer exist.
    pub(crate) fn retain_ledgers(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.ledgers).retain(|name, _| exists(name));
    }

    /// Returns the times of the last ledger updates by appliance, in seconds since 1970.
    pub(crate) fn ledgers(&self) -> BTreeMap<String, f64> {
        lock(&self.ledgers).clone()
    }

    /// Counts a write conflict of a ledger.
    pub fn ledger_conflict(&self) {
        self.conflicts.inc();
    }

    /// Returns the histograms of queue times of the controllers, in the order of [`CONTROLLERS`].
    pub(crate) fn queued(&self) -> [DurationHistogram; 2] {
        [self.trainjob.queued.clone(), self.appliance.queued.clone()]
    }

    /// Updates the metrics for a recorded status of `job`; `granted` is the time at which its systems were granted.
    pub(crate) fn record_status_change(
        &self,
        job: &TrainJob,
        new: &TrainJobStatus,
        granted: Option<Timestamp>,
        now: Timestamp,
    ) {
        let old = job.status.clone().unwrap_or_default();
        if new.is(ConditionType::Admitted) && !old.is(ConditionType::Admitted) {
            self.queue_wait.add(wait_duration(job, now));
            if let Some(granted) = granted {
                self.admission.add(now.duration_since(granted).try_into().unwrap_or_default());
            }
        }
        if new.state() == Some(JobState::Restarting) && old.state() != Some(JobState::Restarting) {
            self.record_restart(new.failure.as_ref());
        }
    }

    fn record_restart(&self, failure: Option<&FailureStatus>) {
        let reason = failure.and_then(|failure| failure.reason.as_deref()).unwrap_or(OTHER_REASON);
        let mut reasons = lock(&self.restart_reasons);
        let is_listed =
            reasons.contains(reason) || reasons.len() < MAX_REASON_LABELS && reasons.insert(reason.to_owned());
        self.restarts.with([if is_listed { reason } else { OTHER_REASON }]).inc();
    }

    /// Sets the expiry of the certificate `name`.
    pub fn set_certificate(&self, name: &str, expires: SystemTime) {
        lock(&self.certificates).insert(name.to_owned(), expires);
    }

    /// Sets whether this operator leads. If it does not, jobs, appliances and certificates are removed from the page:
    /// the leader shows them.
    pub fn set_leader(&self, leads: bool) {
        self.leads.set(f64::from(u8::from(leads)));
        if !leads {
            *lock(&self.live) = None;
            lock(&self.ledgers).clear();
            lock(&self.certificates).clear();
        }
    }

    /// Renders all metrics as Prometheus text.
    pub fn render(&self) -> String {
        let live = lock(&self.live).as_ref().and_then(Weak::upgrade);
        let live = live.map(|live| live.render());
        self.registry.render() + &certificates_page(&lock(&self.certificates)) + &live.unwrap_or_default()
    }
}

/// Renders the remaining validity of each certificate, by name, as Prometheus text.
pub fn certificates_page(expiries: &BTreeMap<String, SystemTime>) -> String {
    let registry = Registry::new();
    let expiry_seconds = registry.family::<Gauge, 1>(
        "millrace_certificate_expiry_seconds",
        "Seconds until a certificate expires; negative once it has.",
        ["certificate"],
    );
    for (name, expires) in expiries {
        expiry_seconds.with([name]).set(seconds_until(*expires));
    }
    registry.render()
}

/// Returns the seconds from now until `time`; negative if it has passed.
fn seconds_until(time: SystemTime) -> f64 {
    match time.duration_since(SystemTime::now()) {
        Ok(remaining) => remaining.as_secs_f64(),
        Err(passed) => -passed.duration().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_restarts_have_a_bound() {
        let metrics = Metrics::default();
        for index in 0..MAX_REASON_LABELS + 10 {
            let failure = FailureStatus { reason: Some(format!("Reason{index}")), ..FailureStatus::default() };
            metrics.record_restart(Some(&failure));
            metrics.record_restart(Some(&failure));
        }
        metrics.record_restart(None);
        let page = metrics.render();
        assert!(page.contains("millrace_job_restarts_total{reason=\"Reason31\"} 2\n"), "{page}");
        assert!(page.contains("millrace_job_restarts_total{reason=\"other\"} 21\n"), "{page}");
        assert_eq!(page.matches("millrace_job_restarts_total{").count(), MAX_REASON_LABELS + 1);
    }

    #[test]
    fn certificate_expiry_is_exported() {
        let metrics = Metrics::default();
        metrics.set_certificate("authority", SystemTime::now() - Duration::from_secs(7));
        metrics.set_certificate("authority", SystemTime::now() + Duration::from_secs(1000));
        let page = metrics.render();
        let line = page.lines().find(|line| line.starts_with("millrace_certificate_expiry_seconds{")).unwrap();
        let remaining: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        assert!((990.0..=1000.0).contains(&remaining), "{line}");
    }
}
