//! What the operator counts, for Prometheus. No label names a job: their number has no bound.

use std::time::Duration;

use millrace_telemetry::prometheus::{Counter, Durations, Gauge, Registry};

/// See the module text. The names are those that controllers have in common.
pub struct Metrics {
    registry: Registry,
    good: Counter,
    bad: Counter,
    took: Durations,
    leads: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let visits = registry.family::<Counter, 2>(
            "controller_runtime_reconcile_total",
            "Visits to jobs.",
            ["controller", "result"],
        );
        let took = registry.family::<Durations, 1>(
            "controller_runtime_reconcile_time_seconds",
            "How long visits take.",
            ["controller"],
        );
        let leads =
            registry.family::<Gauge, 1>("leader_election_master_status", "Whether this operator leads.", ["name"]);
        Self {
            good: visits.with(["trainjob", "success"]),
            bad: visits.with(["trainjob", "error"]),
            took: took.with(["trainjob"]),
            leads: leads.with(["millrace-operator"]),
            registry,
        }
    }
}

impl Metrics {
    /// A visit took so long, and ended well or not.
    pub fn visited(&self, took: Duration, well: bool) {
        self.took.add(took);
        if well { self.good.inc() } else { self.bad.inc() }
    }

    /// Whether this operator leads.
    pub fn set_leads(&self, leads: bool) {
        self.leads.set(f64::from(u8::from(leads)));
    }

    /// The page.
    pub fn render(&self) -> String {
        self.registry.render()
    }
}
