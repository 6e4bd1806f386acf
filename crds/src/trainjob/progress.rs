//! The parts of a job's status that change while it runs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far the job is. Written every few seconds at most, by a field manager of its own; every point of every metric is in
/// the metrics stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// Attempt that reported the progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Last committed step; in modes that only evaluate, the last evaluated batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Step to train to; in modes that only evaluate, the number of batches if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Loss of that step, as the shortest decimal that parses to the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub loss: Option<String>,
    /// Number of batches that were skipped because their loss or gradient spiked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_batches: Option<u64>,
    /// Samples per second since the attempt began, as a decimal with two places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub rate: Option<String>,
    /// Tokens per second since the attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<u64>,
    /// Estimated time of the last step, at the current rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_finish_time: Option<Time>,
    /// Time at which the progress was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
}

/// The newest complete checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Step after which it was saved; the directory is `checkpoint_<step>` in model_dir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// BLAKE3 digest of its parameters, in hexadecimal; equal for equal weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub digest: Option<String>,
    /// Time at which it was complete on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A waiting job's place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Position among the jobs that wait for this appliance, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub position: Option<u32>,
    /// Why the job waits: Waiting (for its turn or for enough free systems), ExceedsAppliance (it requests more than
    /// the appliance has), NoAppliance (its appliance does not exist), PriorityNotAllowed (the appliance does not allow
    /// its PriorityClass), PriorityNotFound (its PriorityClass does not exist), DeadlineNotAllowed (a deadline exceeds
    /// the appliance's maxDeadlines), BackingOff (its last attempt failed or could not start, see status.retry) or
    /// Planning (its plan is being computed).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// The reason as a sentence, with numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Why a job waits: the values of [`QueueStatus::reason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueReason {
    /// Other jobs are before it, or too few systems are free.
    Waiting,
    /// It requests more than the whole appliance has. It blocks no other job.
    ExceedsAppliance,
    /// The appliance it names does not exist.
    NoAppliance,
    /// The appliance does not allow its PriorityClass.
    PriorityNotAllowed,
    /// The cluster has no such PriorityClass.
    PriorityNotFound,
    /// A deadline exceeds what the appliance allows.
    DeadlineNotAllowed,
    /// Its last attempt failed or could not start, and the next one is not due.
    BackingOff,
    /// It is being planned.
    Planning,
}

impl QueueReason {
    /// Returns the value of `queue.reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::ExceedsAppliance => "ExceedsAppliance",
            Self::NoAppliance => "NoAppliance",
            Self::PriorityNotAllowed => "PriorityNotAllowed",
            Self::PriorityNotFound => "PriorityNotFound",
            Self::DeadlineNotAllowed => "DeadlineNotAllowed",
            Self::BackingOff => "BackingOff",
            Self::Planning => "Planning",
        }
    }
}

/// How often attempts have failed lately, and when the next one starts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryStatus {
    /// Restarts that count against failurePolicy.maxRestarts: those since the last attempt that trained for ten minutes
    /// and saved a later checkpoint than it began from.
    #[serde(default)]
    pub restarts: u32,
    /// Consecutive attempts that could not start, because the API server rejected their pods or no node had room for
    /// them. They do not count against the retry budget.
    #[serde(default)]
    pub failed_starts: u32,
    /// Step of the newest checkpoint when the current attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<u64>,
    /// Earliest time of the next attempt; omitted if it need not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// Whether the job releases its systems and is queued again, instead of keeping them until the next attempt.
    #[serde(default)]
    pub requeue: bool,
    /// Why the last attempt ended, in one word, such as StartRejected, Unschedulable or OOMKilled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// The reason as a sentence, for example the API server's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
}

/// One role's agents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleStatus {
    /// The role: coordinator, memoryx, swarmx, activation or cs2.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Number of agents that the job needs.
    #[serde(default)]
    pub desired: u32,
    /// Number of agents that are ready.
    #[serde(default)]
    pub ready: u32,
    /// Number of agents that have failed in this attempt.
    #[serde(default)]
    pub failed: u32,
}

/// An agent of the current attempt that was lost, and replaced without a restart of the attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LostAgentStatus {
    /// The agent, such as cs2-1.
    #[schemars(length(max = 63))]
    pub name: String,
    /// UID of the pod that was lost last.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub instance: String,
    /// Losses in a row: the count begins again once a pod of the agent has run for ten seconds.
    #[serde(default)]
    pub losses: u32,
    /// Cause of the last loss in one word: Deleted, Evicted, NodeLost, Unresponsive, Slow, OOMKilled or Error.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub reason: String,
    /// The cause as a sentence.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Node of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Time at which the loss was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Earliest time at which the pod is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement_time: Option<Time>,
}

/// The first thing that went wrong in an attempt: the cause, not what it pulled down.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// The attempt that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The role of the agent that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub role: Option<String>,
    /// Pod of the agent, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pod: Option<String>,
    /// Node of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Exit code of the agent's process, if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Cause in one word, such as OOMKilled or Evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// The reason as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// The last lines of the agent's log, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub log_tail: Vec<String>,
    /// Time at which the failure was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
