//! Computes the memory that each role needs in this emulation, and a system on the modelled machine.

use millrace_params::LinkSpec;
use serde::{Deserialize, Serialize};

use crate::compile::{PlanMemory, SystemMemory, memoryx_bytes};
use crate::placement::{Placement, Round, SwarmChild, shard_of_agent};
use crate::plan::{GroupId, StreamPlan};

/// Batches that an activation server prepares for each of its systems.
const PREFETCHED_BATCHES: u64 = 2;
/// Memory of a process without data: code, runtime and connection buffers.
pub const PROCESS_OVERHEAD_BYTES: u64 = 32 << 20;

/// Bytes per agent of each role. Host bytes count data only; add [`PROCESS_OVERHEAD_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleBytes {
    /// All MemoryX agents together.
    pub memoryx: u64,
    /// Each shard.
    pub memoryx_shards: Vec<u64>,
    /// The SwarmX node with the largest windows.
    pub swarmx: u64,
    /// The activation server that needs most.
    pub activation: u64,
    /// The system that needs most: bytes of the modelled wafer and of the process.
    pub cs2: SystemMemory,
    /// Additional bytes of every process.
    pub process: u64,
}

impl RoleBytes {
    /// Computes the memory of each role for `plan` under `placement`, with links as in `link`.
    pub fn new(plan: &StreamPlan, placement: &Placement, link: &LinkSpec) -> Self {
        let memoryx_shards = shard_bytes(plan, placement);
        let of_agent = |id| memoryx_shards[shard_of_agent(id, placement.shards) as usize];
        Self {
            memoryx: placement.memoryx.iter().map(|&id| of_agent(id)).sum(),
            memoryx_shards,
            swarmx: swarm_bytes(placement, link),
            activation: activation_bytes(plan, placement),
            cs2: max_system_bytes(plan, placement, link),
            process: PROCESS_OVERHEAD_BYTES,
        }
    }

    /// Returns the memory of all processes of a run: the coordinator, and the MemoryX agents, SwarmX nodes and
    /// systems of `placement` with one activation server per system.
    pub fn on_host(&self, placement: &Placement) -> u64 {
        let (systems, swarmx) = (placement.systems.len() as u64, placement.swarm.len() as u64);
        let processes = 1 + placement.memoryx.len() as u64 + swarmx + 2 * systems;
        let of_systems = systems.saturating_mul(self.cs2.host.total().saturating_add(self.activation));
        self.process
            .saturating_mul(processes)
            .saturating_add(self.memoryx)
            .saturating_add(self.swarmx.saturating_mul(swarmx))
            .saturating_add(of_systems)
    }
}

/// Returns the bytes of weights, moments and gradients of each shard's chunks, and of the partial sums that stay open
/// between rounds. Each use of a group has its own tree of sums; the first sum is the gradient itself.
fn shard_bytes(plan: &StreamPlan, placement: &Placement) -> Vec<u64> {
    let mut uses = vec![0u64; plan.groups.len()];
    plan.layers.iter().flat_map(|layer| &layer.groups).for_each(|&group| uses[group] += 1);
    let depth = max_open_sums(placement);
    let extra_sums = |group: GroupId| if depth == 0 { 0 } else { uses[group] * depth - 1 };
    let mut shards = vec![0; placement.shards as usize];
    for (id, group) in plan.groups.iter().enumerate() {
        let shapes = group.tensors.iter().map(|(tensor, _)| plan.graph.tensors[*tensor].shape.as_slice());
        let state = plan.whole_tensor_state.as_deref();
        let bytes: u64 = shapes.map(|shape| memoryx_bytes(shape, state, plan.extra_state_tensors)).sum();
        // Groups are divided among shards by elements, except those that one shard owns as a whole.
        for chunk in group.chunks.clone() {
            let elements = plan.chunks[chunk].elements as u64;
            let share = (u128::from(bytes) * u128::from(elements) / (group.elements.max(1) as u128)) as u64;
            shards[placement.shard_of(chunk) as usize] += share + 4 * extra_sums(id) * elements;
        }
    }
    shards
}

/// Returns the maximum number of partial sums of a gradient that a shard holds between two rounds.
fn max_open_sums(placement: &Placement) -> u64 {
    let tree = placement.tree;
    let ends = placement.rounds.iter().map(|round| round.leaves.end).filter(|&end| end < tree.leaves());
    ends.map(|end| tree.cover(0..end).len() as u64).max().unwrap_or(0)
}

/// Returns the bytes of the windows of the busiest node: weights from each parent, and partial sums from each child. A
/// slot may have several partial sums.
fn swarm_bytes(placement: &Placement, link: &LinkSpec) -> u64 {
    let sums = |children: &[SwarmChild], round| {
        children.iter().map(|&child| placement.child_nodes(child, round).len() as u64).sum::<u64>()
    };
    let windows = |node: &crate::placement::SwarmNode| {
        let parents = if node.parent.is_none() { u64::from(placement.shards) } else { 1 };
        let rounds = 0..placement.rounds.len();
        parents + rounds.map(|round| sums(&node.children, round)).max().unwrap_or(0)
    };
    link.window_bytes() * placement.swarm.iter().map(windows).max().unwrap_or(0)
}

fn activation_bytes(plan: &StreamPlan, placement: &Placement) -> u64 {
    let sample = plan.graph.input_bytes();
    let mut samples = std::collections::BTreeMap::new();
    let leaves = [(&placement.rounds, plan.leaves.samples), (&placement.eval_rounds, plan.eval_leaves.samples)];
    let resident_bytes = |index: usize| {
        let all = leaves.iter().map(|(rounds, size)| {
            rounds.iter().map(|round| round.owned[index].len() as u64).sum::<u64>() * u64::from(*size)
        });
        all.max().unwrap_or(0)
    };
    for (index, system) in placement.systems.iter().enumerate() {
        *samples.entry(system.activation).or_insert(0) += resident_bytes(index) * PREFETCHED_BATCHES * sample;
    }
    samples.into_values().max().unwrap_or(0)
}

/// Returns the maximum number of leaves that a system holds at once.
pub fn max_leaves_at_once(rounds: &[Round]) -> u32 {
    rounds.iter().flat_map(|round| &round.owned).map(|owned| owned.end - owned.start).max().unwrap_or(0)
}

fn max_system_bytes(plan: &StreamPlan, placement: &Placement, link: &LinkSpec) -> SystemMemory {
    let memory = PlanMemory::new(plan);
    let train = memory.system_bytes(max_leaves_at_once(&placement.rounds), true, link);
    let eval = memory.system_bytes(max_leaves_at_once(&placement.eval_rounds), false, link);
    SystemMemory {
        wafer: if eval.wafer.total() > train.wafer.total() { eval.wafer } else { train.wafer },
        host: if eval.host.total() > train.host.total() { eval.host } else { train.host },
    }
}
