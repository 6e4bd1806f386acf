//! The status of an appliance, with the ledger of its systems.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::condition::conditions_schema;
use crate::schema::keyed_by;
use crate::trainjob::never_decreases;

/// What is true of the appliance, above all who uses what of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::status)]
#[x_kube(validation = never_decreases("leaderEpoch", "this status was written by an operator that is no longer the \
    leader"))]
pub struct ApplianceStatus {
    /// Accepted: the spec was understood, and jobs are admitted. OverCommitted: jobs hold more than there is.
    /// MatchesValues: the spec is what the chart's values say. Deleting: it was deleted, and jobs hold systems of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ResourceAmounts>,
    /// What is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<ResourceAmounts>,
    /// Jobs that wait for this appliance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// The ledger: what belongs to which job. Written before a job's first pod exists, and released when its last one is
    /// gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), transform = by_uid)]
    pub grants: Vec<Grant>,
    /// When an operator last looked at the appliance and found it so: every 30 s while one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_observed_time: Option<Time>,
    /// Which leader among the operators wrote this. An API server refuses what an earlier leader writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<u64>,
}

/// How much of each thing an appliance has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceAmounts {
    /// Systems.
    #[serde(default)]
    pub systems: u32,
    /// Bytes of MemoryX.
    #[serde(default)]
    pub memoryx_bytes: u64,
    /// Nodes of the SwarmX tree; as a capacity it is left out where there are as many as jobs need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarmx_nodes: Option<u32>,
}

/// What belongs to one job: all it asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// UID of the job: one that is deleted and created again under the same name is another job.
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
    /// The attempt of the job it was given for; a job that only starts again keeps it.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// Its systems, as csx-0.
    #[serde(default)]
    #[schemars(length(max = 1024), inner(length(max = 63)), transform = crate::schema::set)]
    pub systems: Vec<String>,
    /// Its share of MemoryX, in bytes.
    #[serde(default)]
    pub memoryx_bytes: u64,
    /// Its nodes of the SwarmX tree.
    #[serde(default)]
    pub swarmx_nodes: u32,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

fn by_uid(schema: &mut Schema) {
    keyed_by(schema, "uid");
}
