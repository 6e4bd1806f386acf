//! The volumes with a job's data and checkpoints.

use kube::KubeSchema;
use kube::core::Rule;
use millrace_params::{BlobDigest, LabelName, ObjectName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A volume of the job, with exactly one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = one_source())]
pub struct JobVolume {
    /// Name of the volume in mountDirs.
    #[schemars(with = "LabelName")]
    pub name: String,
    /// A claim in the job's namespace. To use a directory of a host, create a PersistentVolume and a claim for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimSource>,
    /// A ConfigMap in the job's namespace, for small text files: each key is a file.
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
    /// Path in the pods that params use: absolute, without `..`.
    #[schemars(length(min = 2, max = 1024), regex(pattern = "^(/[A-Za-z0-9_=@%+~-]([A-Za-z0-9_.=@%+~-]*))+$"))]
    pub path: String,
    /// Name of the volume.
    #[schemars(with = "LabelName")]
    pub volume: String,
    /// Directory of the volume to mount; the whole volume if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 1024),
        regex(pattern = "^[A-Za-z0-9_=@%+~-][A-Za-z0-9_.=@%+~-]*(/[A-Za-z0-9_=@%+~-][A-Za-z0-9_.=@%+~-]*)*$")
    )]
    pub sub_path: Option<String>,
}

/// Directory of the job's pods in which the files of `spec.files` are.
pub const FILES_DIR: &str = "/var/lib/millrace/files";

/// An uploaded file of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobFile {
    /// Path below `/var/lib/millrace/files`, as which params name the file.
    #[schemars(
        length(min = 1, max = 1024),
        regex(pattern = "^[A-Za-z0-9_=@%+~-][A-Za-z0-9_.=@%+~-]*(/[A-Za-z0-9_=@%+~-][A-Za-z0-9_.=@%+~-]*)*$")
    )]
    pub path: String,
    /// Digest of the uploaded content.
    #[schemars(with = "BlobDigest")]
    pub digest: String,
}

fn one_source() -> Rule {
    Rule::new("has(self.persistentVolumeClaim) != has(self.configMap)")
        .message("a volume has one source: persistentVolumeClaim or configMap")
}
