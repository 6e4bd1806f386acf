//! Resource requests and limits of a pod: those of the job, else of the appliance, else planned ones.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use millrace_crds::{Resources, Role, RoleResources};

/// Returns the default CPU request of a role, in thousandths of a CPU. It is small, because this emulation shares its
/// machine and a request reserves CPU that other pods can't use.
const fn millicpu(role: Role) -> u32 {
    match role {
        Role::Coordinator | Role::SwarmX | Role::Activation => 25,
        Role::MemoryX => 50,
        Role::Cs2 => 100,
    }
}

/// Memory limit above the planned bytes, for unplanned memory: buffers of connections, and the pod's page cache.
const MEMORY_HEADROOM_BYTES: u64 = 256 << 20;

/// Returns the resources of a pod that serves files: it reads, and converts one tensor at a time. It has limits,
/// because a quota requires them.
pub fn reader_resources() -> ResourceRequirements {
    ResourceRequirements {
        requests: Some(amounts(&[("cpu", "25m"), ("memory", "64Mi")])),
        limits: Some(amounts(&[("cpu", "2"), ("memory", "2Gi")])),
        ..ResourceRequirements::default()
    }
}

/// Returns the resources of the init container that fetches uploads: its buffers are small, and the pages of the files
/// that it writes can be reclaimed.
pub fn fetcher_resources() -> ResourceRequirements {
    ResourceRequirements {
        requests: Some(amounts(&[("cpu", "25m"), ("memory", "32Mi")])),
        limits: Some(amounts(&[("memory", "256Mi")])),
        ..ResourceRequirements::default()
    }
}

/// Returns the resources of the container that reads a Python dataset, unless `resources` names others. It has limits,
/// so that code of a user can't use up a node.
pub fn loader_resources(resources: Option<&RoleResources>) -> ResourceRequirements {
    let explicit = resources.and_then(|resources| resources.loader.as_ref()).map(given_resources);
    explicit.unwrap_or_else(|| ResourceRequirements {
        requests: Some(amounts(&[("cpu", "50m"), ("memory", "256Mi")])),
        limits: Some(amounts(&[("cpu", "4"), ("memory", "4Gi")])),
        ..ResourceRequirements::default()
    })
}

/// Returns amounts by the names of their resources.
fn amounts(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    pairs.iter().map(|(resource, amount)| ((*resource).to_owned(), Quantity((*amount).to_owned()))).collect()
}

/// Returns resources that a job or an appliance names.
fn given_resources(Resources { requests, limits }: &Resources) -> ResourceRequirements {
    let map = |list: &Option<millrace_crds::ResourceList>| list.as_ref().map(|quantities| quantities.0.clone());
    ResourceRequirements { requests: map(requests), limits: map(limits), ..ResourceRequirements::default() }
}

/// Returns the resources of `role`, which needs `bytes` of memory in the attempt, and up to `max_bytes` if the attempt
/// continues on another number of systems.
pub fn resources(role: Role, [bytes, max_bytes]: [u64; 2], resources: Option<&RoleResources>) -> ResourceRequirements {
    let explicit = resources.and_then(|resources| match role {
        Role::Coordinator => resources.coordinator.as_ref(),
        Role::MemoryX => resources.memoryx.as_ref(),
        Role::SwarmX => resources.swarmx.as_ref(),
        Role::Activation => resources.activation.as_ref(),
        Role::Cs2 => resources.cs2.as_ref(),
    });
    if let Some(explicit) = explicit {
        return given_resources(explicit);
    }
    let amount = |bytes: u64| ("memory".to_owned(), Quantity(format!("{}Mi", bytes.div_ceil(1 << 20))));
    let cpu = ("cpu".to_owned(), Quantity(format!("{}m", millicpu(role))));
    ResourceRequirements {
        requests: Some(BTreeMap::from([cpu, amount(bytes)])),
        limits: Some(BTreeMap::from([amount(max_bytes + max_bytes / 2 + MEMORY_HEADROOM_BYTES)])),
        ..ResourceRequirements::default()
    }
}
