//! The pods of an attempt: one for each agent, all of the same image.

use std::ffi::OsString;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction,
    LocalObjectReference, ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, Probe, SeccompProfile,
    SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use millrace_cluster::address::{control_address, ports};
use millrace_cluster::names::{APPLIANCE_LABEL, ATTEMPT_LABEL, ChildNames, INDEX_LABEL, ROLE_LABEL, SYSTEM_LABEL};
use millrace_control::AttemptContext;
use millrace_crds::{ApplianceSpec, ImagePullPolicy, Role};
use millrace_protocol::launch::{
    ALLOCATOR_ENVIRONMENT, DATA_ENCRYPTION_ENV, DocumentSource, IDENTITY_ENV, ROLE_ENV, RoleCommand, V1JournalFiles,
    loader_socket,
};
use millrace_protocol::security::Protection;
use millrace_telemetry::logs::LogFormat;

use super::affinity::apart_from_replicas;
use super::bucket::add_bucket;
use super::loader::{LOADER_DIR, add_loader};
use super::mounts::Mounts;
use super::resources::resources;
use super::{identity_volume, meta};

/// Name of the only container of a pod.
pub const CONTAINER_NAME: &str = "agent";
/// User and group of the image, and of the files that its pods write.
const RUN_AS_USER: i64 = 65_532;
/// Directory of the launch document.
const LAUNCH_DIR: &str = "/etc/millrace/launch";
/// Directory of the agent's certificate.
const IDENTITY_DIR: &str = "/etc/millrace/identity";
/// Directory for tokenized text, kept for as long as the pod exists.
const CACHE_DIR: &str = "/var/cache/millrace";
/// Maximum size of that directory: the tokens of the job's texts. Prevents one job from filling its node's disk.
const CACHE_SIZE_LIMIT: &str = "64Gi";
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Seconds that a node may be unreachable before its pods are deleted.
const NODE_LOST_SECONDS: i64 = 30;
/// Seconds of the termination grace period in addition to those for saving.
pub const EXTRA_TERMINATION_GRACE_SECONDS: u32 = 15;

/// Builds every pod of the attempt.
pub fn pods(attempt: &AttemptContext<'_>) -> Vec<Pod> {
    let agents = attempt.needs.wanted.iter().flat_map(|&(role, count)| (0..count).map(move |index| (role, index)));
    agents.map(|(role, index)| pod(attempt, role, index)).collect()
}

fn pod(attempt: &AttemptContext<'_>, role: Role, index: u32) -> Pod {
    let names = ChildNames::for_job(attempt.job);
    let mut metadata = meta(attempt, names.pod(role, index));
    let labels = metadata.labels.get_or_insert_default();
    for (key, value) in
        [(ATTEMPT_LABEL, attempt.number.to_string()), (ROLE_LABEL, role.to_string()), (INDEX_LABEL, index.to_string())]
    {
        labels.insert(key.to_owned(), value);
    }
    labels.insert("app.kubernetes.io/component".to_owned(), role.to_string());
    if let Some(system) = attempt.systems.get(index as usize).filter(|_| role == Role::Cs2) {
        // For a ledger that finds the pod after its job was deleted.
        labels.insert(SYSTEM_LABEL.to_owned(), system.clone());
        labels.insert(APPLIANCE_LABEL.to_owned(), attempt.job.spec.appliance.clone());
    }
    let (volumes, mounts) = volumes(attempt, role, index);
    let grace = i64::from(attempt.job.spec.checkpoint.grace_period_seconds + EXTRA_TERMINATION_GRACE_SECONDS);
    let mut pod = Pod {
        metadata,
        spec: Some(PodSpec {
            containers: vec![container(attempt, role, index, mounts)],
            volumes: Some(volumes),
            termination_grace_period_seconds: Some(grace),
            priority_class_name: priority_class(attempt),
            tolerations: Some(tolerations(attempt)),
            affinity: apart_from_replicas(attempt, role, index),
            ..base_pod_spec(attempt.cluster)
        }),
        ..Pod::default()
    };
    match role {
        Role::Coordinator => add_bucket(attempt, &mut pod),
        Role::Activation => add_loader(attempt, &mut pod),
        Role::MemoryX | Role::SwarmX | Role::Cs2 => {}
    }
    pod
}

