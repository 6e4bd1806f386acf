//! The custom resources of `millrace.dev/v1alpha1`: a [`TrainJob`] is a job a user submits, an [`Appliance`] the machine
//! it runs on.
//!
//! A [`FileReader`] is what the REST server asks the operator for; no user makes one.
//!
//! The Rust types here are the one source: the definitions installed in a cluster are generated from them
//! ([`definitions`]), and operator, API and clients read and write objects with them. A user's file is read strictly, with
//! lines and hints, by `millrace-params`; objects from an API server are read leniently, so that a newer or damaged one
//! never stops a watch:
//!
//! * keys these types do not know are left out;
//! * [`StoredParams`] keeps the params of a job as they stand and reads them only when asked to;
//! * for anything else that can't be read, watch `kube::core::DeserializeGuard<TrainJob>`.
//!
//! No client, no clock, no I/O.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod appliance;
mod condition;
pub mod decide;
pub mod file_reader;
mod quantity;
mod resources;
mod schema;
mod trainjob;

pub use appliance::{
    AccessMode, Amounts, Appliance, ApplianceStatus, ClusterSpec, Grant, MaxDeadlines, PriorityClasses, PullPolicy,
    SecretName, Storage,
};
pub use condition::{ConditionType, set_condition};
pub use file_reader::{FileReader, FileReaderSpec, FileReaderStatus};
pub use quantity::Quantities;
pub use resources::{Resources, RoleResources};
pub use trainjob::{
    CheckpointPolicy, CheckpointRecord, ClaimSource, ConfigSource, Deadlines, Difference, Failure, FailurePolicy,
    JobVolume, MountDir, Progress, QueuePlace, QueueReason, Resolution, Retry, RoleStatus, State, StoredParams,
    TrainJob, TrainJobSpec, TrainJobStatus,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The API group of both resources.
pub const GROUP: &str = "millrace.dev";

/// Annotation of a job: the span of the request that submitted it, a `traceparent` of W3C Trace Context.
pub const TRACEPARENT_ANNOTATION: &str = "millrace.dev/traceparent";

/// What a cluster is told about the two resources, in the order in which they are installed.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [Appliance::crd(), TrainJob::crd()]
}

/// What a cluster is told beside them: resources by which the components of the product work together.
pub fn internal_definitions() -> [CustomResourceDefinition; 1] {
    [FileReader::crd()]
}
