//! The part of a job's spec about failures.

use kube::KubeSchema;
use millrace_params::LossSpikeSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::optional_immutable;

/// What happens after failures of agents, and after spikes of the loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = optional_immutable("lossSpike"))]
pub struct FailurePolicy {
    /// Maximum number of restarts from the last committed step without progress between them; after that, the job ends
    /// as RetriesExhausted. An attempt makes progress if it trains for ten minutes and saves a later checkpoint than it
    /// began from; this resets the count. The first restart is immediate, the second waits 2 s, each further one twice
    /// as long, up to 5 minutes. Bad input and a loss that is not finite are never retried. A suspension, a change of
    /// numCsx, a drained node and pods that can't be created or scheduled do not count.
    #[serde(default = "default_restarts")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_restarts: u32,

    /// Seconds after which the pod of an agent is replaced that works at less than half of the speed of the other
    /// agents of its role, except the only replica of a MemoryX shard; never if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 604_800))]
    pub slow_after_seconds: Option<u32>,

    /// What counts as a jump of the loss, and what follows; takes the place of runconfig.loss_spike_factor and the keys
    /// beside it. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_spike: Option<LossSpikePolicy>,
}

/// What counts as a jump of the loss or of the gradient norm, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LossSpikePolicy {
    /// Multiple of the mean of recent steps above which a value is a jump; no bound if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.01, max = 1_000_000.0))]
    pub factor: Option<f64>,
    /// Number of recent steps that the mean is over. There are no jumps before that many steps.
    #[serde(default = "default_window")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub window_steps: u32,
    /// What follows from a jump, and from a loss or a gradient that is not finite.
    #[serde(default)]
    pub action: LossSpikeAction,
}

/// What follows from a step whose loss or gradient is not finite or jumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LossSpikeAction {
    /// The job ends.
    #[default]
    Stop,
    /// The step is executed with the next batch instead, before any parameter has changed. Ten batches in a row are
    /// skipped at most.
    Skip,
}

const fn default_window() -> u32 {
    LossSpikeSpec::DEFAULT_WINDOW_STEPS
}

impl From<LossSpikePolicy> for LossSpikeSpec {
    fn from(policy: LossSpikePolicy) -> Self {
        let action = match policy.action {
            LossSpikeAction::Stop => millrace_params::LossSpikeAction::Stop,
            LossSpikeAction::Skip => millrace_params::LossSpikeAction::Skip,
        };
        Self { factor: policy.factor, window: policy.window_steps, action }
    }
}

const fn default_restarts() -> u32 {
    10
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self { max_restarts: default_restarts(), slow_after_seconds: None, loss_spike: None }
    }
}
