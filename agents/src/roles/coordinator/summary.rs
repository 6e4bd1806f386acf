//! The summary at the end of a run, and performance.json.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use millrace_emulator::plan::StreamPlan;
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::proto;
use millrace_telemetry::performance::{AgentUsage, Performance, RunTotals};
use millrace_telemetry::progress::Rates;
use millrace_telemetry::stall::StallReason;

use super::files::file_failure;

/// The last reported usage of each agent.
pub type Usages = BTreeMap<AgentId, proto::Usage>;

/// Returns the counted floating-point operations of one training sample, forward and backward.
pub fn flops_per_sample(plan: &StreamPlan) -> f64 {
    plan.layers.iter().map(|layer| (layer.forward_flops + layer.backward_flops) as f64).sum()
}

/// Computes the performance of the run. `work` is (steps, samples, tokens).
pub fn performance(plan: &StreamPlan, work: (u64, u64, u64), elapsed: Duration, rates: Rates) -> Performance {
    let (steps, samples, tokens) = work;
    let work = RunTotals { steps, samples, tokens, flops_per_sample: flops_per_sample(plan), peak_flops_per_sec: None };
    Performance::new(work, elapsed, rates)
}

/// Returns the lines of the summary: samples, seconds, tokens/s, FLOP/s, and the shares of time that each role waited.
pub fn lines(performance: &Performance, usages: &Usages, elapsed: Duration) -> Vec<String> {
    let mut lines = vec![
        format!("Processed {} training sample(s) in {:.2} seconds.", performance.total_samples, performance.total_time),
        format!(
            "{:.1} tokens/sec, {:.2} GFLOP/s of the model's own operations.",
            performance.tokens_per_sec,
            performance.flops_per_sec / 1e9
        ),
    ];
    for role in [Role::Cs2, Role::MemoryX, Role::SwarmX, Role::Activation] {
        let of_role: Vec<&proto::Usage> =
            usages.iter().filter(|(agent, _)| agent.role == role).map(|(_, usage)| usage).collect();
        lines.extend(role_line(role, &of_role, elapsed));
    }
    lines
}

fn role_line(role: Role, usages: &[&proto::Usage], elapsed: Duration) -> Option<String> {
    if usages.is_empty() {
        return None;
    }
    let wall = elapsed.as_secs_f64().max(f64::MIN_POSITIVE) * usages.len() as f64;
    let share = |seconds: f64| 100.0 * seconds / wall;
    let mut waits: Vec<(&str, f64)> = StallReason::ALL
        .iter()
        .map(|reason| {
            let seconds = usages.iter().filter_map(|usage| usage.stall_seconds.get(reason.as_str())).sum::<f64>();
            (reason.as_str(), share(seconds))
        })
        .filter(|(_, share)| *share >= 0.05)
        .collect();
    waits.sort_by(|a, b| b.1.total_cmp(&a.1));
    let waits: Vec<String> = waits.iter().map(|(reason, share)| format!("{reason} {share:.1}%")).collect();
    let waited = if waits.is_empty() { "did not wait".to_owned() } else { format!("waited for {}", waits.join(", ")) };
    let busy = usages.iter().map(|usage| usage.busy_seconds).sum::<f64>();
    let busy = if busy > 0.0 { format!("computed {:.1}%, ", share(busy)) } else { String::new() };
    let peak = usages.iter().map(|usage| usage.peak_rss_bytes).max().unwrap_or(0);
    Some(format!(
        "{} x{}: {busy}{waited}; peak memory {:.0} MiB",
        role.as_str(),
        usages.len(),
        peak as f64 / (1 << 20) as f64
    ))
}

/// Writes performance.json. A failure is logged.
pub fn write(mut performance: Performance, usages: &Usages, model_dir: &Path) {
    for (agent, usage) in usages {
        let &proto::Usage { busy_seconds, peak_rss_bytes, bytes_in, bytes_out, .. } = usage;
        let of_agent = AgentUsage { busy_seconds, peak_rss_bytes, bytes_in, bytes_out };
        performance.agents.insert(agent.to_string(), of_agent);
        let totals = serde_json::to_value(&usage.stall_seconds).and_then(serde_json::from_value);
        if let Ok(totals) = totals {
            performance.stall_seconds.insert(agent.to_string(), totals);
        }
    }
    if let Err(error) = performance.write(model_dir) {
        tracing::warn!("{}", file_failure(error));
    }
}
