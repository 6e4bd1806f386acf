//! Builds the objects that a job needs in the cluster, one file for each kind of child.
//!
//! * Children are built from an [`AttemptContext`] alone, without a client, so that a test can check all of them.
//! * A name consists of the job's name (cut), a hash of the job's UID, role and index. It has at most 63 characters and
//!   does not contain the attempt: therefore the API server itself rejects a second set of pods.
//! * Objects of one attempt only, the launch document and the certificates, have the attempt in their names.

mod claim;
mod identity;
mod launch;
mod mounts;
mod names;
mod network_policy;
mod pod;
mod reader;
mod resources;
mod service;

pub use claim::claim;
pub use identity::{credentials_secret, identities, identity_volume};
pub use launch::launch;
pub use mounts::MODEL_DIR_PATH;
pub use names::{
    APPLIANCE_LABEL, ATTEMPT_LABEL, ChildNames, FIELD_MANAGER, INDEX_LABEL, JOB_LABEL, JOB_UID_LABEL, ROLE_LABEL,
    SYSTEM_LABEL, cs2_selector,
};
pub use network_policy::network_policy;
pub use pod::{CONTAINER_NAME, EXTRA_TERMINATION_GRACE_SECONDS, pods, set_log_format};
pub use reader::{API_MANAGER, READER_LABEL, ReaderPod, reader_name, reader_policy, reader_spec};
pub use service::{control_address, host, journal_address, service};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use millrace_control::AttemptContext;

/// Ports of the agents. They are the same in every pod, because each pod has an address of its own.
pub mod ports {
    /// A coordinator's control port.
    pub const CONTROL_PORT: u16 = 7000;
    /// A coordinator's journal.
    pub const JOURNAL_PORT: u16 = 7001;
    /// Data port of the other roles.
    pub const DATA_PORT: u16 = 7100;
    /// The only port of a reader.
    pub const READER_PORT: u16 = 7200;
    /// `/metrics` and probes.
    pub const METRICS_PORT: u16 = 9090;
}

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
