//! `TrainJob`: a training job, its spec as the user writes it and its status as the operator observes it.

mod failure_policy;
mod params;
mod progress;
mod state;
mod status;
mod volumes;

pub use failure_policy::{FailurePolicy, LossSpikeAction, LossSpikePolicy};
pub use params::StoredParams;
pub use progress::{
    CheckpointStatus, FailureStatus, JobProgress, LostAgentStatus, QueueReason, QueueStatus, RetryStatus, RoleStatus,
};
pub use state::JobState;
pub(crate) use status::never_decreases;
pub use status::{CompletedPhases, OverruledKey, ResolvedJob, ResolvedPhase, TrainJobStatus};
pub use volumes::{ConfigMapSource, FILES_DIR, JobFile, JobVolume, MountedDir, PersistentVolumeClaimSource};

use std::collections::BTreeMap;
use std::path::Path;

use kube::core::{Reason, Rule};
use kube::{CustomResource, KubeSchema};
use millrace_params::{BlobDigest, Mode, ObjectName};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::RoleResources;
use crate::schema::keyed_by;

/// A training job: the model, its data and its optimizer as a params document, and the number of CS-2 systems. To go
/// from one system to sixteen, change only numCsx; the results are bit-identical.
#[allow(clippy::duplicated_attributes, reason = "columns of one type, rules by one function")]
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "millrace.dev",
    version = "v1alpha1",
    kind = "TrainJob",
    plural = "trainjobs",
    shortname = "tj",
    category = "millrace",
    namespaced,
    status = "TrainJobStatus",
    derive = "PartialEq",
    doc = "A training job on an appliance of emulated CS-2 systems.",
    validation = job_name_rule(),
    validation = immutable_when_finished("numCsx"),
    validation = immutable_when_finished("suspend"),
    scale(
        spec_replicas_path = ".spec.numCsx",
        status_replicas_path = ".status.numCsx",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Succeeded")].reason"#,
        description = "What the job is doing, or why it ended."
    ),
    printcolumn(
        name = "Step",
        type_ = "integer",
        json_path = ".status.progress.step",
        description = "The last committed step."
    ),
    printcolumn(
        name = "Of",
        type_ = "integer",
        json_path = ".status.progress.totalSteps",
        description = "The step the job trains to."
    ),
    printcolumn(
        name = "Loss",
        type_ = "string",
        json_path = ".status.progress.loss",
        description = "The loss of the last step."
    ),
    printcolumn(
        name = "Rate",
        type_ = "string",
        json_path = ".status.progress.rate",
        description = "Samples per second."
    ),
    printcolumn(
        name = "CSX",
        type_ = "integer",
        json_path = ".status.displayedCsx",
        description = "Systems of the current or last attempt; of a waiting job, those that it requests."
    ),
    printcolumn(
        name = "Restarts",
        type_ = "integer",
        json_path = ".status.restarts",
        description = "Number of restarts."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Queue",
        type_ = "integer",
        json_path = ".status.queue.position",
        description = "The job's position in the queue.",
        priority = 1
    ),
    printcolumn(
        name = "Priority",
        type_ = "string",
        json_path = ".spec.priorityClassName",
        description = "The job's PriorityClass.",
        priority = 1
    ),
    printcolumn(
        name = "Attempt",
        type_ = "integer",
        json_path = ".status.attempt",
        description = "Number of the current attempt.",
        priority = 1
    ),
    printcolumn(
        name = "Next",
        type_ = "string",
        json_path = ".status.retry.nextAttemptTime",
        description = "Earliest start of the next attempt after a failed one.",
        priority = 1
    ),
    printcolumn(
        name = "Checkpoint",
        type_ = "integer",
        json_path = ".status.checkpoint.step",
        description = "The step of the newest checkpoint.",
        priority = 1
    ),
    printcolumn(
        name = "Updated",
        type_ = "date",
        json_path = ".status.progress.lastUpdateTime",
        description = "Time since a step was last reported.",
        priority = 1
    ),
    printcolumn(
        name = "Observed",
        type_ = "date",
        json_path = ".status.lastObservedTime",
        description = "Age of the status, which is written every 30 s while the job has systems, otherwise when \
            something changes.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::spec)]
#[x_kube(
    validation = required_immutable("params"),
    validation = optional_immutable("laterPhases"),
    validation = required_immutable("appliance"),
    validation = optional_immutable("model"),
    validation = optional_immutable("mode"),
    validation = optional_immutable("files"),
    validation = optional_immutable("volumes"),
    validation = optional_immutable("mountDirs"),
    validation = optional_immutable("resources"),
    validation = optional_immutable("loaderImage"),
    validation = optional_immutable("labels"),
    validation = mounts_name_volumes(),
    validation = volumes_are_mounted(),
    validation = min_csx_is_reachable(),
)]
pub struct TrainJobSpec {
    /// How many CS-2 systems to use. May be changed while the job runs (kubectl scale): it continues without a restart,
    /// on more systems once it has them. At most the number of leaves of a batch, which follows from params.
    #[schemars(range(min = 1, max = 1024))]
    pub num_csx: u32,

