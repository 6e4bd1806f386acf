//! What a job needs in the cluster, one file per kind of child. Built from a [`Plan`] alone, without a client, so that a
//! test can look at all of it.
//!
//! Names are job (cut), a hash of the job's UID, role and index, within 63 characters and without the attempt: so the API
//! server itself refuses a second set of pods. What belongs to one attempt only, the launch document and the certificate,
//! has the attempt in its name.

mod claim;
mod identity;
mod launch;
mod mounts;
mod names;
mod network_policy;
mod pod;
mod resources;
mod service;

pub use claim::claim;
pub use identity::{Identity, secret};
pub use launch::{Unreadable, launch, resolved_job};
pub use mounts::{MODEL_DIR, OutsideMounts, check_model_dir, model_dir_path};
pub use names::{ATTEMPT, INDEX, JOB, MANAGER, Names, ROLE, UID, cs2_selector};
pub use network_policy::network_policy;
pub use pod::{CONTAINER, pods};
pub use service::{control_address, host, journal_address, service};

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use millrace_crds::decide::Role;
use millrace_crds::{ClusterSpec, Resolution, TrainJob};

/// Ports of every agent, the same in every pod: each has an address of its own.
pub mod ports {
    /// A coordinator's control port.
    pub const CONTROL: u16 = 7000;
    /// A coordinator's journal.
    pub const JOURNAL: u16 = 7001;
    /// The data port of the other roles.
    pub const DATA: u16 = 7100;
    /// `/metrics` and probes.
    pub const METRICS: u16 = 9090;
}

/// One attempt of a job, with all that its children are made from.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The job.
    pub job: &'a TrainJob,
    /// What was resolved at its first admission.
    pub resolution: &'a Resolution,
    /// The appliance, for what may change between attempts: where pods may run, how the image is fetched.
    pub cluster: &'a ClusterSpec,
    /// The attempt.
    pub attempt: u32,
    /// Its agents.
    pub wanted: &'a [(Role, u32)],
    /// Bytes each role's process needs, by the planner.
    pub bytes: &'a BTreeMap<Role, u64>,
}

impl Plan<'_> {
    /// The names of everything.
    pub fn names(&self) -> Names {
        Names::new(&self.job.name_any(), &self.job.uid().unwrap_or_default())
    }

    /// How many systems the attempt has.
    pub fn systems(&self) -> u32 {
        self.wanted.iter().find(|(role, _)| *role == Role::Cs2).map_or(0, |(_, count)| *count)
    }

    /// The checkpoint to start from, where the params name one.
    fn checkpoint_path(&self) -> Option<std::path::PathBuf> {
        let (job, _) = launch::resolved_job(self.resolution).ok()?;
        job.run.checkpoint_path.map(std::path::PathBuf::from)
    }

    /// Metadata of a child: owned by the job, labelled as its.
    fn meta(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: self.job.namespace(),
            labels: Some(self.labels()),
            owner_references: self.job.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    /// Labels of every child, the user's own among them.
    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.job.spec.labels.clone();
        labels.extend(self.names().labels());
        labels
    }
}

#[cfg(test)]
mod tests;
