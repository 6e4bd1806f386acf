//! The parts of a job's status that change while it runs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far the job is. Written every few seconds at most, by a field manager of its own; every point of every metric is in
/// the metrics stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// The attempt that reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The last committed step; in the modes that only evaluate, the last evaluated batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The step the job trains to; in the modes that only evaluate, the batches there are, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// The loss of that step, as the shortest decimal that reads back to the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub loss: Option<String>,
    /// Samples per second since the attempt began, as a decimal with two places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub rate: Option<String>,
    /// Tokens per second since the attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<u64>,
    /// When the last step will be committed, at the present rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_finish_time: Option<Time>,
    /// When this was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
}

/// The newest whole checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// The step it was saved after; the directory is `checkpoint_<step>` in model_dir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// BLAKE3 digest of its parameters, in hexadecimal: two runs that ended in the same weights have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub digest: Option<String>,
    /// When it was whole and on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A waiting job's place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Its place among the jobs that wait for this appliance, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub position: Option<u32>,
    /// Why it waits: Waiting (its turn, or enough free systems, have yet to come), ExceedsAppliance (it asks for more
    /// than exists), NoAppliance (the appliance it names does not exist), PriorityNotAllowed (the appliance does not
    /// allow its PriorityClass), PriorityNotFound (the cluster has no such PriorityClass), DeadlineNotAllowed (a
    /// deadline exceeds the appliance's maxDeadlines), BackingOff (its last attempt failed or could not start, see
    /// status.retry) or Planning (its plan is being made).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// The same as a sentence, with numbers.
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
    /// Restarts that count against failurePolicy.maxRestarts: those since an attempt last trained for ten minutes and
    /// saved a later checkpoint than it began from.
    #[serde(default)]
    pub restarts: u32,
    /// Attempts in a row that could not start, because the API server refused their pods or no node had room for them.
    /// They cost nothing of the retry budget.
    #[serde(default)]
    pub failed_starts: u32,
    /// The newest checkpoint when the present attempt began, by its step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<u64>,
    /// The next attempt starts at this time at the earliest; left out where nothing keeps it waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// Whether the job gives its systems back and queues again, rather than keep them until the next attempt.
    #[serde(default)]
    pub requeue: bool,
    /// One word for why the last attempt ended, as StartRefused, Unschedulable or OOMKilled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// The same as a sentence, in the words of whoever refused.
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
    /// Agents the job needs.
    #[serde(default)]
    pub desired: u32,
    /// Agents that are ready.
    #[serde(default)]
    pub ready: u32,
    /// Agents that have failed in this attempt.
    #[serde(default)]
    pub failed: u32,
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
    /// Its pod, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pod: Option<String>,
    /// The node that pod ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// What the agent's process ended with, where it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// One word for what happened, as OOMKilled or Evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// The same as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// The last lines of the agent's log, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub log_tail: Vec<String>,
    /// When it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
