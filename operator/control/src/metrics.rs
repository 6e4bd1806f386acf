//! What the operator counts, for Prometheus. No label names a job: their number has no bound.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the histogram's buckets, seconds.
const BUCKETS: [f64; 8] = [0.005, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// See the module text.
#[derive(Debug, Default)]
pub struct Metrics {
    visits: AtomicU64,
    failures: AtomicU64,
    /// Visits per bucket, the last one without a bound.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
    leads: AtomicBool,
}

impl Metrics {
    /// A visit took so long, and ended well or not.
    pub fn visited(&self, took: Duration, well: bool) {
        let at = BUCKETS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BUCKETS.len());
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.visits.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(!well), Ordering::Relaxed);
    }

    /// Whether this operator leads.
    pub fn set_leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    /// In the text format of Prometheus, under the names that controllers have in common.
    pub fn render(&self) -> String {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let mut text = String::new();
        let (visits, failures) = (get(&self.visits), get(&self.failures));
        // Writing into a string can't fail.
        let _ = write!(
            text,
            "# HELP controller_runtime_reconcile_total Visits to jobs.\n\
             # TYPE controller_runtime_reconcile_total counter\n\
             controller_runtime_reconcile_total{{controller=\"trainjob\",result=\"success\"}} {}\n\
             controller_runtime_reconcile_total{{controller=\"trainjob\",result=\"error\"}} {failures}\n\
             # HELP leader_election_master_status Whether this operator leads.\n\
             # TYPE leader_election_master_status gauge\n\
             leader_election_master_status{{name=\"millrace-operator\"}} {}\n\
             # HELP controller_runtime_reconcile_time_seconds How long visits take.\n\
             # TYPE controller_runtime_reconcile_time_seconds histogram\n",
            visits.saturating_sub(failures),
            u8::from(self.leads.load(Ordering::Relaxed)),
        );
        let name = "controller_runtime_reconcile_time_seconds";
        let mut below = 0;
        for (bucket, bound) in
            self.buckets.iter().zip(BUCKETS.map(|bound| bound.to_string()).iter().map(String::as_str).chain(["+Inf"]))
        {
            below += get(bucket);
            let _ = writeln!(text, "{name}_bucket{{controller=\"trainjob\",le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(text, "{name}_sum{{controller=\"trainjob\"}} {}", get(&self.micros) as f64 / 1e6);
        let _ = writeln!(text, "{name}_count{{controller=\"trainjob\"}} {below}");
        text
    }
}
