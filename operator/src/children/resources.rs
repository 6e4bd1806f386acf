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
    let map = |cpu: &str, memory: &str| {
        BTreeMap::from(
            [("cpu", cpu), ("memory", memory)].map(|(what, much)| (what.to_owned(), Quantity(much.to_owned()))),
        )
    };
    ResourceRequirements {
        requests: Some(map("25m", "64Mi")),
        limits: Some(map("2", "2Gi")),
        ..ResourceRequirements::default()
    }
}

/// Returns the resources of the init container that fetches uploads: its buffers are small, and the pages of the files
/// that it writes can be reclaimed.
pub fn fetcher_resources() -> ResourceRequirements {
    let map = |amounts: &[(&str, &str)]| {
        amounts.iter().map(|(what, much)| ((*what).to_owned(), Quantity((*much).to_owned()))).collect()
    };
    ResourceRequirements {
        requests: Some(map(&[("cpu", "25m"), ("memory", "32Mi")])),
        limits: Some(map(&[("memory", "256Mi")])),
        ..ResourceRequirements::default()
    }
}

/// Returns the resources of `role`, which needs `bytes` of memory in the attempt.
pub fn resources(role: Role, bytes: u64, of: Option<&RoleResources>) -> ResourceRequirements {
    let named = of.and_then(|of| match role {
        Role::Coordinator => of.coordinator.as_ref(),
        Role::MemoryX => of.memoryx.as_ref(),
        Role::SwarmX => of.swarmx.as_ref(),
        Role::Activation => of.activation.as_ref(),
        Role::Cs2 => of.cs2.as_ref(),
    });
    if let Some(Resources { requests, limits }) = named {
        let map = |given: &Option<millrace_crds::ResourceList>| given.as_ref().map(|quantities| quantities.0.clone());
        return ResourceRequirements {
            requests: map(requests),
            limits: map(limits),
            ..ResourceRequirements::default()
        };
    }
    let amount = |bytes: u64| ("memory".to_owned(), Quantity(format!("{}Mi", bytes.div_ceil(1 << 20))));
    let cpu = ("cpu".to_owned(), Quantity(format!("{}m", millicpu(role))));
    ResourceRequirements {
        requests: Some(BTreeMap::from([cpu, amount(bytes)])),
        limits: Some(BTreeMap::from([amount(bytes + bytes / 2 + MEMORY_HEADROOM_BYTES)])),
        ..ResourceRequirements::default()
    }
}