/// Returns the job's PriorityClass if the appliance allows it: the class of a running job may have changed since its
/// admission.
fn priority_class(attempt: &AttemptContext<'_>) -> Option<String> {
    let allowed = &attempt.cluster.priority_classes;
    attempt.job.spec.priority_class_name.clone().filter(|class| allowed.allows(class))
}

/// Returns the settings of every pod: no restarts, no credentials, Pod Security `restricted`, and the requirements of
/// the appliance's nodes.
pub(super) fn base_pod_spec(cluster: &ApplianceSpec) -> PodSpec {
    let pull_secrets = cluster.image_pull_secrets.iter();
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(pod_security()),
        node_selector: Some(cluster.node_selector.clone()).filter(|labels| !labels.is_empty()),
        image_pull_secrets: Some(
            pull_secrets.map(|secret| LocalObjectReference { name: secret.name.clone() }).collect(),
        ),
        ..PodSpec::default()
    }
}

fn container(attempt: &AttemptContext<'_>, role: Role, index: u32, mounts: Vec<VolumeMount>) -> Container {
    let role_resources = attempt.job.spec.resources.as_ref().or(attempt.resolution.resources.as_ref());
    let bytes = [&attempt.needs.bytes, &attempt.needs.max_bytes].map(|bytes| bytes.get(&role).copied().unwrap_or(0));
    Container {
        name: CONTAINER_NAME.to_owned(),
        image: attempt.resolution.image.clone(),
        image_pull_policy: attempt.cluster.image_pull_policy.map(|policy| pull_policy(policy).to_owned()),
        command: Some(vec!["millrace-agent".to_owned()]),
        args: Some(arguments(&role_command(attempt, role, index).to_args())),
        env: Some(environment(attempt.cluster)),
        ports: Some(container_ports(role)),
        resources: Some(resources(role, bytes, role_resources)),
        volume_mounts: Some(mounts),
        readiness_probe: Some(probe("/readyz", 1, 3)),
        liveness_probe: Some(liveness_probe(role)),
        security_context: Some(container_security()),
        termination_message_path: Some(TERMINATION_LOG.to_owned()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}

pub(super) const fn pull_policy(policy: ImagePullPolicy) -> &'static str {
    match policy {
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Never => "Never",
    }
}

fn role_command(attempt: &AttemptContext<'_>, role: Role, index: u32) -> RoleCommand {
    let any_interface = |port: u16| Some(format!("0.0.0.0:{port}"));
    let command = RoleCommand { metrics_listen: any_interface(ports::METRICS_PORT), ..RoleCommand::new(role, index) };
    if role == Role::Coordinator {
        return RoleCommand {
            listen: any_interface(ports::CONTROL_PORT),
            journal_listen: any_interface(ports::JOURNAL_PORT),
            launch: Some(DocumentSource::Path(format!("{LAUNCH_DIR}/launch.json").into())),
            termination_log: Some(TERMINATION_LOG.into()),
            // For coordinators of release 0.1.0, the image of jobs that began with it.
            v1_journal: V1JournalFiles::in_directory(IDENTITY_DIR.as_ref()),
            ..command
        };
    }
    let namespace = attempt.job.namespace().unwrap_or_default();
    let reads_dataset = role == Role::Activation && attempt.resolution.loader_image.is_some();
    RoleCommand {
        listen: any_interface(ports::DATA_PORT),
        advertise: Some("$(POD_IP)".to_owned()),
        coordinator: Some(control_address(&ChildNames::for_job(attempt.job), &namespace)),
        loader_socket: reads_dataset.then(|| loader_socket(LOADER_DIR.as_ref())),
        ..command
    }
}

/// Returns the arguments as text. All parts of a pod's command line are UTF-8.
pub(super) fn arguments(args: &[OsString]) -> Vec<String> {
    args.iter().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// Makes the agent of `pod` write its log in `format`.
pub fn set_log_format(pod: &mut Pod, format: LogFormat) {
    if format == LogFormat::default() {
        return;
    }
    let variable =
        EnvVar { name: LogFormat::LOG_FORMAT_ENV.to_owned(), value: Some(format.to_string()), ..EnvVar::default() };
    for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
        container.env.get_or_insert_default().push(variable.clone());
    }
}

/// Returns the variables of an agent. Settings for which agents of release 0.1.0 have no flag are variables, because
/// these agents ignore unknown ones.
fn environment(cluster: &ApplianceSpec) -> Vec<EnvVar> {
    let set =
        |name: &str, value: &str| EnvVar { name: name.to_owned(), value: Some(value.to_owned()), ..EnvVar::default() };
    let pod_ip = EnvVar {
        name: "POD_IP".to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: "status.podIP".to_owned(), ..Default::default() }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let allocator = ALLOCATOR_ENVIRONMENT.iter().map(|(name, value)| set(name, value));
    let encrypt = cluster.encrypt_data.unwrap_or(true);
    let protection = if encrypt { Protection::Encrypted } else { Protection::Authenticated };
    let own = [
        set(ROLE_ENV, "pod"),
        set(IDENTITY_ENV, IDENTITY_DIR),
        set(DATA_ENCRYPTION_ENV, protection.as_switch()),
        set("XDG_CACHE_HOME", CACHE_DIR),
        pod_ip,
    ];
    own.into_iter().chain(allocator).collect()
}

fn container_ports(role: Role) -> Vec<ContainerPort> {
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: port.into(),
        ..ContainerPort::default()
    };
    let metrics = port("metrics", ports::METRICS_PORT);
    match role {
        Role::Coordinator => vec![port("control", ports::CONTROL_PORT), port("journal", ports::JOURNAL_PORT), metrics],
        _ => vec![port("data", ports::DATA_PORT), metrics],
    }
}