    /// Minimum number of systems with which an attempt continues while lost ones are replaced. May be changed while the
    /// job runs.
    #[serde(default = "default_min_csx")]
    #[schemars(range(min = 1, max = 1024))]
    pub min_csx: u32,

    /// The params document in the format of the public model zoo: train_input, eval_input, model, optimizer and
    /// runconfig, with keys in snake case. If a key of its runconfig differs from a field of this spec, the field wins,
    /// and status.resolved lists the difference. Immutable.
    pub params: StoredParams,

    /// The params of the phases that follow params, each in the same format. A phase continues from the last checkpoint
    /// of the one before: all have the same model_dir, and those that train have increasing runconfig.max_steps.
    /// Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 15), schema_with = "params::later_phases")]
    pub later_phases: Vec<StoredParams>,

    /// Uploads that take the place of files that params name: a graph document, and initial weights. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<UploadedModel>,

    /// Mode of the job; if omitted, params.runconfig.mode, or else train. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,

    /// The Appliance to run on. Immutable.
    #[serde(default = "default_appliance")]
    #[schemars(with = "ObjectName", length(max = 63))]
    pub appliance: String,

    /// Whether the job is suspended. A running job saves its state, releases its systems, and resumes from the same
    /// step when this becomes false again. A job that is created suspended is not queued.
    #[serde(default)]
    pub suspend: bool,

    /// PriorityClass of the job, one of those that the appliance's priorityClasses allow. Jobs with a higher value come
    /// first in the queue; with equal values, older jobs do. If omitted, the value is that of the cluster's default
    /// class, or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ObjectName")]
    pub priority_class_name: Option<String>,

    /// Uploaded data of the job, below `/var/lib/millrace/files` in its pods. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), transform = by_path)]
    pub files: Vec<JobFile>,

    /// Volumes with training data or checkpoints. Without a volume, checkpoints, metrics and logs are stored in a claim
    /// of the appliance's storage, which is named after the job and is not deleted with it. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = by_name)]
    pub volumes: Vec<JobVolume>,

    /// Directories of the job's pods at which volumes are mounted, for the paths in params. The coordinator and MemoryX
    /// write to the mount with runconfig.model_dir. All other mounts are read-only, for the coordinator and the
    /// activation servers. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = by_path)]
    pub mount_dirs: Vec<MountedDir>,

    /// How the state of a job that must stop is saved.
    #[serde(default)]
    pub checkpoint: CheckpointPolicy,

    /// Limits on the time that the job may take to start, for a step, and in total.
    #[serde(default)]
    pub deadlines: Deadlines,

