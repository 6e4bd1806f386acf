//! The names and labels of the objects that belong to a job. The operator creates the objects, the REST server finds
//! them by name.
//!
//! A name consists of the job's name (cut), a hash of the job's UID, role and index. It has at most 63 characters and
//! does not contain the attempt: therefore the API server itself rejects a second set of pods. Objects of one attempt
//! only, the launch document and the certificates, have the attempt in their names.

use std::collections::BTreeMap;

use kube::ResourceExt;
use millrace_crds::{Role, TrainJob};

/// Label: the job's name.
pub const JOB_LABEL: &str = "millrace.dev/job";
/// Label: the job's UID. A job that is deleted and created again has another.
pub const JOB_UID_LABEL: &str = "millrace.dev/job-uid";
/// Label: the attempt of a pod.
pub const ATTEMPT_LABEL: &str = "millrace.dev/attempt";
/// Label: the role of a pod.
pub const ROLE_LABEL: &str = "millrace.dev/role";
/// Label: the agent's number within the role, from 0.
pub const INDEX_LABEL: &str = "millrace.dev/index";
/// Label of a system's pod: the name of the system, such as csx-0.
pub const SYSTEM_LABEL: &str = "millrace.dev/system";
/// Label of a system's pod: the appliance of the system.
pub const APPLIANCE_LABEL: &str = "millrace.dev/appliance";
/// Field manager and `app.kubernetes.io/managed-by` of all objects that the operator creates.
pub const FIELD_MANAGER: &str = "millrace-operator";

/// Maximum length of the name of a pod or service.
const MAX_NAME_LENGTH: usize = 63;
/// Characters of the UID's hash, 32 bits; the name also distinguishes jobs.
const HASH_LENGTH: usize = 8;

/// The names of a job's children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildNames {
    job: String,
    uid: String,
    hash: String,
}

impl ChildNames {
    pub fn new(job: &str, uid: &str) -> Self {
        let hash = blake3::hash(uid.as_bytes()).to_hex()[..HASH_LENGTH].to_owned();
        Self { job: job.to_owned(), uid: uid.to_owned(), hash }
    }

    pub fn for_job(job: &TrainJob) -> Self {
        Self::new(&job.name_any(), &job.uid().unwrap_or_default())
    }

    /// Returns `<job, cut>-<hash>-<what>`.
    fn child(&self, suffix: &str) -> String {
        let max_chars = MAX_NAME_LENGTH.saturating_sub(HASH_LENGTH + suffix.len() + 2);
        let job: String = self.job.chars().take(max_chars).collect();
        format!("{}-{}-{suffix}", job.trim_end_matches('-'), self.hash)
    }

    /// Returns the name of an agent's pod.
    pub fn pod(&self, role: Role, index: u32) -> String {
        self.child(&format!("{role}-{index}"))
    }

    /// Returns the name of the coordinator's service.
    pub fn coordinator(&self) -> String {
        self.child(Role::Coordinator.as_str())
    }

    /// Returns the name of an attempt's launch document.
    pub fn launch(&self, attempt: u32) -> String {
        self.child(&format!("launch-{attempt}"))
    }

    /// Returns the name of the Secret with the certificates of an attempt's agents on `num_csx` systems.
    pub fn identity(&self, attempt: u32, num_csx: u32) -> String {
        self.child(&format!("identity-{attempt}-{num_csx}"))
    }

    /// Returns a name for a reader of the job's files, unique if `tail` is.
    pub fn reader(&self, tail: &str) -> String {
        self.child(&format!("reader-{tail}"))
    }

    pub fn network_policy(&self) -> String {
        self.child("agents")
    }

    /// Returns the name of the policy that lets the coordinator connect to the bucket of model_dir.
    pub fn bucket_policy(&self) -> String {
        self.child("bucket")
    }

    /// Returns the name of model_dir's claim. It depends on the job's name alone, so that a job of the same name uses
    /// the claim again. It is never deleted with a job.
    pub fn model_dir_claim(&self) -> String {
        let suffix = "-model-dir";
        let job: String = self.job.chars().take(MAX_NAME_LENGTH - suffix.len()).collect();
        format!("{}{suffix}", job.trim_end_matches('-'))
    }

    /// Returns the labels of all children.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        BTreeMap::from([
            label("app.kubernetes.io/name", "millrace"),
            label("app.kubernetes.io/managed-by", FIELD_MANAGER),
            label(JOB_LABEL, &self.job),
            label(JOB_UID_LABEL, &self.uid),
        ])
    }

    /// Returns the labels that select all pods of the job.
    pub fn selector(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(JOB_UID_LABEL.to_owned(), self.uid.clone())])
    }

    /// Returns [`ChildNames::selector`] as the text of a label selector.
    pub fn selector_text(&self) -> String {
        format!("{JOB_UID_LABEL}={}", self.uid)
    }
}

/// Returns the label selector of a job's systems.
pub fn cs2_selector(job: &TrainJob) -> String {
    format!("{},{ROLE_LABEL}={}", ChildNames::for_job(job).selector_text(), Role::Cs2)
}
