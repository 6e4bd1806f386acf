//! Builds the objects that a job needs in the cluster, one file for each kind of child.
//!
//! * Children are built from an [`AttemptContext`] alone, without a client, so that a test can check all of them.
//! * Their names and labels are those of [`millrace_cluster::names`].

mod affinity;
mod bucket;
mod claim;
mod fetcher;
mod identity;
mod launch;
mod loader;
mod mounts;
mod network_policy;
mod pod;
mod reader;
mod resources;
mod service;

pub use bucket::bucket_policy;
pub use claim::claim;
pub use fetcher::{FETCHER_NAME, Fetcher, UploadServer, fetch_document};
pub use identity::{MAX_SECRET_BYTES, identities, identity_volume};
pub use launch::launch;
pub use loader::LOADER_NAME;
pub use network_policy::network_policy;
pub use pod::{CONTAINER_NAME, EXTRA_TERMINATION_GRACE_SECONDS, pods, set_log_format};
pub use reader::{READER_LABEL, ReaderPod, reader_policy};
pub use service::service;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use millrace_cluster::names::ChildNames;
use millrace_control::AttemptContext;

/// Builds the metadata of a child: owned by the job, with its labels.
fn meta(attempt: &AttemptContext<'_>, name: String) -> ObjectMeta {
    let job = attempt.job;
    let mut labels = job.spec.labels.clone();
    labels.extend(ChildNames::for_job(job).labels());
    ObjectMeta {
        name: Some(name),
        namespace: job.namespace(),
        labels: Some(labels),
        owner_references: job.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests;
