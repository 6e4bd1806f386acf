//! What a coordinator needs to keep the job's model_dir in a bucket: address, credentials and network access. No other
//! pod of the job has them.

use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, EnvFromSource, EnvVar, Pod, SecretEnvSource, Volume};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicySpec};
use millrace_cluster::names::{ChildNames, ROLE_LABEL};
use millrace_control::AttemptContext;
use millrace_crds::Role;
use millrace_protocol::launch::MODEL_DIR_BUCKET_ENV;

use super::meta;
use super::mounts::Mounts;
use super::network_policy::{labelled, tcp};

/// Directory of the authorities of the bucket's certificate.
const AUTHORITIES_DIR: &str = "/etc/millrace/bucket";

/// Adds address and credentials to the pod of a coordinator, if the job has a bucket.
pub(super) fn add_bucket(attempt: &AttemptContext<'_>, pod: &mut Pod) {
    let (Some(bucket), Some(spec)) = (&attempt.resolution.model_dir_bucket, pod.spec.as_mut()) else { return };
    let variable = |name: &str, value: Option<&str>| {
        value.map(|value| EnvVar { name: name.to_owned(), value: Some(value.to_owned()), ..EnvVar::default() })
    };
    let authorities = bucket.ca_config_map_name.as_ref().map(|_| format!("{AUTHORITIES_DIR}/ca.crt"));
    let variables = [
        variable(MODEL_DIR_BUCKET_ENV, Some(&bucket.url)),
        variable("AWS_ENDPOINT_URL", bucket.endpoint.as_deref()),
        variable("AWS_REGION", bucket.region.as_deref()),
        variable("SSL_CERT_FILE", authorities.as_deref()),
    ];
    let mut mounts = Mounts::default();
    if let Some(name) = &bucket.ca_config_map_name {
        let source = ConfigMapVolumeSource { name: name.clone(), ..ConfigMapVolumeSource::default() };
        let volume = Volume { config_map: Some(source), ..Volume::default() };
        mounts.add_volume("bucket-authorities", AUTHORITIES_DIR, volume, true);
    }
    spec.volumes.get_or_insert_default().extend(mounts.volumes);
    let secret = SecretEnvSource { name: bucket.secret_name.clone(), optional: None };
    for agent in &mut spec.containers {
        agent.env.get_or_insert_default().extend(variables.iter().flatten().cloned());
        agent.env_from = Some(vec![EnvFromSource { secret_ref: Some(secret.clone()), ..EnvFromSource::default() }]);
        agent.volume_mounts.get_or_insert_default().extend(mounts.mounts.iter().cloned());
    }
}

/// Builds the policy that lets the coordinator connect to the bucket, at any address; `None` if the job has none. It
/// adds to the policy of all agents.
pub fn bucket_policy(attempt: &AttemptContext<'_>) -> Option<NetworkPolicy> {
    let bucket = attempt.resolution.model_dir_bucket.as_ref()?;
    let names = ChildNames::for_job(attempt.job);
    let mut coordinator = names.selector();
    coordinator.insert(ROLE_LABEL.to_owned(), Role::Coordinator.to_string());
    Some(NetworkPolicy {
        metadata: meta(attempt, names.bucket_policy()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(labelled(coordinator)),
            policy_types: Some(vec!["Egress".to_owned()]),
            egress: Some(vec![NetworkPolicyEgressRule { to: None, ports: Some(vec![tcp(bucket.port())]) }]),
            ..NetworkPolicySpec::default()
        }),
    })
}
