//! The custom resources of `millrace.dev/v1alpha1`: [`TrainJob`], a job that a user submits, [`Appliance`], the machine
//! that runs it, and [`FileReader`], which the REST server creates for the operator, never a user.
//!
//! The Rust types are the only source: the definitions installed in a cluster are generated from them
//! ([`definitions`]), and operator, API and clients read and write objects with them.
//!
//! * A user's file is read strictly, with lines and hints, by `millrace-params`.
//! * Objects from an API server are read leniently, so that a newer or damaged object never stops a watch: unknown keys
//!   are ignored, and [`StoredParams`] stores the params of a job unread until [`StoredParams::read`]. For other
//!   objects that can't be read, watch `kube::core::DeserializeGuard<TrainJob>`.
//! * There are no clients, no clock and no I/O. What happens to a job is decided in `millrace-lifecycle`.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod appliance;
mod condition;
pub mod file_reader;
mod quantity;
mod resources;
mod schema;
mod trainjob;

pub use appliance::{
    AccessMode, Appliance, ApplianceSpec, ApplianceStatus, Grant, ImagePullPolicy, MaxDeadlines, ModelDirBucket,
    PriorityClasses, ResourceAmounts, SecretName, Storage,
};
pub use condition::ConditionType;
pub use file_reader::{FileReader, FileReaderSpec, FileReaderStatus};
pub use millrace_params::Role;
pub use quantity::ResourceList;
pub use resources::{Resources, RoleResources};
pub use trainjob::{
    CheckpointPolicy, CheckpointStatus, CompletedPhases, ConfigMapSource, Deadlines, FILES_DIR, FailurePolicy,
    FailureStatus, JobFile, JobProgress, JobState, JobVolume, LossSpikeAction, LossSpikePolicy, LostAgentStatus,
    MountedDir, OverruledKey, PersistentVolumeClaimSource, QueueReason, QueueStatus, ResolvedJob, ResolvedPhase,
    RetryStatus, RoleStatus, StoredParams, TrainJob, TrainJobSpec, TrainJobStatus, UploadedModel,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The API group of all resources.
pub const GROUP: &str = "millrace.dev";

/// Annotation of a job with the span of the request that submitted it, a `traceparent` of W3C Trace Context.
pub const TRACEPARENT_ANNOTATION: &str = "millrace.dev/traceparent";

/// Returns the definitions of the resources that users create, in the order in which they are installed.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [Appliance::crd(), TrainJob::crd()]
}

/// Returns the definitions of the resources that only components of the product create.
pub fn internal_definitions() -> [CustomResourceDefinition; 1] {
    [FileReader::crd()]
}
