//! The init container that fetches the uploads of a job into a pod, before the agent starts.
//!
//! ```text
//!   launch ConfigMap: uploads.json ─┐
//!   Secret: fetcher.crt, .key ──────┼─► init container ──writes──► emptyDir ──read-only──► agent
//!   REST server: blobs ─────────────┘
//! ```
//!
//! * Only this container has the certificate for uploads, which names the job and no agent.
//! * The files have the paths that params name, as on one machine; graph document and weights are in
//!   [`UPLOADED_MODEL_DIR`].

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, KeyToPath, Pod, SecretVolumeSource, Volume, VolumeMount,
};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer};
use kube::ResourceExt;
use millrace_cluster::address::ports;
use millrace_cluster::names::{ChildNames, ROLE_LABEL};
use millrace_control::AttemptContext;
use millrace_control::launch::launch;
use millrace_crds::{FILES_DIR, JobFile, Role, UploadedModel};
use millrace_params::BlobDigest;
use millrace_protocol::launch::{FetchCommand, FetchDocument, FetchedFile, LaunchDocument};
use millrace_protocol::security::Credentials;

use super::mounts::Mounts;
use super::network_policy::{labelled, tcp};
use super::pod::{arguments, container_security, pull_policy};
use super::resources::fetcher_resources;
use crate::error::ChildError;

/// Name of the init container.
pub const FETCHER_NAME: &str = "fetch-uploads";
/// Key of the [`FetchDocument`] in the ConfigMap with the launch document.
pub const FETCH_DOCUMENT_KEY: &str = "uploads.json";
/// Name of the fetchers' certificate in the Secret of an attempt.
pub const FETCHER_IDENTITY: &str = "fetcher";
/// Directory of a pod with the graph document and the weights of a job.
const UPLOADED_MODEL_DIR: &str = "/var/lib/millrace/model";
const IDENTITY_DIR: &str = "/etc/millrace/fetcher";
const DOCUMENT_DIR: &str = "/etc/millrace/uploads";
/// Maximum size of each directory of uploads: the default limit of the REST server for a namespace. Prevents one job
/// from filling its node's disk.
const UPLOADS_SIZE_LIMIT: &str = "64Gi";

/// Returns the path of the graph document in a pod.
fn graph_path() -> PathBuf {
    Path::new(UPLOADED_MODEL_DIR).join("graph.json")
}

/// Returns the path of the initial weights in a pod.
fn weights_path() -> PathBuf {
    Path::new(UPLOADED_MODEL_DIR).join("weights.safetensors")
}

/// Replaces the digests of uploads in the launch document of an attempt by paths in its pods.
pub fn locate_uploads(attempt: &AttemptContext<'_>, document: &mut LaunchDocument) {
    let UploadedModel { graph, weights } = attempt.job.spec.model.clone().unwrap_or_default();
    if graph.is_some() && document.job.model.graph == graph {
        document.job.model.graph = Some(graph_path().display().to_string());
    }
    if weights.is_some() && document.resume.checkpoint_path == weights.map(PathBuf::from) {
        document.resume.checkpoint_path = Some(weights_path());
    }
}

/// Returns the uploads that the pods of an attempt fetch; `None` if there are none. An attempt that resumes from a
/// checkpoint of the job needs no initial weights.
///
/// # Errors
/// The job's record can't be used, or a digest is not valid.
pub fn fetch_document(attempt: &AttemptContext<'_>) -> Result<Option<FetchDocument>, ChildError> {
    let spec = &attempt.job.spec;
    if spec.uploads().next().is_none() {
        return Ok(None);
    }
    let mut document = launch(attempt)?;
    locate_uploads(attempt, &mut document);
    let UploadedModel { graph, weights } = spec.model.clone().unwrap_or_default();
    let weights = weights.filter(|_| document.resume.checkpoint_path == Some(weights_path()));
    let of_model = graph.into_iter().map(|graph| (graph_path(), graph));
    let of_model = of_model.chain(weights.into_iter().map(|weights| (weights_path(), weights)));
    let of_files = spec.files.iter().map(|JobFile { path, digest }| (Path::new(FILES_DIR).join(path), digest.clone()));
    let file = |(path, digest)| Ok(FetchedFile { path, digest: BlobDigest::new(digest)? });
    let files: Result<Vec<_>, ChildError> = of_model.chain(of_files).map(file).collect();
    Ok(Some(FetchDocument::new(attempt.job.uid().unwrap_or_default(), files?)))
}

/// Where the pods of jobs find the REST server's port for uploads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadServer {
    /// `host:port`.
    pub address: String,
    /// Namespace of the REST server's pods.
    pub namespace: String,
}

