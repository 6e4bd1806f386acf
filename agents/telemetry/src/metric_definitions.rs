//! Defines all metrics of agents: names, labels and meaning.
//!
//! | metric | type | on | meaning |
//! |---|---|---|---|
//! | `millrace_agent_info{role,index,version}` | gauge | every role | always 1 |
//! | `millrace_bytes_total{direction,link}` | counter | every role | bytes sent and received, frame headers included |
//! | `millrace_stall_seconds_total{reason}` | counter | every role | time waited, see [`StallReason`] |
//! | `millrace_steps_total` | counter | every role | steps this process took part in and saw committed |
//! | `millrace_step` | gauge | every role | the last committed step this process knows |
//! | `millrace_epoch{part}` | gauge | every role | attempt and number of the current epoch |
//! | `millrace_memory_bytes{kind}` | gauge | every role | resident memory: current (`rss`) and highest (`peak`) |
//! | `millrace_loss`, `millrace_grad_norm`, `millrace_learning_rate` | gauge | coordinator | of the last committed step |
//! | `millrace_eval_loss` | gauge | coordinator | of the last evaluation |
//! | `millrace_samples_total`, `millrace_tokens_total` | counter | coordinator | trained on by this attempt |
//! | `millrace_skipped_batches_total` | counter | coordinator | batches that this attempt skipped after a spike |
//! | `millrace_relative_speed{agent}` | gauge | coordinator | speed of an agent, over the others' median |
//! | `millrace_checkpoint_step` | gauge | coordinator | step of the newest complete checkpoint |
//! | `millrace_loader_workers_replaced_total` | counter | activation server | workers of Python datasets that failed |
//! | `millrace_storage_stall_seconds` | gauge | coordinator | how long the storage has not responded; 0 if it does |
//! | `millrace_dropped_records_total` | counter | coordinator | metrics and journal entries dropped while the disk was full |

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::memory::ProcessMemory;
use crate::process;
use crate::prometheus::{Counter, Gauge, MetricFamily, Registry};
use crate::stall::{StallClock, StallReason};

/// Direction of bytes, relative to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ByteDirection {
    /// Received.
    In,
    /// Sent.
    Out,
}

impl ByteDirection {
    /// Returns the value of the label `direction`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// Metrics of every role. Clones share them.
#[derive(Clone)]
pub struct RoleMetrics {
    registry: Arc<Registry>,
    bytes: MetricFamily<Counter, 2>,
    /// The counters of `bytes` by direction and link, for the totals.
    links: Arc<Mutex<BTreeMap<(ByteDirection, String), Counter>>>,
    stall: StallClock,
    /// Steps this process took part in and saw committed.
    pub steps: Counter,
    /// The last committed step this process knows.
    pub step: Gauge,
    epoch_attempt: Gauge,
    epoch_number: Gauge,
}

impl RoleMetrics {
    /// Creates the metrics of the agent `role`-`index`.
    pub fn new(role: &str, index: u32, version: &str) -> Self {
        let registry = Arc::new(Registry::new());
        registry
            .family::<Gauge, 3>(
                "millrace_agent_info",
                "Role and number of this agent, as labels; always 1.",
                ["role", "index", "version"],
            )
            .with([role, &index.to_string(), version])
            .set(1.0);
        let epoch = registry.family::<Gauge, 1>(
            "millrace_epoch",
            "The current epoch: attempt, and number within the attempt.",
            ["part"],
        );
        let stall = StallClock::new();
        register_stalls(&registry, &stall);
        register_memory(&registry);
        Self {
            bytes: registry.family(
                "millrace_bytes_total",
                "Bytes sent and received by link, frame headers included.",
                ["direction", "link"],
            ),
            steps: registry.metric("millrace_steps_total", "Committed steps that this process took part in."),
            step: registry.metric("millrace_step", "Last committed step known to this process."),
            epoch_attempt: epoch.with(["attempt"]),
            epoch_number: epoch.with(["number"]),
            links: Arc::default(),
            stall,
            registry,
        }
    }

    /// Returns the byte counter of a link. Look it up once and keep it. `link` names the peer, such as `swarmx-0`.
    pub fn bytes(&self, direction: ByteDirection, link: &str) -> Counter {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = || self.bytes.with([direction.as_str(), link]);
        links.entry((direction, link.to_owned())).or_insert_with(counter).clone()
    }

