//! `Appliance`: the machine that jobs run on, and the ledger of its systems.

mod bucket;
mod deadlines;
mod priorities;
mod status;

pub use bucket::ModelDirBucket;
pub use deadlines::MaxDeadlines;
pub use priorities::PriorityClasses;
pub use status::{ApplianceStatus, Grant, ResourceAmounts};

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use millrace_params::{MachineDocument, ObjectName};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::RoleResources;
use crate::quantity::{amount, quantity_schema};
use crate::schema::{keyed_by, ranges};

/// The machine of the appliance, and how its pods run. Omitted fields have the values of a cluster of CS-2s.
#[allow(clippy::duplicated_attributes, reason = "columns of one type, rules by one function")]
#[derive(CustomResource, KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "millrace.dev",
    version = "v1alpha1",
    kind = "Appliance",
    plural = "appliances",
    category = "millrace",
    status = "ApplianceStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A cluster of emulated CS-2 systems, with MemoryX and SwarmX, that TrainJobs run on.",
    printcolumn(
        name = "Systems",
        type_ = "integer",
        json_path = ".status.capacity.systems",
        description = "Number of systems."
    ),
    printcolumn(
        name = "Used",
        type_ = "integer",
        json_path = ".status.used.systems",
        description = "Systems in use by jobs."
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waiting",
        description = "Jobs in the queue."
    ),
    printcolumn(
        name = "Observed",
        type_ = "date",
        json_path = ".status.lastObservedTime",
        description = "Age of the status: more than a minute if no operator runs."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::spec, transform = machine_ranges)]
pub struct ApplianceSpec {
    /// The machine, as a local run knows it too.
    #[serde(flatten)]
    pub machine: MachineDocument,

    /// Image of all pods; the operator's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// Image of the container that reads the Python dataset of a job that names none: an interpreter python3 with NumPy
    /// and the packages that datasets import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub loader_image: Option<String>,

    /// When a node pulls the images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,

    /// Secrets in the job's namespace with credentials for the image's registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), transform = by_name)]
    pub image_pull_secrets: Vec<SecretName>,

    /// Storage of a job without a volume for its checkpoints.
    #[serde(default)]
    pub storage: Storage,

    /// Resources of each role's pods, unless a job overrides them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<RoleResources>,

    /// PriorityClasses that jobs may name. A job that names another is not admitted.
    #[serde(default)]
    pub priority_classes: PriorityClasses,

    /// Upper bounds on the deadlines of jobs. A job with a longer deadline is not admitted.
    #[serde(default)]
    pub max_deadlines: MaxDeadlines,

    /// Whether weights, gradients and samples are encrypted between the agents of a job; true by default. Both ends of
    /// every connection authenticate in any case, and control connections are always encrypted. A change applies to
    /// attempts that start after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypt_data: Option<bool>,

    /// Labels of the nodes that pods may run on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints of nodes that pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
}

/// Where checkpoints, metrics and logs go when a job brings no volume for them: a claim named after the job, found again
/// by a job of the same name, and never deleted with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// StorageClass of the claim; the cluster's default class if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ObjectName")]
    pub storage_class_name: Option<String>,
    /// Size of the claim.
    #[serde(default = "default_size", deserialize_with = "amount")]
    #[schemars(schema_with = "quantity_schema")]
    pub size: Quantity,
    /// Nodes that may write to the claim. With ReadWriteOnce, the coordinator and MemoryX run on one node.
    #[serde(default)]
    pub access_mode: AccessMode,
    /// Bucket to which model_dirs in such claims are uploaded while their jobs run. Jobs keep the bucket that they began
    /// with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<ModelDirBucket>,
}

impl Default for Storage {
    fn default() -> Self {
        Self { storage_class_name: None, size: default_size(), access_mode: AccessMode::default(), bucket: None }
    }
}

fn default_size() -> Quantity {
    Quantity("10Gi".into())
}

/// From how many nodes a claim can be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    /// One node at a time.
    #[default]
    ReadWriteOnce,
    /// Any number of nodes.
    ReadWriteMany,
}

/// When a node fetches an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    /// Every time a pod starts.
    Always,
    /// If the node does not have the image.
    IfNotPresent,
    /// Never: the node must already have the image.
    Never,
}

/// A Secret by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretName {
    /// Name of the Secret.
    #[schemars(with = "ObjectName")]
    pub name: String,
}

/// Adds the ranges of the reader of appliance documents. The maximum of `systems` is smaller, because the ledger
/// must fit in one object.
fn machine_ranges(schema: &mut Schema) {
    ranges(
        schema,
        &[
            ("systems", 1.0, 1024.0),
            ("wafer.utilisation", 0.0, 1.0),
            ("memoryx.shards", 1.0, 4096.0),
            ("memoryx.replicas", 1.0, 3.0),
            ("swarmx.fanOut", 2.0, 4.0),
            ("swarmx.nodes", 1.0, 65_536.0),
            ("activationServers", 1.0, 4096.0),
            ("threads", 0.0, 4096.0),
            ("link.windowChunks", 1.0, 4096.0),
        ],
    );
}

fn by_name(schema: &mut Schema) {
    keyed_by(schema, "name");
}
