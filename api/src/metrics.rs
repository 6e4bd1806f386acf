//! What this server counts, for Prometheus. No label names a job or a user: their number has no bound.

use std::time::Duration;

use millrace_telemetry::prometheus::{Durations, Family, Gauge, Registry};

/// Requests so far.
pub struct Traffic {
    registry: Registry,
    took: Family<Durations, 3>,
}

impl Default for Traffic {
    fn default() -> Self {
        let registry = Registry::new();
        let took = registry.family(
            "millrace_api_request_duration_seconds",
            "How long requests wait for an answer to begin, and how many there were.",
            ["method", "route", "code"],
        );
        Self { registry, took }
    }
}

impl Traffic {
    /// A request by `method` for `route`, as the table of routes has it, was answered with `code` after so long.
    pub fn answered(&self, method: &str, route: &str, code: &str, after: Duration) {
        self.took.with([method, route, code]).add(after);
    }

    /// The page.
    pub fn render(&self) -> String {
        self.registry.render()
    }
}

/// What the backend of a cluster has at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtHand {
    /// TrainJobs there are.
    pub trainjobs: usize,
    /// Those whose journals are followed or kept.
    pub companions: usize,
    /// Those whose files were asked for lately.
    pub readers: usize,
}

impl AtHand {
    /// The page.
    pub fn render(&self) -> String {
        let registry = Registry::new();
        let gauge = |name, help, value: usize| registry.metric::<Gauge>(name, help).set(value as f64);
        gauge("millrace_api_trainjobs", "TrainJobs there are.", self.trainjobs);
        gauge("millrace_api_companions", "Jobs whose journals are followed or kept.", self.companions);
        gauge("millrace_api_readers", "Jobs whose files were asked for lately.", self.readers);
        registry.render()
    }
}
