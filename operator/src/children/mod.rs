//! Builds the objects that a job needs in the cluster, one file for each kind of child.
//!
//! * Children are built from an [`Attempt`] alone, without a client, so that a test can check all of them.
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
pub use mounts::MODEL_DIR;
pub use names::{APPLIANCE, ATTEMPT, INDEX, JOB, MANAGER, Names, ROLE, SYSTEM, UID, cs2_selector};
pub use network_policy::network_policy;
pub use pod::{CONTAINER, ENDING, pods, set_log_format};
pub use reader::{API, READER, Reader, reader_name, reader_policy, reader_spec};
pub use service::{control_address, host, journal_address, service};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use millrace_control::Attempt;

/// Ports of the agents. They are the same in every pod, because each pod has an address of its own.
pub mod ports {
    /// A coordinator's control port.
    pub const CONTROL: u16 = 7000;
    /// A coordinator's journal.
    pub const JOURNAL: u16 = 7001;
    /// Data port of the other roles.
    pub const DATA: u16 = 7100;
    /// The only port of a reader.
    pub const READER: u16 = 7200;
    /// `/metrics` and probes.
    pub const METRICS: u16 = 9090;
}

/// Builds the metadata of a child: owned by the job, with its labels.
fn meta(attempt: &Attempt<'_>, name: String) -> ObjectMeta {
    let job = attempt.job;
    let mut labels = job.spec.labels.clone();
    labels.extend(Names::of(job).labels());
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
