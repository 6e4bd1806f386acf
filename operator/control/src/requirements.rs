//! What an attempt needs: agents, memory, and the time that it is projected to take, from the plan of the job.

use std::collections::BTreeMap;

use millrace_crds::Role;
use millrace_emulator::placement::swarm_nodes;
use millrace_emulator::plan::StreamPlan;
use millrace_emulator::report::{HostWork, RoleBytes, traffic};
use millrace_emulator::time::{nominal_placement, project_step};
use millrace_params::{JobSpec, MachineSpec};
use schemars::JsonSchema;
use serde::Serialize;

use crate::resolve_error::{InvalidJob, ResolveError};

/// The needs of an attempt on a given number of systems.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceRequirements {
    /// Number of agents of each role.
    pub wanted: Vec<(Role, u32)>,
    /// Bytes of memory of a process of each role.
    pub bytes: BTreeMap<Role, u64>,
    /// The same for any number of systems: the attempt may lose some, or be resized. Fewer systems have more leaves
    /// each.
    pub max_bytes: BTreeMap<Role, u64>,
    /// Number of MemoryX shards; agent n holds shard n modulo this number.
    pub memoryx_shards: u32,
    /// Bytes of all MemoryX agents together.
    pub memoryx_bytes: u64,
    /// Nodes of the SwarmX tree.
    pub swarmx_nodes: u32,
    /// Largest number of systems that all have work: one leaf each.
    pub largest_num_csx: u32,
    /// Projected time on real systems.
    pub projected: ProjectedTime,
    /// Work of all agents together in a training step.
    pub host_work: HostWork,
}

impl ResourceRequirements {
    /// Raises what the appliance grants to what a later phase of the job needs.
    pub(crate) fn reserve_for(&mut self, later: &Self) {
        self.memoryx_bytes = self.memoryx_bytes.max(later.memoryx_bytes);
        self.swarmx_nodes = self.swarmx_nodes.max(later.swarmx_nodes);
        self.largest_num_csx = self.largest_num_csx.min(later.largest_num_csx);
    }

    /// Returns the bytes of memory of all agents together.
    pub fn host_bytes(&self) -> u64 {
        let role_bytes =
            |(role, count): &(Role, u32)| self.bytes.get(role).copied().unwrap_or(0).saturating_mul(u64::from(*count));
        self.wanted.iter().map(role_bytes).fold(0, u64::saturating_add)
    }
}

/// By the time model: a projection, not a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProjectedTime {
    /// Seconds of one step.
    pub step_seconds: f64,
    /// Seconds of all training steps; 0 if their number depends on the data.
    pub seconds: f64,
    /// Samples per second.
    pub samples_per_second: f64,
}

/// Computes the needs of an attempt of `job` on `systems` systems from its plan.
///
/// # Errors
/// No such placement exists.
pub(crate) fn requirements_of_plan(
    plan: &StreamPlan,
    job: &JobSpec,
    appliance: &MachineSpec,
    systems: u32,
) -> Result<ResourceRequirements, ResolveError> {
    let placement = nominal_placement(plan, appliance, systems).map_err(InvalidJob::Placement)?;
    let bytes = RoleBytes::new(plan, &placement, &appliance.link);
    let projection = project_step(plan, appliance, systems).map_err(InvalidJob::Placement)?;
    let shards = job.memoryx_shards(appliance) as u32;
    let replicas = appliance.memoryx.replicas as u32;
    let fan_out = u32::try_from(appliance.swarmx.fan_out).unwrap_or(u32::MAX);
    let swarmx = swarm_nodes(systems as usize, fan_out) as u32;
    let largest_num_csx = largest_num_csx(job);
    let other_sizes =
        [1, largest_num_csx].into_iter().filter_map(|systems| nominal_placement(plan, appliance, systems).ok());
    let mut max_bytes = process_bytes(&bytes);
    for (role, other) in other_sizes.flat_map(|other| process_bytes(&RoleBytes::new(plan, &other, &appliance.link))) {
        let max = max_bytes.entry(role).or_default();
        *max = other.max(*max);
    }
    Ok(ResourceRequirements {
        wanted: vec![
            (Role::Coordinator, 1),
            (Role::MemoryX, shards * replicas),
            (Role::SwarmX, swarmx),
            (Role::Activation, systems),
            (Role::Cs2, systems),
        ],
        bytes: process_bytes(&bytes),
        max_bytes,
        memoryx_shards: shards,
        memoryx_bytes: bytes.memoryx,
        swarmx_nodes: swarmx,
        largest_num_csx,
        projected: ProjectedTime {
            step_seconds: projection.step_seconds,
            seconds: projection.step_seconds * job.run.known_max_steps().unwrap_or(0) as f64,
            samples_per_second: projection.samples_per_second,
        },
        host_work: HostWork::new(plan, &placement, &traffic(plan, &placement)),
    })
}

/// Returns the memory of a process of each role.
fn process_bytes(bytes: &RoleBytes) -> BTreeMap<Role, u64> {
    let with_process = |data: u64| data + bytes.process;
    let shard = bytes.memoryx_shards.iter().copied().max().unwrap_or(0);
    BTreeMap::from([
        (Role::Coordinator, with_process(0)),
        (Role::MemoryX, with_process(shard)),
        (Role::SwarmX, with_process(bytes.swarmx)),
        (Role::Activation, with_process(bytes.activation)),
        (Role::Cs2, with_process(bytes.cs2.host.total())),
    ])
}

/// Returns the number of leaves of the inputs that the mode reads, the smaller one of two, at least 1.
pub(crate) fn largest_num_csx(job: &JobSpec) -> u32 {
    let train = job.run.mode.trains().then(|| job.train_input.leaves());
    let eval = job.eval_input.as_ref().filter(|_| job.run.mode.evaluates()).map(|input| input.leaves());
    train.into_iter().chain(eval).min().unwrap_or(1).max(1) as u32
}