    /// What happens after failures of agents, and after spikes of the loss.
    #[serde(default)]
    pub failure_policy: FailurePolicy,

    /// Seconds after the end of the job until it is deleted with its pods; never deleted if omitted. Checkpoints and
    /// logs are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<u32>,

    /// Labels of the job's pods, services and claims in addition to the operator's. Immutable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = label_values)]
    #[x_kube(validation = label_keys())]
    pub labels: BTreeMap<String, String>,

    /// Image of the container that reads a Python dataset: an interpreter python3 with NumPy and the packages that the
    /// dataset imports. The appliance's by default. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub loader_image: Option<String>,

    /// Resources of the job's pods that differ from the appliance's. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<RoleResources>,
}

/// Files of a model, uploaded to the namespace of the job with the client or the REST API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadedModel {
    /// Digest of a graph document, in place of params.model.graph, also in later phases that name the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BlobDigest>")]
    pub graph: Option<String>,
    /// Digest of a safetensors file with the initial weights by the names of the model's tensors, in place of
    /// params.runconfig.checkpoint_path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BlobDigest>")]
    pub weights: Option<String>,
}

/// How the state of a job that must stop is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointPolicy {
    /// Seconds that a job has to save its state if it is suspended or moved. Then its pods are stopped, and it resumes
    /// from its last checkpoint.
    #[serde(default = "default_grace")]
    #[schemars(range(min = 0, max = 86_400))]
    pub grace_period_seconds: u32,
}

/// How long the job may take; the appliance's maxDeadlines bound it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// Maximum seconds from granting systems until all agents are ready. Until then the condition RolesReady names what
    /// is missing, such as an image. After that, a job whose pods can't be scheduled releases its systems and is queued
    /// again with increasing backoff; any other job ends as DeadlineExceeded.
    #[serde(default = "default_startup")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub startup_seconds: u32,
    /// Maximum seconds between two committed steps or two evaluated batches. A job that takes longer is restarted from
    /// its last committed step, as often as failurePolicy allows.
    #[serde(default = "default_progress")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub progress_seconds: u32,
    /// Seconds that the job may use systems, in all attempts together, before it ends as DeadlineExceeded; no limit if
    /// omitted. Time in the queue and time suspended do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 315_360_000))]
    pub active_seconds: Option<u32>,
}

const fn default_min_csx() -> u32 {
    1
}

fn default_appliance() -> String {
    "default".into()
}

const fn default_grace() -> u32 {
    300
}

const fn default_startup() -> u32 {
    900
}

const fn default_progress() -> u32 {
    1800
}

impl Default for CheckpointPolicy {
    fn default() -> Self {
        Self { grace_period_seconds: default_grace() }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { startup_seconds: default_startup(), progress_seconds: default_progress(), active_seconds: None }
    }
}

impl TrainJobSpec {
    /// Returns the digests of all uploads that the job names.
    pub fn uploads(&self) -> impl Iterator<Item = &str> {
        let model = self.model.iter().flat_map(|model| model.graph.iter().chain(&model.weights));
        model.chain(self.files.iter().map(|file| &file.digest)).map(String::as_str)
    }

    /// Creates the spec of a job with these params on `num_csx` systems of the appliance `default`, with all other
    /// defaults.
    pub fn new(num_csx: u32, params: StoredParams) -> Self {
        Self {
            num_csx,
            min_csx: default_min_csx(),
            params,
            later_phases: Vec::new(),
            model: None,
            mode: None,
            appliance: default_appliance(),
            suspend: false,
            priority_class_name: None,
            files: Vec::new(),
            volumes: Vec::new(),
            mount_dirs: Vec::new(),
            checkpoint: CheckpointPolicy::default(),
            deadlines: Deadlines::default(),
            failure_policy: FailurePolicy::default(),
            ttl_seconds_after_finished: None,
            labels: BTreeMap::new(),
            loader_image: None,
            resources: None,
        }
    }

