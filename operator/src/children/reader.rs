//! The pod that serves a job's files while no agents of the job run. It has no credentials, mounts one claim read-only,
//! and ends soon. The operator creates it for a [`FileReader`]; it is not one of the job's own pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Probe, Secret, SecretVolumeSource, TCPSocketAction,
    Volume, VolumeMount,
};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use millrace_cluster::address::ports;
use millrace_cluster::credentials::credentials_secret;
use millrace_cluster::names::FIELD_MANAGER;
use millrace_crds::{ApplianceSpec, FileReader, FileReaderSpec};
use millrace_protocol::security::Credentials;

use super::affinity::near_coordinator;
use super::mounts::Mounts;
use super::network_policy::followers;
use super::pod::{base_pod_spec, container_security, pull_policy};
use super::resources::reader_resources;

/// Label of readers: the UID of the job whose files they serve.
pub const READER_LABEL: &str = "millrace.dev/reader";
const IDENTITY_DIR: &str = "/etc/millrace/identity";
const SCRATCH_DIR: &str = "/tmp/millrace";
/// Maximum size of the scratch directory: exports have at most 32 GiB.
const SCRATCH_SIZE_LIMIT: &str = "33Gi";
/// Seconds without a request after which a reader ends.
const READER_IDLE_SECONDS: u32 = 120;
/// Name of the claim's volume.
const MODEL_DIR_VOLUME: &str = "model-dir";

/// Everything that a reader is built from.
pub struct ReaderPod<'a> {
    pub request: &'a FileReader,
    /// The appliance, for the requirements of its nodes.
    pub cluster: &'a ApplianceSpec,
    pub image: &'a str,
}

impl ReaderPod<'_> {
    pub fn pod(&self) -> Pod {
        let mut mounts = Mounts::default();
        let claim =
            PersistentVolumeClaimVolumeSource { claim_name: self.request.spec.claim_name.clone(), read_only: None };
        mounts.add_volume(
            MODEL_DIR_VOLUME,
            &self.request.spec.mount_path,
            Volume { persistent_volume_claim: Some(claim), ..Volume::default() },
            true,
        );
        for mount in &mut mounts.mounts {
            mount.sub_path.clone_from(&self.request.spec.sub_path);
        }
        let identity = SecretVolumeSource {
            secret_name: Some(self.request.name_any()),
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        };
        mounts.add_volume("identity", IDENTITY_DIR, Volume { secret: Some(identity), ..Volume::default() }, true);
        mounts.add_empty_dir("scratch", SCRATCH_DIR, SCRATCH_SIZE_LIMIT, false);
        Pod {
            metadata: self.metadata(),
            spec: Some(PodSpec {
                containers: vec![self.container(mounts.mounts)],
                volumes: Some(mounts.volumes),
                termination_grace_period_seconds: Some(2),
                affinity: Some(near_coordinator(&self.request.spec.job_uid)),
                tolerations: Some(self.cluster.tolerations.clone()),
                ..base_pod_spec(self.cluster)
            }),
            ..Pod::default()
        }
    }

    /// Returns the name in its certificate, which is unique among all servers.
    pub fn server_name(&self) -> String {
        format!("{}.{}", self.request.spec.job_uid, self.request.name_any())
    }

    /// Builds the Secret with the pod's identity `issued`, and the authority of the clients that it admits.
    pub fn secret(&self, issued: Credentials) -> Secret {
        let credentials = Credentials { authority: self.request.spec.client_authority.clone(), ..issued };
        Secret { immutable: Some(true), ..credentials_secret(&credentials, self.metadata()) }
    }

    fn metadata(&self) -> ObjectMeta {
        let mut labels = labels();
        labels.insert(READER_LABEL.to_owned(), self.request.spec.job_uid.clone());
        ObjectMeta {
            name: self.request.metadata.name.clone(),
            namespace: self.request.namespace(),
            labels: Some(labels),
            owner_references: self.request.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    fn container(&self, mounts: Vec<VolumeMount>) -> Container {
        let FileReaderSpec { model_dir, job_uid, .. } = &self.request.spec;
        let arguments = [
            "reader".to_owned(),
            format!("--model-dir={model_dir}"),
            format!("--exports={SCRATCH_DIR}"),
            format!("--identity={IDENTITY_DIR}"),
            format!("--listen=0.0.0.0:{}", ports::READER_PORT),
            format!("--job-uid={job_uid}"),
            format!("--idle-seconds={READER_IDLE_SECONDS}"),
        ];
        Container {
            name: "reader".to_owned(),
            image: Some(self.image.to_owned()),
            image_pull_policy: self.cluster.image_pull_policy.map(|policy| pull_policy(policy).to_owned()),
            command: Some(vec!["millrace-api".to_owned()]),
            args: Some(arguments.into()),
            volume_mounts: Some(mounts),
            readiness_probe: Some(Probe {
                tcp_socket: Some(TCPSocketAction { port: IntOrString::Int(ports::READER_PORT.into()), host: None }),
                period_seconds: Some(1),
                ..Probe::default()
            }),
            security_context: Some(container_security()),
            resources: Some(reader_resources()),
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            ..Container::default()
        }
    }
}

fn labels() -> BTreeMap<String, String> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    BTreeMap::from([
        label("app.kubernetes.io/name", "millrace"),
        label("app.kubernetes.io/managed-by", FIELD_MANAGER),
        label("app.kubernetes.io/component", "reader"),
    ])
}

/// Builds the network rules of a namespace's readers: only the REST server may connect to them, and they may connect to
/// nothing.
pub fn reader_policy(namespace: &str) -> NetworkPolicy {
    let exists = LabelSelectorRequirement { key: READER_LABEL.to_owned(), operator: "Exists".to_owned(), values: None };
    let port = NetworkPolicyPort {
        protocol: Some("TCP".to_owned()),
        port: Some(IntOrString::Int(ports::READER_PORT.into())),
        ..NetworkPolicyPort::default()
    };
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some("millrace-readers".to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels()),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_expressions: Some(vec![exists]), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule { from: Some(vec![followers()]), ports: Some(vec![port]) }]),
            egress: Some(Vec::new()),
        }),
    }
}
