//! The status of an appliance, with the ledger of its systems.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::condition::conditions_schema;
use crate::schema::keyed_by;
use crate::trainjob::never_decreases;

/// Observed state of the appliance, above all which job uses which systems.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::status)]
#[x_kube(validation = never_decreases("leaderEpoch", "this status was written by an operator that is no longer the \
    leader"))]
pub struct ApplianceStatus {
    /// Accepted: the spec is valid, and jobs are admitted. OverCommitted: jobs use more than the capacity.
    /// MatchesValues: the spec matches the chart's values. Deleting: the appliance was deleted, but jobs still use its
    /// systems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Total capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ResourceAmounts>,
    /// Capacity in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<ResourceAmounts>,
    /// Number of jobs that wait for this appliance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// The ledger: the grants of all jobs. A grant is written before the job's first pod is created, and removed after
    /// its last pod was deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), transform = by_uid)]
    pub grants: Vec<Grant>,
    /// Time at which an operator last confirmed this status: every 30 s while one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<Time>,
    /// Number of the leader that wrote this status. The API server rejects writes of earlier leaders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<u64>,
}

/// How much of each thing an appliance has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceAmounts {
    /// Number of systems.
    #[serde(default)]
    pub systems: u32,
    /// Bytes of MemoryX.
    #[serde(default)]
    pub memoryx_bytes: u64,
    /// Nodes of the SwarmX tree; as a capacity, omitted if there are as many as jobs need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarmx_nodes: Option<u32>,
}

/// The systems and other resources that one job has: all that it requested.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// UID of the job, which differs if a job is deleted and created again with the same name.
    #[schemars(length(min = 1, max = 63))]
    pub uid: String,
    /// Namespace of the job.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the job.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub name: String,
    /// Attempt of the job that the grant was made for. A job keeps its grant when it restarts.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// Names of the systems, such as csx-0.
    #[serde(default)]
    #[schemars(length(max = 1024), inner(length(max = 63)), transform = crate::schema::set)]
    pub systems: Vec<String>,
    /// How often the systems of the attempt had changed when the job got these. If this is more than in the job's
    /// status, the job does not use the added systems yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resizes: u32,
    /// Memory of MemoryX, in bytes.
    #[serde(default)]
    pub memoryx_bytes: u64,
    /// Number of nodes of the SwarmX tree.
    #[serde(default)]
    pub swarmx_nodes: u32,
    /// Time of the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn by_uid(schema: &mut Schema) {
    keyed_by(schema, "uid");
}
