//! Gauges of the current state of jobs, appliances and queues. They are computed from the control loop's cached objects
//! on every scrape of `/metrics`. Therefore nothing has to be kept up to date, and the gauges vanish when the loop
//! ends.
//!
//! No label names a job. Namespaces with jobs are labels, at most [`MAX_NAMESPACE_LABELS`] of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use millrace_crds::{Appliance, ConditionType, JobState, TrainJob};
use millrace_lifecycle::is_waiting;
use millrace_telemetry::prometheus::{Gauge, Registry};

use crate::activity::ControllerStatus;

/// Maximum number of namespaces with a series of their own: those with the most jobs.
pub const MAX_NAMESPACE_LABELS: usize = 100;
/// Maximum number of appliances with a series of their own.
const MAX_APPLIANCE_LABELS: usize = 100;
/// Label of all other namespaces together; no namespace can have this name.
const OTHER: &str = "_other";

/// The cached objects of a control loop at one moment.
pub struct ControllerSnapshot<'a> {
    pub jobs: &'a [Arc<TrainJob>],
    pub appliances: &'a [Arc<Appliance>],
    /// Times of the last ledger updates by appliance, in seconds since 1970.
    pub ledgers: &'a BTreeMap<String, f64>,
    /// The controllers, by name.
    pub controllers: [(&'static str, ControllerStatus); 2],
    /// The time of the scrape.
    pub now: Timestamp,
}

impl ControllerSnapshot<'_> {
    /// Renders the gauges as Prometheus text.
    pub fn render(&self) -> String {
        let registry = Registry::new();
        self.add_jobs(&registry);
        self.add_appliances(&registry);
        self.add_queues(&registry);
        self.add_controllers(&registry);
        registry.render()
    }

    fn add_jobs(&self, registry: &Registry) {
        let mut by_namespace: BTreeMap<String, BTreeMap<&'static str, u64>> = BTreeMap::new();
        for job in self.jobs {
            let state = job.status.as_ref().and_then(|status| status.state()).unwrap_or(JobState::Queued);
            let states = by_namespace.entry(job.namespace().unwrap_or_default()).or_default();
            *states.entry(state.as_str()).or_default() += 1;
        }
        let mut namespaces: Vec<_> = by_namespace.into_iter().collect();
        namespaces.sort_by_key(|(_, states)| std::cmp::Reverse(states.values().sum::<u64>()));
        let mut other: BTreeMap<&'static str, u64> = BTreeMap::new();
        for (_, states) in namespaces.split_off(MAX_NAMESPACE_LABELS.min(namespaces.len())) {
            states.into_iter().for_each(|(state, count)| *other.entry(state).or_default() += count);
        }
        namespaces.push((OTHER.to_owned(), other));
        let jobs = registry.family::<Gauge, 2>("millrace_jobs", "Number of TrainJobs.", ["namespace", "state"]);
        for (namespace, states) in &namespaces {
            for (state, count) in states {
                jobs.with([namespace, state]).set(*count as f64);
            }
        }
    }

    fn add_appliances(&self, registry: &Registry) {
        let family = |name, help| registry.family::<Gauge, 1>(name, help, ["appliance"]);
        let systems = family("millrace_appliance_systems", "Systems of the appliance.");
        let used = family("millrace_appliance_systems_used", "Systems in use by jobs.");
        let memory = family("millrace_appliance_memoryx_bytes", "Memory of MemoryX.");
        let memory_used = family("millrace_appliance_memoryx_used_bytes", "Memory of MemoryX in use by jobs.");
        let updated = family(
            "millrace_ledger_last_update_timestamp_seconds",
            "Time of this operator's last update of the appliance's ledger, in seconds since 1970.",
        );
        for appliance in self.appliances() {
            let name = &*appliance.name_any();
            let status = appliance.status.clone().unwrap_or_default();
            if let Some(capacity) = status.capacity {
                systems.with([name]).set(f64::from(capacity.systems));
                memory.with([name]).set(capacity.memoryx_bytes as f64);
            }
            if let Some(in_use) = status.used {
                used.with([name]).set(f64::from(in_use.systems));
                memory_used.with([name]).set(in_use.memoryx_bytes as f64);
            }
            if let Some(time) = self.ledgers.get(name) {
                updated.with([name]).set(*time);
            }
        }
    }

    fn add_queues(&self, registry: &Registry) {
        let family = |name, help| registry.family::<Gauge, 1>(name, help, ["appliance"]);
        let waiting = family("millrace_queue_jobs", "Jobs waiting for systems.");
        let oldest = family(
            "millrace_queue_oldest_wait_seconds",
            "Longest time that one of the waiting jobs has waited; 0 if none waits.",
        );
        let head = family(
            "millrace_queue_head_systems",
            "Systems that the first job of the queue requests; 0 if the queue is empty.",
        );
        for appliance in self.appliances() {
            let name = &*appliance.name_any();
            let queue: Vec<_> = self.jobs.iter().filter(|job| job.spec.appliance == *name && is_queued(job)).collect();
            let waits = queue.iter().map(|job| wait_duration(job, self.now).as_secs_f64());
            let first = queue.iter().find(|job| position(job) == Some(1));
            waiting.with([name]).set(queue.len() as f64);
            oldest.with([name]).set(waits.fold(0.0, f64::max));
            head.with([name]).set(first.map_or(0.0, |job| f64::from(job.spec.num_csx)));
        }
    }

    fn add_controllers(&self, registry: &Registry) {
        let depth = registry.family::<Gauge, 1>("workqueue_depth", "Objects waiting for their reconcile.", ["name"]);
        let longest = registry.family::<Gauge, 1>(
            "workqueue_longest_running_processor_seconds",
            "Duration so far of the longest running reconcile.",
            ["name"],
        );
        let active =
            registry.family::<Gauge, 1>("controller_runtime_active_workers", "Running reconciles.", ["controller"]);
        for (name, status) in &self.controllers {
            depth.with([name]).set(status.waiting as f64);
            longest.with([name]).set(status.longest_reconcile.as_secs_f64());
            active.with([name]).set(status.visited as f64);
        }
    }

    fn appliances(&self) -> impl Iterator<Item = &Arc<Appliance>> {
        self.appliances.iter().take(MAX_APPLIANCE_LABELS)
    }
}

