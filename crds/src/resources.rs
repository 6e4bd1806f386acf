//! Resource requests and limits of each role's pods.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ResourceList;

/// Resources of each role's pods. A role that is left out gets what the planner finds it needs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoleResources {
    /// The coordinator, which directs the job and keeps its logs and metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<Resources>,
    /// Each MemoryX shard: it holds its share of the weights and of the optimizer's state, so memory counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memoryx: Option<Resources>,
    /// Each node of the SwarmX tree, which copies weights down and adds gradients up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarmx: Option<Resources>,
    /// Each activation server, which reads the training data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Resources>,
    /// Each emulated CS-2: it computes, so CPU counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cs2: Option<Resources>,
}

/// What one pod asks for and may use at most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// What the scheduler sets aside for the pod, as `cpu: 500m` and `memory: 2Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
    /// What the pod may use at most. A pod that needs more memory is killed, which ends the attempt as OutOfMemory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
}