/// Returns the probe that ends an agent whose thread is stuck. The coordinator notices any other agent sooner; nothing
/// else notices a coordinator.
fn liveness_probe(role: Role) -> Probe {
    match role {
        Role::Coordinator => probe("/healthz", 5, 3),
        Role::MemoryX | Role::SwarmX | Role::Activation | Role::Cs2 => probe("/healthz", 10, 6),
    }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(ports::METRICS_PORT.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// Returns the volumes and mounts of a role: only coordinator and MemoryX have model_dir, only coordinator and
/// activation servers the data.
fn volumes(attempt: &AttemptContext<'_>, role: Role, index: u32) -> (Vec<Volume>, Vec<VolumeMount>) {
    let (spec, resolution) = (&attempt.job.spec, attempt.resolution);
    let mut all = Mounts::default();
    if matches!(role, Role::Coordinator | Role::MemoryX) {
        all.add_model_dir(spec, resolution);
    }
    match role {
        Role::Coordinator | Role::Activation => all.add_data(spec, resolution),
        // MemoryX reads the checkpoint to start from, in any volume.
        Role::MemoryX => {
            if let Some(path) = attempt.checkpoint_path() {
                all.add_containing(spec, &path);
            }
        }
        Role::SwarmX | Role::Cs2 => {}
    }
    let names = ChildNames::for_job(attempt.job);
    if role == Role::Coordinator {
        let document = ConfigMapVolumeSource { name: names.launch(attempt.number), ..ConfigMapVolumeSource::default() };
        all.add_volume("launch", LAUNCH_DIR, Volume { config_map: Some(document), ..Volume::default() }, true);
    }
    let identity = identity_volume(attempt, role, index);
    all.add_volume("identity", IDENTITY_DIR, Volume { secret: Some(identity), ..Volume::default() }, true);
    if matches!(role, Role::Coordinator | Role::Activation) {
        all.add_empty_dir("cache", CACHE_DIR, CACHE_SIZE_LIMIT, false);
    }
    (all.volumes, all.mounts)
}

/// Returns the settings of Pod Security `restricted`.
fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(RUN_AS_USER),
        run_as_group: Some(RUN_AS_USER),
        fs_group: Some(RUN_AS_USER),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
        ..PodSecurityContext::default()
    }
}

pub(super) fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        ..SecurityContext::default()
    }
}

/// Returns the appliance's tolerations, and a short toleration of lost nodes: the job can't continue without this pod,
/// and restarts as soon as it is deleted.
fn tolerations(attempt: &AttemptContext<'_>) -> Vec<Toleration> {
    let lost = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].map(|key| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: Some(NODE_LOST_SECONDS),
        ..Toleration::default()
    });
    attempt.cluster.tolerations.iter().cloned().chain(lost).collect()
}
