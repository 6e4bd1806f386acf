//! `FileReader`: a request for a pod that serves the files of one job.
//!
//! * The REST server creates the request. The operator creates the pod, its certificate and its network rules from a
//!   template of its own. Therefore the REST server, which is reachable from the network, needs no right to create pods
//!   or secrets anywhere.
//! * The pod mounts one claim of its namespace, read-only. A request can name nothing else to mount.

use kube::core::{Reason, Rule};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// The files to serve, and the clients that may read them. Immutable.
#[allow(clippy::duplicated_attributes, reason = "columns of one type")]
#[derive(CustomResource, KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "millrace.dev",
    version = "v1alpha1",
    kind = "FileReader",
    plural = "filereaders",
    namespaced,
    status = "FileReaderStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A request of the REST server for a pod that serves the files of one job. The operator creates the pod.",
    printcolumn(
        name = "Job",
        type_ = "string",
        json_path = ".spec.jobName",
        description = "The job whose files are served."
    ),
    printcolumn(
        name = "Address",
        type_ = "string",
        json_path = ".status.address",
        description = "Address of the reader."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::spec)]
#[x_kube(validation = immutable_spec())]
pub struct FileReaderSpec {
    /// UID of the job.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9-]+$"))]
    pub job_uid: String,
    /// Name of the job.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub job_name: String,
    /// The Appliance of the job, which selects the nodes of its pods.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub appliance: String,
    /// The directory to serve, as a path in the pod.
    #[schemars(length(min = 2, max = 2048), regex(pattern = "^(/[A-Za-z0-9_=@%+~-]([A-Za-z0-9_.=@%+~-]*))+$"))]
    pub model_dir: String,
    /// The claim with the directory, in the reader's namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub claim_name: String,
    /// Mount path of the claim.
    #[schemars(length(min = 2, max = 1024), regex(pattern = "^(/[A-Za-z0-9_=@%+~-]([A-Za-z0-9_.=@%+~-]*))+$"))]
    pub mount_path: String,
    /// Directory of the claim to mount; the whole claim if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 1024),
        regex(pattern = "^[A-Za-z0-9_=@%+~-][A-Za-z0-9_.=@%+~-]*(/[A-Za-z0-9_=@%+~-][A-Za-z0-9_.=@%+~-]*)*$")
    )]
    pub sub_path: Option<String>,
    /// Certificate of the authority whose clients are authorized, in PEM. The private key never leaves the client.
    #[schemars(length(min = 1, max = 8192))]
    pub client_authority: String,
}

/// Observed state of the reader.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::status)]
pub struct FileReaderStatus {
    /// Address of the reader, `host:port`; set when it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub address: Option<String>,
    /// Name in the reader's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub server_name: Option<String>,
    /// Certificate of the authority that issued the reader's certificate, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub server_authority: Option<String>,
    /// Why the files can't be served: ClaimNotFound or TooManyReaders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub reason: Option<String>,
    /// The reason as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
}

/// Reason: the claim does not exist.
pub const CLAIM_NOT_FOUND: &str = "ClaimNotFound";
/// Reason: the maximum number of readers is running.
pub const TOO_MANY_READERS: &str = "TooManyReaders";

fn immutable_spec() -> Rule {
    Rule::new("self == oldSelf")
        .message("a FileReader is immutable: create another")
        .reason(Reason::FieldValueForbidden)
}
