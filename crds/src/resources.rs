//! Resource requests and limits of each role's pods.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ResourceList;

/// Resources of each role's pods. A role that is left out gets what the planner finds it needs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoleResources {
    /// The coordinator, which controls the job and stores its logs and metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<Resources>,
    /// Each MemoryX shard, which stores its share of the weights and of the optimizer's state. It needs mostly memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memoryx: Option<Resources>,
    /// Each node of the SwarmX tree, which copies weights down and adds gradients up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarmx: Option<Resources>,
    /// Each activation server, which reads the training data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Resources>,
    /// Each emulated CS-2. It needs mostly CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cs2: Option<Resources>,
    /// The container beside each activation server that reads a Python dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader: Option<Resources>,
}

/// What one pod asks for and may use at most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// Resources that the scheduler reserves for the pod, such as `cpu: 500m` and `memory: 2Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
    /// Maximum that the pod may use. A pod that needs more memory is killed, which ends the attempt as OutOfMemory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
}