    /// Returns the entry of `mountDirs` that contains `path`, the deepest of nested ones. A relative entry, which the
    /// schema rejects, contains nothing; otherwise the empty path would contain every other.
    pub fn mount_holding(&self, path: &Path) -> Option<&MountedDir> {
        let is_held_by = |mount: &&MountedDir| Path::new(&mount.path).is_absolute() && path.starts_with(&mount.path);
        let holders = self.mount_dirs.iter().filter(is_held_by);
        holders.max_by_key(|mount| mount.path.len())
    }
}

/// Requires a name from which names of services, labels and claims can be built.
fn job_name_rule() -> Rule {
    Rule::new("size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message(
        "metadata.name: a job's name has at most 63 lower-case letters, digits and hyphens, and begins with a letter",
    )
}

fn min_csx_is_reachable() -> Rule {
    Rule::new("self.minCsx <= self.numCsx")
        .message("minCsx must not be greater than numCsx")
        .field_path(".minCsx")
        .reason(Reason::FieldValueInvalid)
}

/// Allows changes of a field until the job has finished: a later change would be accepted without effect.
fn immutable_when_finished(field: &str) -> Rule {
    let finished = "has(oldSelf.status) && has(oldSelf.status.conditions) && \
        oldSelf.status.conditions.exists(c, c.type == 'Finished' && c.status == 'True')";
    let is_unchanged = format!(
        "has(self.spec.{field}) == has(oldSelf.spec.{field}) && \
         (!has(self.spec.{field}) || self.spec.{field} == oldSelf.spec.{field})"
    );
    let message = format!("the job has finished and {field} has no effect: create another job");
    Rule::new(format!("!({finished}) || ({is_unchanged})"))
        .message(message.as_str())
        .field_path(format!(".spec.{field}"))
        .reason(Reason::FieldValueForbidden)
}

/// Rejects changes of a required field that defines the training.
fn required_immutable(field: &str) -> Rule {
    immutable(field, format!("self.{field} == oldSelf.{field}"))
}

/// Rejects changes of an optional field that defines the training, including adding or removing it.
fn optional_immutable(field: &str) -> Rule {
    let has_same_presence = format!("has(self.{field}) == has(oldSelf.{field})");
    immutable(field, format!("{has_same_presence} && (!has(self.{field}) || self.{field} == oldSelf.{field})"))
}

fn immutable(field: &str, rule: String) -> Rule {
    let message = format!("{field} is immutable: create another job instead");
    Rule::new(rule).message(message.as_str()).field_path(format!(".{field}")).reason(Reason::FieldValueForbidden)
}

fn mounts_name_volumes() -> Rule {
    Rule::new(
        "!has(self.mountDirs) || self.mountDirs.all(m, has(self.volumes) && self.volumes.exists(v, v.name == m.volume))",
    )
    .message("each of mountDirs must name one of the volumes")
    .field_path(".mountDirs")
}

fn volumes_are_mounted() -> Rule {
    Rule::new(
        "!has(self.volumes) || self.volumes.all(v, has(self.mountDirs) && self.mountDirs.exists(m, m.volume == v.name))",
    )
    .message("each of the volumes must be mounted by one of mountDirs")
    .field_path(".volumes")
}

fn label_keys() -> Rule {
    Rule::new("self.all(key, !format.qualifiedName().validate(key).hasValue() && !key.contains('millrace.dev/'))")
        .message("a label's key is a name, optionally with a prefix other than millrace.dev")
}

fn label_values(schema: &mut Schema) {
    schema.insert(
        "additionalProperties".into(),
        serde_json::json!({"type": "string", "maxLength": 63, "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"}),
    );
    schema.insert("maxProperties".into(), 32.into());
}

fn by_name(schema: &mut Schema) {
    keyed_by(schema, "name");
}

fn by_path(schema: &mut Schema) {
    keyed_by(schema, "path");
}
