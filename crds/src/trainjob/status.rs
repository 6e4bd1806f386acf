//! The observed state of a job.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use kube::core::{Reason, Rule};
use millrace_params::{MachineDocument, Mode};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::{
    CheckpointStatus, FailureStatus, JobProgress, JobState, LostAgentStatus, QueueStatus, RetryStatus, RoleStatus,
};
use crate::RoleResources;
use crate::appliance::ModelDirBucket;
use crate::condition::{ConditionType, conditions_schema};
use crate::schema::keyed_by;

/// Observed state of the job.
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
    /// Accepted, Admitted, RolesReady, Progressing, Checkpointed, StorageResponding, Suspended, Succeeded and Finished.
    /// Succeeded summarizes them: its reason is the job's state. Finished becomes true on success and on failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of the current attempt, counted from 1 and increased by every restart and resume. It is a label of the
    /// pods and part of the log's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Total number of restarts because an agent failed; status.retry has those that still count against
    /// failurePolicy.maxRestarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
    /// Recent failures of attempts, and the time of the next attempt; omitted without a recent failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryStatus>,
    /// Decisions of the first admission, which are fixed for all attempts, also after upgrades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<ResolvedJob>,
    /// The phases of the job that are complete; omitted while the first one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_phases: Option<CompletedPhases>,
    /// The job's position in the queue while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
    /// Systems that the job has now, such as csx-0. After a resize to fewer systems, the others are included until
    /// their agents have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63)), transform = crate::schema::set)]
    pub systems: Vec<String>,
    /// Number of systems that the current attempt uses: the first ones of systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_csx: Option<u32>,
    /// How often the systems of the current attempt have changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resizes: Option<u32>,
    /// Value of the column CSX: number of systems of the current or last attempt; of a waiting job, the number that it
    /// requests.
    #[serde(default, alias = "shownCsx", skip_serializing_if = "Option::is_none")]
    pub displayed_csx: Option<u32>,
    /// Label selector of the pods of the job's systems, for kubectl scale and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The agents of the current attempt, by role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), transform = by_name)]
    pub roles: Vec<RoleStatus>,
    /// The agents of the current attempt that were lost and replaced, the newest losses of at most 256 agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), transform = by_name)]
    pub lost_agents: Vec<LostAgentStatus>,
    /// Total number of agents that were replaced without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacements: Option<u32>,
    /// Progress of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// The newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// The last failure; kept if a later attempt succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// Time at which the job first got systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which the current attempt got its systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_start_time: Option<Time>,
    /// Time at which the current attempt was requested to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_time: Option<Time>,
    /// Seconds that earlier attempts used systems; deadlines.activeSeconds limits these and the current attempt's
    /// together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_seconds: Option<u64>,
    /// Time at which the job finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_time: Option<Time>,
    /// Time at which the operator last confirmed this status, except for progress. Written every 30 s while the job has
    /// systems, otherwise when something changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<Time>,
    /// Number of the leader that wrote this status, which counts changes of leadership. The API server rejects writes
    /// of earlier leaders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<u64>,
}

/// The phases of a job that are complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletedPhases {
    /// Their number.
    #[serde(default)]
    #[schemars(range(max = 16))]
    pub count: u32,
    /// The attempt that completed the newest of them.
    #[serde(default)]
    pub attempt: u32,
}

/// A phase of a job that follows another one, as it was decided at the first admission.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedPhase {
    /// What the phase does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The phase with all defaults resolved, as canonical JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub job: Option<String>,
    /// Digest of its stream plan, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub plan_hash: Option<String>,
}

/// What was decided at the first admission. Never changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedJob {
    /// Version of this record, and of the documents that the agents of its image read. A record without a version has
    /// version 1, of release 0.1.0. If the version is later than the operator's, the operator does not run the job and
    /// sets a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub version: Option<u32>,
    /// What the job does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Systems requested at that time; spec.numCsx may have changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_csx: Option<u32>,
    /// Directory of checkpoints, metrics and logs, as a path in the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_dir: Option<String>,
    /// Claim with the directory, if it is in the appliance's storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub model_dir_claim: Option<String>,
    /// Bucket to which the directory is uploaded, with the address of this job's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_dir_bucket: Option<ModelDirBucket>,
    /// The job with all defaults resolved, as canonical JSON: every agent of every attempt receives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub job: Option<String>,
    /// Digest of the stream plan, in hexadecimal: layers, chunks, leaves and the tree over them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub plan_hash: Option<String>,
    /// The phases that follow the first one, which the fields above describe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 15))]
    pub later_phases: Vec<ResolvedPhase>,
    /// Image of all pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Image of the container that reads a Python dataset, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub loader_image: Option<String>,
    /// The appliance at that time, with all defaults filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub appliance: Option<MachineDocument>,
    /// Digest of `appliance`, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub appliance_digest: Option<String>,
    /// Resources of each role's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<RoleResources>,
    /// Keys of runconfig that differed from the spec, which won.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub differences: Vec<OverruledKey>,
    /// Notes for the user on how the params were interpreted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub notes: Vec<String>,
}

/// A key of runconfig that the spec overrides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverruledKey {
    /// The key, such as runconfig.num_csx.
    #[schemars(length(max = 253))]
    pub key: String,
    /// Value in params.
    pub params: String,
    /// Value in the spec, which is used.
    pub spec: String,
}

impl ResolvedJob {
    /// Returns the number of phases.
    pub fn phase_count(&self) -> u32 {
        u32::try_from(self.later_phases.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Returns the record without the first `completed` phases. It keeps the last phase if all are complete.
    #[must_use]
    pub fn without_phases(&self, completed: u32) -> Self {
        let mut record = self.clone();
        let removed = (completed as usize).min(record.later_phases.len());
        if let Some(ResolvedPhase { mode, job, plan_hash }) = record.later_phases.drain(..removed).next_back() {
            (record.mode, record.job, record.plan_hash) = (mode, job, plan_hash);
        }
        record
    }

    /// Returns for each phase the record that begins with it.
    pub fn phases(&self) -> impl Iterator<Item = Self> {
        (0..self.phase_count()).map(|completed| self.without_phases(completed))
    }
}

impl TrainJobStatus {
    /// Returns how many phases are complete.
    pub fn completed_phase_count(&self) -> u32 {
        self.completed_phases.map_or(0, |completed| completed.count)
    }

    /// Returns the record that begins with the current phase; `None` before the first admission.
    pub fn current_phase(&self) -> Option<ResolvedJob> {
        Some(self.resolved.as_ref()?.without_phases(self.completed_phase_count()))
    }

    /// Returns the condition of a type, if it is set.
    pub fn condition(&self, condition_type: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == condition_type.as_str())
    }

    /// Returns whether a condition is set and True.
    pub fn is(&self, condition_type: ConditionType) -> bool {
        self.condition(condition_type).is_some_and(|condition| condition.status == "True")
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
    let finished = |status: &str| {
        format!("has({status}.conditions) && {status}.conditions.exists(c, c.type == 'Finished' && c.status == 'True')")
    };
    Rule::new(format!("!({}) || ({})", finished("oldSelf"), finished("self")))
        .message("the condition Finished must not change back")
        .field_path(".conditions")
        .reason(Reason::FieldValueForbidden)
}

fn by_name(schema: &mut Schema) {
    keyed_by(schema, "name");
}