    /// Returns the sum of the bytes of all links.
    pub fn total_bytes(&self, direction: ByteDirection) -> u64 {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.iter().filter(|((way, _), _)| *way == direction).map(|(_, counter)| counter.get()).sum()
    }

    /// Returns the clock that measures this role's waits.
    pub fn stall(&self) -> &StallClock {
        &self.stall
    }

    pub fn set_epoch(&self, attempt: u64, number: u64) {
        self.epoch_attempt.set(attempt as f64);
        self.epoch_number.set(number as f64);
    }

    /// Counts a committed step and sets it as the last one.
    pub fn record_step(&self, step: u64) {
        self.steps.inc();
        self.step.set(step as f64);
    }

    /// Returns the registry, to which a role may add its own metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Renders the page for `/metrics`; its type is [`crate::prometheus::CONTENT_TYPE`].
    pub fn render(&self) -> String {
        self.registry.render()
    }
}

fn register_stalls(registry: &Registry, stall: &StallClock) {
    let seconds = registry.computed_counters(
        "millrace_stall_seconds_total",
        "Seconds waited by reason, including the current wait.",
        ["reason"],
    );
    for reason in StallReason::ALL {
        let stall = stall.clone();
        seconds.add([reason.as_str()], move || stall.seconds(reason));
    }
}

fn register_memory(registry: &Registry) {
    let memory = registry.computed_gauges(
        "millrace_memory_bytes",
        "Resident memory of this process: now (rss) and at most (peak).",
        ["kind"],
    );
    let read = |of: fn(ProcessMemory) -> u64| move || ProcessMemory::now().map_or(f64::NAN, |memory| of(memory) as f64);
    memory.add(["rss"], read(|memory| memory.resident));
    memory.add(["peak"], read(|memory| memory.peak));
}

/// Adds metrics of the process under the names used by Prometheus' client libraries, for programs that are not agents.
/// Values that the system does not report are NaN. The start time is the time of this call.
pub fn register_process(registry: &Registry) {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(f64::NAN, |time| time.as_secs_f64());
    let cpu = || process::cpu_time().map_or(f64::NAN, |time| time.as_secs_f64());
    let gauge = |name, help, read: fn() -> f64| registry.computed_gauges(name, help, []).add([], read);
    registry.computed_counters("process_cpu_seconds_total", "CPU time of this process.", []).add([], cpu);
    gauge("process_resident_memory_bytes", "Resident memory of this process.", || {
        ProcessMemory::now().map_or(f64::NAN, |memory| memory.resident as f64)
    });
    gauge("process_open_fds", "Open file descriptors.", || {
        process::open_files().map_or(f64::NAN, |files| files as f64)
    });
    gauge("process_max_fds", "File descriptors that may be open.", || {
        process::max_open_files().map_or(f64::NAN, |files| files as f64)
    });
    let start: Gauge =
        registry.metric("process_start_time_seconds", "Start time of this process, in seconds since 1970.");
    start.set(started);
}

/// Adds the number of workers of Python datasets that failed and were replaced, which `count` returns.
pub fn register_replaced_workers(registry: &Registry, count: impl Fn() -> f64 + Send + Sync + 'static) {
    let name = "millrace_loader_workers_replaced_total";
    registry.computed_counters(name, "Workers of Python datasets that failed and were replaced.", []).add([], count);
}

/// Metrics of the coordinator only.
#[derive(Clone)]
pub struct CoordinatorMetrics {
    /// Loss of the last committed step.
    pub loss: Gauge,
    /// Loss of the last evaluation; NaN before the first.
    pub eval_loss: Gauge,
    /// Global gradient norm of the last committed step, before clipping.
    pub grad_norm: Gauge,
    /// Learning rate of the last committed step.
    pub learning_rate: Gauge,
    /// Samples trained on by this attempt.
    pub samples: Counter,
    /// Tokens trained on by this attempt.
    pub tokens: Counter,
    /// Batches that this attempt skipped because their loss or gradient spiked.
    pub skipped_batches: Counter,
    /// Speed of each agent, relative to the median of the others of its role; over ten seconds.
    pub relative_speed: MetricFamily<Gauge, 1>,
    /// Step of the newest complete checkpoint; NaN before the first.
    pub checkpoint_step: Gauge,
    /// Seconds since the beginning of the write that the storage of model_dir does not respond to; 0 if it responds.
    pub storage_stall_seconds: Gauge,
    /// Number of lines of `metrics.jsonl`, points of curves and journal entries that this attempt dropped while the
    /// disk was full.
    pub dropped_records: Counter,
}

impl CoordinatorMetrics {
    /// Adds the coordinator's metrics to those of the role. Must be called once. Gauges are NaN until they are set.
    pub fn register(registry: &Registry) -> Self {
        let gauge = |name, help| {
            let gauge: Gauge = registry.metric(name, help);
            gauge.set(f64::NAN);
            gauge
        };
        Self {
            loss: gauge("millrace_loss", "Loss of the last committed step."),
            eval_loss: gauge("millrace_eval_loss", "Loss of the last evaluation."),
            grad_norm: gauge("millrace_grad_norm", "Global gradient norm of the last committed step, before clipping."),
            learning_rate: gauge("millrace_learning_rate", "Learning rate of the last committed step."),
            samples: registry.metric("millrace_samples_total", "Samples trained on by this attempt."),
            tokens: registry.metric("millrace_tokens_total", "Tokens trained on by this attempt."),
            relative_speed: registry.family(
                "millrace_relative_speed",
                "Speed of an agent, relative to the median of the others of its role.",
                ["agent"],
            ),
            skipped_batches: registry.metric(
                "millrace_skipped_batches_total",
                "Batches that this attempt skipped because their loss or gradient spiked.",
            ),
            checkpoint_step: gauge("millrace_checkpoint_step", "Step of the newest complete checkpoint."),
            storage_stall_seconds: registry.metric(
                "millrace_storage_stall_seconds",
                "Seconds for which the storage of model_dir has not responded to a write; 0 if it responds.",
            ),
            dropped_records: registry.metric(
                "millrace_dropped_records_total",
                "Lines of metrics.jsonl, points of curves and journal entries dropped while the disk was full.",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn process_metrics_have_values() {
        let registry = Registry::new();
        register_process(&registry);
        let page = registry.render();
        for name in ["cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"] {
            let line = page.lines().find(|line| line.starts_with(&format!("process_{name} "))).unwrap();
            assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() >= 0.0, "{line}");
        }
    }

    #[test]
    fn coordinator_metrics_are_complete_and_unique() {
        let metrics = RoleMetrics::new("coordinator", 0, "0.1.0");
        let coordinator = CoordinatorMetrics::register(metrics.registry());
        metrics.bytes(ByteDirection::Out, "swarmx-0").add(42);
        metrics.set_epoch(2, 3);
        metrics.record_step(7);
        coordinator.loss.set(2.5);
        let stall = metrics.stall().start(StallReason::Samples);
        let page = metrics.render();
        drop(stall);

        for line in [
            "millrace_agent_info{index=\"0\",role=\"coordinator\",version=\"0.1.0\"} 1",
            "millrace_bytes_total{direction=\"out\",link=\"swarmx-0\"} 42",
            "# TYPE millrace_stall_seconds_total counter",
            "millrace_stall_seconds_total{reason=\"snapshot\"} 0",
            "millrace_epoch{part=\"attempt\"} 2",
            "millrace_epoch{part=\"number\"} 3",
            "millrace_steps_total 1",
            "millrace_step 7",
            "millrace_loss 2.5",
            "millrace_eval_loss NaN",
        ] {
            assert_eq!(page.matches(&format!("{line}\n")).count(), 1, "{line} in\n{page}");
        }
        let value_of = |series: &str| -> f64 {
            let line = page.lines().find(|line| line.starts_with(series)).unwrap();
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        };
        assert!(value_of("millrace_stall_seconds_total{reason=\"samples\"}") > 0.0);
        assert!(value_of("millrace_memory_bytes{kind=\"peak\"}") > 0.0);
        let documented =
            include_str!("metric_definitions.rs").lines().filter(|line| line.starts_with("//! |")).collect::<String>();
        for line in page.lines().filter(|line| line.starts_with("# TYPE")) {
            let name = line.split(' ').nth(2).unwrap();
            assert_eq!(page.matches(&format!("# TYPE {name} ")).count(), 1);
            assert!(documented.contains(&format!("`{name}")), "{name} is not in the table");
        }
    }
}
