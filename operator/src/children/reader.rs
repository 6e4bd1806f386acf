//! The pod that serves a job's files while nothing else of it runs: without credentials, model_dir mounted read-only, gone
//! soon. It is the API server's child and beside the job's own, by which it is not counted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Container, EmptyDirVolumeSource, Pod, PodAffinity, PodAffinityTerm, PodSpec, Probe, Secret,
    SecretVolumeSource, TCPSocketAction, Volume, VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use millrace_crds::decide::Role;
use millrace_crds::{ClusterSpec, Resolution, TrainJob};

use super::mounts::Mounts;
use super::network_policy::followers;
use super::pod::{container_security, pull_policy, spec};
use super::resources::of_reader;
use super::{Identity, Names, ROLE, ports};

/// Label of readers: the UID of the job whose files they serve.
pub const READER: &str = "millrace.dev/reader";
/// `app.kubernetes.io/managed-by` of what the API server makes.
pub const API: &str = "millrace-api";
const IDENTITY_DIR: &str = "/etc/millrace/identity";
const SCRATCH_DIR: &str = "/tmp/millrace";

/// What a reader is made from.
pub struct Reader<'a> {
    /// Whose files.
    pub job: &'a TrainJob,
    /// What was resolved at its admission.
    pub resolution: &'a Resolution,
    /// The appliance, for what its nodes want.
    pub cluster: &'a ClusterSpec,
    /// Its name, and that of its secret.
    pub name: &'a str,
    /// What it runs: the API server's own image.
    pub image: &'a str,
    /// Seconds after which a reader nobody asks ends.
    pub idle_seconds: u32,
    /// Whether the job is still there, so that its readers end with it.
    pub owned: bool,
}

impl Reader<'_> {
    /// The pod.
    pub fn pod(&self) -> Pod {
        let mut metadata = self.metadata();
        metadata.owner_references = self.job.owner_ref(&()).filter(|_| self.owned).map(|owner| vec![owner]);
        let mut mounts = Mounts::default();
        mounts.model_dir(&self.job.spec, self.resolution);
        for mount in &mut mounts.mounts {
            mount.read_only = Some(true);
        }
        let identity = SecretVolumeSource {
            secret_name: Some(self.name.to_owned()),
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        };
        mounts.own("identity", IDENTITY_DIR, Volume { secret: Some(identity), ..Volume::default() }, true);
        let scratch = EmptyDirVolumeSource::default();
        mounts.own("scratch", SCRATCH_DIR, Volume { empty_dir: Some(scratch), ..Volume::default() }, false);
        Pod {
            metadata,
            spec: Some(PodSpec {
                containers: vec![self.container(mounts.mounts)],
                volumes: Some(mounts.volumes),
                termination_grace_period_seconds: Some(2),
                affinity: Some(self.near_the_job()),
                tolerations: Some(self.cluster.tolerations.clone()),
                ..spec(self.cluster)
            }),
            ..Pod::default()
        }
    }

    /// The secret with what the pod shows and trusts; it goes with the pod.
    pub fn secret(&self, pod: &Pod, identity: &Identity) -> Secret {
        let owner_references = pod.owner_ref(&()).map(|owner| vec![owner]);
        let metadata = ObjectMeta { owner_references, ..self.metadata() };
        Secret { immutable: Some(true), ..identity.secret(metadata) }
    }

    fn metadata(&self) -> ObjectMeta {
        let mut labels = labels();
        labels.insert(READER.to_owned(), self.job.uid().unwrap_or_default());
        ObjectMeta {
            name: Some(self.name.to_owned()),
            namespace: self.job.namespace(),
            labels: Some(labels),
            ..ObjectMeta::default()
        }
    }

    fn container(&self, mounts: Vec<VolumeMount>) -> Container {
        let model_dir = self.resolution.model_dir.clone().unwrap_or_default();
        let arguments = [
            "reader".to_owned(),
            format!("--model-dir={model_dir}"),
            format!("--exports={SCRATCH_DIR}"),
            format!("--identity={IDENTITY_DIR}"),
            format!("--listen=0.0.0.0:{}", ports::READER),
            format!("--job-uid={}", self.job.uid().unwrap_or_default()),
            format!("--idle-seconds={}", self.idle_seconds),
        ];
        Container {
            name: "reader".to_owned(),
            image: Some(self.image.to_owned()),
            image_pull_policy: self.cluster.image_pull_policy.map(|policy| pull_policy(policy).to_owned()),
            command: Some(vec!["millrace-api".to_owned()]),
            args: Some(arguments.into()),
            volume_mounts: Some(mounts),
            readiness_probe: Some(Probe {
                tcp_socket: Some(TCPSocketAction { port: IntOrString::Int(ports::READER.into()), host: None }),
                period_seconds: Some(1),
                ..Probe::default()
            }),
            security_context: Some(container_security()),
            resources: Some(of_reader()),
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            ..Container::default()
        }
    }

    /// Storage that one node at a time can mount is where the job's own pods are, if any run.
    fn near_the_job(&self) -> Affinity {
        let coordinator = [
            (super::UID.to_owned(), self.job.uid().unwrap_or_default()),
            (ROLE.to_owned(), Role::Coordinator.to_string()),
        ];
        let term = PodAffinityTerm {
            label_selector: Some(LabelSelector { match_labels: Some(coordinator.into()), ..LabelSelector::default() }),
            topology_key: "kubernetes.io/hostname".to_owned(),
            ..PodAffinityTerm::default()
        };
        let preferred = WeightedPodAffinityTerm { pod_affinity_term: term, weight: 100 };
        Affinity {
            pod_affinity: Some(PodAffinity {
                preferred_during_scheduling_ignored_during_execution: Some(vec![preferred]),
                ..PodAffinity::default()
            }),
            ..Affinity::default()
        }
    }
}

fn labels() -> BTreeMap<String, String> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    BTreeMap::from([
        label("app.kubernetes.io/name", "millrace"),
        label("app.kubernetes.io/managed-by", API),
        label("app.kubernetes.io/component", "reader"),
    ])
}

/// A name that no other reader of the job has: `tail` is new each time.
pub fn reader_name(job: &TrainJob, tail: &str) -> String {
    Names::of(job).child(&format!("reader-{tail}"))
}

/// Who may talk to the readers of a namespace: the API server, and they to nobody.
pub fn reader_policy(namespace: &str) -> NetworkPolicy {
    let exists = LabelSelectorRequirement { key: READER.to_owned(), operator: "Exists".to_owned(), values: None };
    let port = NetworkPolicyPort {
        protocol: Some("TCP".to_owned()),
        port: Some(IntOrString::Int(ports::READER.into())),
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
