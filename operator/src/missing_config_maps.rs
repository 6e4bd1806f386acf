//! Detects missing ConfigMaps that pods wait for. A missing claim or image is in the pod's status, but a missing
//! ConfigMap only in events of the kubelet, which programs do not read.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Api, Client, ResourceExt};
use millrace_crds::TrainJob;
use millrace_lifecycle::{AgentState, ObservedAgent};

/// Sets the state of each of `agents` that can't start because a ConfigMap of the job's user is missing.
///
/// # Errors
/// The API server rejected a request, or is unreachable.
pub async fn report_missing_config_maps(
    job: &TrainJob,
    client: &Client,
    pods: &[Pod],
    agents: &mut [ObservedAgent],
) -> Result<(), kube::Error> {
    let placed = |agent: &&mut ObservedAgent| agent.state == AgentState::Starting && agent.node.is_some();
    let mut placed: Vec<&mut ObservedAgent> = agents.iter_mut().filter(placed).collect();
    if placed.is_empty() {
        return Ok(());
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    for name in job.spec.volumes.iter().filter_map(|volume| Some(&volume.config_map.as_ref()?.name)) {
        if maps.get_metadata_opt(name).await?.is_some() {
            continue;
        }
        for agent in &mut placed {
            if pods.iter().any(|pod| pod.name_any() == agent.name && mounts(pod, name)) {
                let message = format!("ConfigMap \"{name}\" not found");
                agent.state = AgentState::Waiting { reason: "FailedMount".to_owned(), message };
            }
        }
    }
    Ok(())
}

fn mounts(pod: &Pod, map: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| volume.config_map.as_ref()).any(|source| source.name == map)
}
