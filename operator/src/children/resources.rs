//! What a pod asks for and may use: the job's word, else the appliance's, else what the planner finds.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use millrace_crds::decide::Role;
use millrace_crds::{Resources, RoleResources};

/// CPU that a role asks for by default, in thousandths. Little: this emulation shares the machine it is given, and a
/// request is a claim against every other pod.
const fn millicpu(role: Role) -> u32 {
    match role {
        Role::Coordinator | Role::SwarmX | Role::Activation => 25,
        Role::MemoryX => 50,
        Role::Cs2 => 100,
    }
}

/// Bytes a pod may use above what is planned, for what no plan knows: buffers of connections, a page cache of its own.
const AIR: u64 = 256 << 20;

/// Of a pod that serves files: it reads, and converts a tensor at a time. Where there is a quota, a pod must say what it may use.
pub fn of_reader() -> ResourceRequirements {
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

/// Of `role`, which needs `bytes` by the attempt.
pub fn resources(role: Role, bytes: u64, of: Option<&RoleResources>) -> ResourceRequirements {
    let named = of.and_then(|of| match role {
        Role::Coordinator => of.coordinator.as_ref(),
        Role::MemoryX => of.memoryx.as_ref(),
        Role::SwarmX => of.swarmx.as_ref(),
        Role::Activation => of.activation.as_ref(),
        Role::Cs2 => of.cs2.as_ref(),
    });
    if let Some(Resources { requests, limits }) = named {
        let map = |given: &Option<millrace_crds::Quantities>| given.as_ref().map(|quantities| quantities.0.clone());
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
        limits: Some(BTreeMap::from([amount(bytes + bytes / 2 + AIR)])),
        ..ResourceRequirements::default()
    }
}