impl UploadServer {
    /// Allows the pods of `policy` to connect to the port.
    pub fn open_egress(&self, policy: &mut NetworkPolicy) {
        let labelled = |labels: &[(&str, &str)]| {
            labelled(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        let peer = NetworkPolicyPeer {
            namespace_selector: Some(labelled(&[("kubernetes.io/metadata.name", &self.namespace)])),
            pod_selector: Some(labelled(&[
                ("app.kubernetes.io/name", "millrace"),
                ("app.kubernetes.io/component", "api"),
            ])),
            ..NetworkPolicyPeer::default()
        };
        if let Some(spec) = &mut policy.spec {
            let rule = NetworkPolicyEgressRule { to: Some(vec![peer]), ports: Some(vec![tcp(ports::UPLOADS_PORT)]) };
            spec.egress.get_or_insert_default().push(rule);
        }
    }
}

/// The init containers of an attempt.
pub struct Fetcher<'a> {
    pub attempt: &'a AttemptContext<'a>,
    pub server: &'a UploadServer,
    /// The uploads of all pods.
    pub document: &'a FetchDocument,
}

impl Fetcher<'_> {
    /// Adds the init container to `pod`, and mounts what it fetches into the agent, if the agent's role reads uploads:
    /// the coordinator all of them, activation servers the files.
    pub fn add_to(&self, pod: &mut Pod) {
        let role = pod.labels().get(ROLE_LABEL).and_then(|role| Role::from_name(role));
        let (files, model) = ((FILES_DIR, "uploaded-files"), (UPLOADED_MODEL_DIR, "uploaded-model"));
        let dirs: &[_] = match role {
            Some(Role::Coordinator) => &[files, model],
            Some(Role::Activation) => &[files],
            _ => &[],
        };
        let dirs: Vec<_> =
            dirs.iter().filter(|(dir, _)| self.document.files_below(dir.as_ref()).next().is_some()).collect();
        let Some(spec) = pod.spec.as_mut().filter(|_| !dirs.is_empty()) else { return };
        let init_containers = spec.init_containers.get_or_insert_default();
        let mut mounts = self.inputs();
        for (dir, name) in &dirs {
            mounts.add_empty_dir(name, dir, UPLOADS_SIZE_LIMIT, false);
            let mount = VolumeMount {
                name: (*name).to_owned(),
                mount_path: (*dir).to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            };
            // The loader of a Python dataset reads the uploads, too.
            spec.containers.iter_mut().chain(&mut *init_containers).for_each(|container| {
                container.volume_mounts.get_or_insert_default().push(mount.clone());
            });
        }
        spec.volumes.get_or_insert_default().extend(mounts.volumes);
        let into = dirs.iter().map(|(dir, _)| PathBuf::from(dir)).collect();
        init_containers.insert(0, self.container(into, mounts.mounts));
    }

    /// Returns the volumes with the certificate and the list of uploads.
    fn inputs(&self) -> Mounts {
        let (names, number) = (ChildNames::for_job(self.attempt.job), self.attempt.number);
        let item = |key: &str, path: &str| KeyToPath { key: key.to_owned(), path: path.to_owned(), mode: None };
        let identity = SecretVolumeSource {
            secret_name: Some(names.identity(number, self.attempt.system_count())),
            items: Some(vec![
                item(&format!("{FETCHER_IDENTITY}.crt"), Credentials::CERTIFICATE_FILE),
                item(&format!("{FETCHER_IDENTITY}.key"), Credentials::KEY_FILE),
                item(Credentials::AUTHORITY_FILE, Credentials::AUTHORITY_FILE),
            ]),
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        };
        let document = ConfigMapVolumeSource {
            name: names.launch(number),
            items: Some(vec![item(FETCH_DOCUMENT_KEY, FETCH_DOCUMENT_KEY)]),
            ..ConfigMapVolumeSource::default()
        };
        let mut inputs = Mounts::default();
        let volume = Volume { secret: Some(identity), ..Volume::default() };
        inputs.add_volume("fetcher-identity", IDENTITY_DIR, volume, true);
        let volume = Volume { config_map: Some(document), ..Volume::default() };
        inputs.add_volume("uploads", DOCUMENT_DIR, volume, true);
        inputs
    }

    fn container(&self, into: Vec<PathBuf>, mounts: Vec<VolumeMount>) -> Container {
        let command = FetchCommand {
            server: self.server.address.clone(),
            identity: IDENTITY_DIR.into(),
            document: Path::new(DOCUMENT_DIR).join(FETCH_DOCUMENT_KEY),
            into,
        };
        Container {
            name: FETCHER_NAME.to_owned(),
            image: self.attempt.resolution.image.clone(),
            image_pull_policy: self.attempt.cluster.image_pull_policy.map(|policy| pull_policy(policy).to_owned()),
            command: Some(vec!["millrace-agent".to_owned()]),
            args: Some(arguments(&command.to_args())),
            resources: Some(fetcher_resources()),
            volume_mounts: Some(mounts),
            security_context: Some(container_security()),
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            ..Container::default()
        }
    }
}