/// Returns whether a job waits for systems. Suspended and deleted jobs do not.
fn is_queued(job: &TrainJob) -> bool {
    is_waiting(job) && !job.spec.suspend && job.metadata.deletion_timestamp.is_none()
}

fn position(job: &TrainJob) -> Option<u32> {
    job.status.as_ref()?.queue.as_ref()?.position
}

/// Returns how long a job that holds no systems has waited for them: since it was created, released its last ones, or
/// was resumed.
pub fn wait_duration(job: &TrainJob, now: Timestamp) -> std::time::Duration {
    let became_false = |condition_type: ConditionType| {
        let condition = job.status.as_ref()?.condition(condition_type)?;
        (condition.status == "False").then_some(condition.last_transition_time.0)
    };
    let created = job.creation_timestamp().map(|time| time.0);
    let since = [created, became_false(ConditionType::Admitted), became_false(ConditionType::Suspended)];
    let since = since.into_iter().flatten().max().unwrap_or(now);
    if since < now { now.duration_since(since).unsigned_abs() } else { std::time::Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;

    fn job(namespace: &str, name: &str, status: serde_json::Value) -> Arc<TrainJob> {
        let object = json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"numCsx": 3, "params": {}},
            "status": status,
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn condition(of: &str, status: &str, reason: &str, at: &str) -> serde_json::Value {
        json!({"type": of, "status": status, "reason": reason, "message": "", "lastTransitionTime": at})
    }

    fn appliance() -> Arc<Appliance> {
        let object = json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "Appliance", "metadata": {"name": "default"}, "spec": {},
            "status": {
                "capacity": {"systems": 8, "memoryxBytes": 1000}, "used": {"systems": 5, "memoryxBytes": 10},
            },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn page(jobs: &[Arc<TrainJob>]) -> String {
        let snapshot = ControllerSnapshot {
            jobs,
            appliances: &[appliance()],
            ledgers: &BTreeMap::from([("default".to_owned(), 12.0), ("deleted".to_owned(), 1.0)]),
            controllers: [
                ("trainjob", ControllerStatus { waiting: 2, visited: 1, ..ControllerStatus::default() }),
                ("appliance", ControllerStatus::default()),
            ],
            now: "2026-01-01T01:00:00Z".parse().unwrap(),
        };
        snapshot.render()
    }

    #[test]
    fn page_counts_cached_objects() {
        let training = json!({"conditions": [
            condition("Admitted", "True", "Granted", "2026-01-01T00:01:00Z"),
            condition("Succeeded", "Unknown", "Training", "2026-01-01T00:01:00Z"),
        ]});
        let waiting = json!({
            "conditions": [
                condition("Admitted", "False", "Waiting", "2026-01-01T00:00:00Z"),
                condition("Suspended", "False", "NotSuspended", "2026-01-01T00:50:00Z"),
                condition("Succeeded", "Unknown", "Queued", "2026-01-01T00:50:00Z"),
            ],
            "queue": {"position": 1},
        });
        let mut deleted = TrainJob::clone(&job("a", "gone", json!({})));
        deleted.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
        let page = page(&[
            job("a", "one", training.clone()),
            job("a", "two", training),
            job("b", "resumed", waiting),
            job("b", "new", json!({})),
            Arc::new(deleted),
        ]);
        for line in [
            "millrace_jobs{namespace=\"a\",state=\"Training\"} 2",
            "millrace_jobs{namespace=\"b\",state=\"Queued\"} 2",
            "millrace_appliance_systems{appliance=\"default\"} 8",
            "millrace_appliance_systems_used{appliance=\"default\"} 5",
            "millrace_appliance_memoryx_bytes{appliance=\"default\"} 1000",
            "millrace_ledger_last_update_timestamp_seconds{appliance=\"default\"} 12",
            "millrace_queue_jobs{appliance=\"default\"} 2",
            "millrace_queue_oldest_wait_seconds{appliance=\"default\"} 3600",
            "millrace_queue_head_systems{appliance=\"default\"} 3",
            "workqueue_depth{name=\"trainjob\"} 2",
            "controller_runtime_active_workers{controller=\"trainjob\"} 1",
        ] {
            assert!(page.contains(&format!("{line}\n")), "{line} in\n{page}");
        }
        assert!(!page.contains("\"deleted\""), "an appliance that is gone has no series");
    }

    #[test]
    fn number_of_series_is_bounded() {
        let mut jobs: Vec<_> =
            (0..MAX_NAMESPACE_LABELS + 50).map(|index| job(&format!("n{index}"), "j", json!({}))).collect();
        jobs.push(job("n149", "second", json!({})));
        let page = page(&jobs);
        assert_eq!(page.matches("millrace_jobs{").count(), MAX_NAMESPACE_LABELS + 1);
        assert!(page.contains("millrace_jobs{namespace=\"n149\",state=\"Queued\"} 2\n"), "the largest are named");
        assert!(page.contains("millrace_jobs{namespace=\"_other\",state=\"Queued\"} 50\n"));
    }

    #[test]
    fn waiting_begins_anew_when_a_job_is_resumed() {
        let conditions = json!({"conditions": [
            condition("Admitted", "False", "Suspended", "2026-01-01T00:30:00Z"),
            condition("Suspended", "False", "NotSuspended", "2026-01-01T00:40:00Z"),
        ]});
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        assert_eq!(wait_duration(&job("a", "resumed", conditions), now).as_secs(), 1200);
        assert_eq!(wait_duration(&job("a", "new", json!({})), now).as_secs(), 3600);
        assert_eq!(wait_duration(&job("a", "new", json!({})), Timestamp::UNIX_EPOCH).as_secs(), 0, "clocks may differ");
    }
}
