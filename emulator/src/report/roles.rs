//! How many bytes of memory each role needs in this emulation, and a system on the modelled machine.

use millrace_params::LinkSpec;
use serde::{Deserialize, Serialize};

use crate::compile::{MEMORYX_BYTES_PER_PARAMETER, PlanMemory, SystemMemory};
use crate::placement::{Placement, Round, SwarmChild};
use crate::plan::{GroupId, StreamPlan};

/// Batches an activation server holds ready for each of its systems.
const PREFETCHED_BATCHES: u64 = 2;
/// What a process holds before it has any data: code, runtime, buffers of its connections.
pub const PROCESS_OVERHEAD_BYTES: u64 = 32 << 20;

/// Bytes per agent of each role; host bytes are data only, [`PROCESS_OVERHEAD_BYTES`] come on top.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleBytes {
    /// All MemoryX shards together.
    pub memoryx: u64,
    /// Each shard.
    pub memoryx_shards: Vec<u64>,
    /// The SwarmX node that needs most: its windows.
    pub swarmx: u64,
    /// The activation server that needs most.
    pub activation: u64,
    /// The system that needs most: the modelled wafer's bytes and the process's.
    pub cs2: SystemMemory,
    /// What every process needs besides.
    pub process: u64,
}

impl RoleBytes {
    /// What the roles need for `plan` under `placement`, with links as in `link`.
    pub fn new(plan: &StreamPlan, placement: &Placement, link: &LinkSpec) -> Self {
        let memoryx_shards = shard_bytes(plan, placement);
        Self {
            memoryx: memoryx_shards.iter().sum(),
            memoryx_shards,
            swarmx: swarm_bytes(placement, link),
            activation: activation_bytes(plan, placement),
            cs2: max_system_bytes(plan, placement, link),
            process: PROCESS_OVERHEAD_BYTES,
        }
    }

    /// Memory of all processes of a run together: the coordinator, and under `placement` shards, SwarmX nodes, systems,
    /// and an activation server for each of these.
    pub fn on_host(&self, placement: &Placement) -> u64 {
        let (systems, swarmx) = (placement.systems.len() as u64, placement.swarm.len() as u64);
        let processes = 1 + u64::from(placement.shards) + swarmx + 2 * systems;
        let of_systems = systems.saturating_mul(self.cs2.host.total().saturating_add(self.activation));
        self.process
            .saturating_mul(processes)
            .saturating_add(self.memoryx)
            .saturating_add(self.swarmx.saturating_mul(swarmx))
            .saturating_add(of_systems)
    }
}

/// Weights, moments and gradients of each shard's chunks, and the partial sums that rounds keep open: those over the
/// leaves so far, each use of a group having a tree of its own; the first of them is the gradient itself.
fn shard_bytes(plan: &StreamPlan, placement: &Placement) -> Vec<u64> {
    let mut uses = vec![0u64; plan.groups.len()];
    plan.layers.iter().flat_map(|layer| &layer.groups).for_each(|&group| uses[group] += 1);
    let depth = max_open_sums(placement);
    let further = |group: GroupId| if depth == 0 { 0 } else { uses[group] * depth - 1 };
    let mut shards = vec![0; placement.shards as usize];
    for (id, chunk) in plan.chunks.iter().enumerate() {
        let bytes = MEMORYX_BYTES_PER_PARAMETER + 4 * further(chunk.group);
        shards[placement.shard_of(id) as usize] += bytes * chunk.elements as u64;
    }
    shards
}

/// The most partial sums that a shard holds of a gradient between two rounds.
fn max_open_sums(placement: &Placement) -> u64 {
    let tree = placement.tree;
    let ends = placement.rounds.iter().map(|round| round.leaves.end).filter(|&end| end < tree.leaves());
    ends.map(|end| tree.cover(0..end).len() as u64).max().unwrap_or(0)
}

/// Windows of the busiest node: of weights from each of its parents, and of each child's partial sums, of which a slot
/// may have several.
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
    let sample = 2 * plan.sequence as u64 * 4;
    let mut samples = std::collections::BTreeMap::new();
    let leaves = [(&placement.rounds, plan.leaves.samples), (&placement.eval_rounds, plan.eval_leaves.samples)];
    let held = |place: usize| {
        let all = leaves.iter().map(|(rounds, size)| {
            rounds.iter().map(|round| round.owned[place].len() as u64).sum::<u64>() * u64::from(*size)
        });
        all.max().unwrap_or(0)
    };
    for (place, system) in placement.systems.iter().enumerate() {
        *samples.entry(system.activation).or_insert(0) += held(place) * PREFETCHED_BATCHES * sample;
    }
    samples.into_values().max().unwrap_or(0)
}

/// The most leaves that a system holds at once.
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
