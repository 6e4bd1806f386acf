//! The volumes with a job's data and checkpoints.

use kube::KubeSchema;
use kube::core::Rule;
use millrace_params::{LabelName, ObjectName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A volume of the job: exactly one kind of source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = one_source())]
pub struct JobVolume {
    /// What mountDirs calls the volume.
    #[schemars(with = "LabelName")]
    pub name: String,
    /// A claim in the job's namespace. A directory of a host is reached through a PersistentVolume and its claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimSource>,
    /// A ConfigMap in the job's namespace, for small texts: each of its keys is a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapSource>,
}

/// A claim by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolumeClaimSource {
    /// Name of the PersistentVolumeClaim.
    #[schemars(with = "ObjectName")]
    pub claim_name: String,
}

/// A ConfigMap by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigMapSource {
    /// Name of the ConfigMap.
    #[schemars(with = "ObjectName")]
    pub name: String,
}

/// A directory of the job's pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MountedDir {
    /// The directory, as params name it: an absolute path without `..`.
    #[schemars(length(min = 2, max = 1024), regex(pattern = "^(/[A-Za-z0-9_=@%+~-]([A-Za-z0-9_.=@%+~-]*))+$"))]
    pub path: String,
    /// Which of the volumes is found there.
    #[schemars(with = "LabelName")]
    pub volume: String,
    /// The part of the volume that is mounted; all of it where this is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 1024),
        regex(pattern = "^[A-Za-z0-9_=@%+~-][A-Za-z0-9_.=@%+~-]*(/[A-Za-z0-9_=@%+~-][A-Za-z0-9_.=@%+~-]*)*$")
    )]
    pub sub_path: Option<String>,
}

fn one_source() -> Rule {
    Rule::new("has(self.persistentVolumeClaim) != has(self.configMap)")
        .message("a volume has one source: persistentVolumeClaim or configMap")
}
