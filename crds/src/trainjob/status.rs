//! The observed state of a job.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use kube::core::{Reason, Rule};
use millrace_params::{MachineDocument, Mode};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::{CheckpointStatus, FailureStatus, JobProgress, JobState, QueueStatus, RetryStatus, RoleStatus};
use crate::RoleResources;
use crate::condition::{ConditionType, conditions_schema};
use crate::schema::keyed_by;

/// What is true of the job, as far as the operator knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::status)]
#[x_kube(
    validation = never_decreases("leaderEpoch", "this status was written by an operator that is no longer the leader"),
    validation = never_decreases("attempt", "status.attempt must not decrease"),
    validation = never_decreases("restarts", "status.restarts must not decrease"),
    validation = resolved_is_immutable(),
    validation = stays_finished(),
)]
pub struct TrainJobStatus {
    /// Accepted, Admitted, RolesReady, Progressing, Checkpointed, Suspended, Succeeded and Finished. Succeeded sums them
    /// up: its reason is the job's state. Wait for Finished to see either end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The present life of the job's pods, counted from 1: raised on every restart and resume. Pods carry it as a label,
    /// logs are kept by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How often the job had to start again because an agent failed, in all; status.retry has those that still count
    /// against failurePolicy.maxRestarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
    /// How often attempts have failed lately, and when the next one starts; left out where none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryStatus>,
    /// What was decided at the first admission and holds for all attempts, whatever is upgraded meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<ResolvedJob>,
    /// The job's place in the queue, while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
    /// The systems that are the job's at present, as csx-0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63)), transform = crate::schema::set)]
    pub systems: Vec<String>,
    /// How many systems that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_csx: Option<u32>,
    /// What the column CSX shows: the systems of the present or the last attempt; while the job waits, those it asks
    /// for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown_csx: Option<u32>,
    /// Label selector of the pods that are the job's systems, as kubectl scale and autoscalers want it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The agents of the present attempt, by role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), transform = by_name)]
    pub roles: Vec<RoleStatus>,
    /// How far the job is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// The newest whole checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// What went wrong last; kept when a later attempt does better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// When the job first got systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the present attempt got its systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_start_time: Option<Time>,
    /// When the present attempt was asked to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_time: Option<Time>,
    /// Seconds that earlier attempts held systems; deadlines.activeSeconds bounds these and the present one's together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_seconds: Option<u64>,
    /// When the job was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_time: Option<Time>,
    /// How old the rest of the status is, apart from progress: when the operator last looked at the job and found it
    /// so. Written every 30 s while the job holds systems, else when something changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<Time>,
    /// Which leader among the operators wrote this: the number of changes of leadership before it. An API server refuses
    /// what an earlier leader writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<u64>,
}

/// What was decided at the first admission. Never changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedJob {
    /// Version of this record, and of what the agents in its image understand. A record that names none is of version 1,
    /// release 0.1.0. One of a later version than the operator's is left alone, with a condition that says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub version: Option<u32>,
    /// What the job does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Systems asked for then; spec.numCsx may have changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_csx: Option<u32>,
    /// The directory of checkpoints, metrics and logs, as the pods see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_dir: Option<String>,
    /// The claim that directory lies in, where it is the appliance's storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub model_dir_claim: Option<String>,
    /// The job with nothing left to decide, as canonical JSON: what every agent of every attempt is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub job: Option<String>,
    /// Digest of the stream plan, in hexadecimal: layers, chunks, leaves and the tree over them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub plan_hash: Option<String>,
    /// Image of all pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The appliance as it was, with every default filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appliance: Option<MachineDocument>,
    /// Digest of that, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub appliance_digest: Option<String>,
    /// Resources of each role's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<RoleResources>,
    /// Where runconfig said something else than the spec, which won.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub differences: Vec<OverruledKey>,
    /// What else the user should know about how the params were understood.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub notes: Vec<String>,
}

/// A key of runconfig that the spec overruled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverruledKey {
    /// The key, as runconfig.num_csx.
    #[schemars(length(max = 253))]
    pub key: String,
    /// What params say.
    pub params: String,
    /// What the spec says, and what holds.
    pub spec: String,
}

impl TrainJobStatus {
    /// Returns the condition of a type, if it is set.
    pub fn condition(&self, of: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == of.as_str())
    }

    /// Returns whether a condition is set and True.
    pub fn is(&self, of: ConditionType) -> bool {
        self.condition(of).is_some_and(|condition| condition.status == "True")
    }

    /// Returns the state in the column STATE; `None` before the first reconcile, and for a state of another version.
    pub fn state(&self) -> Option<JobState> {
        JobState::from_name(&self.condition(ConditionType::Succeeded)?.reason)
    }
}

/// Requires a number that never decreases, so that late writes of an old leader are rejected.
pub(crate) fn never_decreases(field: &str, message: &str) -> Rule {
    Rule::new(format!("!has(oldSelf.{field}) || (has(self.{field}) && self.{field} >= oldSelf.{field})"))
        .message(message)
        .field_path(format!(".{field}"))
        .reason(Reason::FieldValueForbidden)
}

fn resolved_is_immutable() -> Rule {
    Rule::new("!has(oldSelf.resolved) || (has(self.resolved) && self.resolved == oldSelf.resolved)")
        .message("status.resolved is immutable")
        .field_path(".resolved")
        .reason(Reason::FieldValueForbidden)
}

fn stays_finished() -> Rule {
    let finished = |of: &str| {
        format!("has({of}.conditions) && {of}.conditions.exists(c, c.type == 'Finished' && c.status == 'True')")
    };
    Rule::new(format!("!({}) || ({})", finished("oldSelf"), finished("self")))
        .message("the condition Finished must not change back")
        .field_path(".conditions")
        .reason(Reason::FieldValueForbidden)
}

fn by_name(schema: &mut Schema) {
    keyed_by(schema, "name");
}
