//! Reports on a plan for users and programs: the output of `plan`, and the input of the scheduler.
//!
//! Three kinds of numbers are kept apart: bytes and seconds of the modelled machine (`wafer`, `projection`), bytes of
//! this emulation (`host`), and the work of the emulation (`host_work`), from which the rates of a machine give an
//! estimate of seconds.

use millrace_params::MachineSpec;
use serde::{Deserialize, Serialize};

use crate::placement::{Placement, PlacementError};
use crate::plan::{Encoding, LeafLayout, MachineBytes, StreamPlan};
use crate::time::{Projection, ProjectionError, nominal_placement, project_placement, projection_errors};

mod host;
mod roles;
mod text;
mod traffic;

pub use host::{HostRate, HostWork, format_rough_duration, format_size};
pub use roles::{PROCESS_OVERHEAD_BYTES, RoleBytes, max_leaves_at_once};
pub use text::format_thousands;
pub use traffic::{Traffic, traffic};

/// Report on a plan for a number of systems. Serialized as the output of `plan --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanReport {
    /// Hash of the plan, as written in logs.
    pub plan: String,
    /// Trained scalars.
    pub parameters: u64,
    /// Tokens of a sample.
    pub sequence: usize,
    /// Encoding of weights on links.
    pub encoding: Encoding,
    /// Leaves of a training step; `count` is K.
    pub leaves: LeafLayout,
    /// Leaves of an evaluation step.
    pub eval_leaves: LeafLayout,
    /// Levels of the tree that sums the leaves.
    pub tree_depth: u32,
    /// Maximum leaves of a training step that a system holds at once with this number of systems. The wafer may have
    /// room for more.
    pub leaves_per_round: u32,
    /// Maximum number of systems that have leaves in a training step: K.
    pub largest_num_csx: u32,
    /// Layers, first to last.
    pub layers: Vec<LayerReport>,
    /// Number of chunks.
    pub chunks: usize,
    /// Groups that stay on the wafer from forward to backward.
    pub resident: Vec<String>,
    /// Whether any layer is recomputed.
    pub recompute: bool,
    /// Tiles that the modelled wafer divides each sample into; 1 if it holds whole samples.
    pub tiles: u32,
    /// Counted floating-point operations of a training step.
    pub step_flops: u64,
    /// Operations repeated by recomputation, in addition.
    pub recompute_flops: u64,
    /// Values that depend on the number of systems.
    pub placement: PlacementReport,
    /// Memory of each role.
    pub bytes: RoleBytes,
    /// Memory of all processes of the emulation together, bytes.
    pub host_bytes: u64,
    /// Work of the emulation in a training step.
    pub host_work: HostWork,
    /// Payload bytes of a step, including zeros.
    pub traffic: Traffic,
    /// Projected time of a step on real systems.
    pub projection: Projection,
    /// Projection errors for published results of real systems.
    pub anchors: Vec<ProjectionError>,
}

/// One layer of a [`PlanReport`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Its name.
    pub name: String,
    /// Scalars of the groups it uses.
    pub parameters: u64,
    /// Chunks of the groups it uses.
    pub chunks: usize,
    /// Whether its inner values are recomputed.
    pub recompute: bool,
    /// Counted operations per sample, forward and backward.
    pub flops: u64,
    /// Bytes kept between the passes, per sample.
    pub saved: MachineBytes,
    /// Working memory, per leaf.
    pub working: MachineBytes,
}

/// The part of a [`PlanReport`] that depends on the number of systems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementReport {
    /// Number of systems.
    pub systems: u32,
    /// Number of SwarmX nodes.
    pub swarmx: usize,
    /// Number of MemoryX shards.
    pub shards: u32,
    /// Number of MemoryX agents: the replicas of all shards.
    pub memoryx: usize,
    /// Rounds of a training step.
    pub rounds: usize,
    /// Rounds of an evaluation step.
    pub eval_rounds: usize,
}

impl PlanReport {
    /// Reports on `plan` for `systems` systems of `appliance`.
    ///
    /// # Errors
    /// There is no placement for this number of systems.
    pub fn new(plan: &StreamPlan, appliance: &MachineSpec, systems: u32) -> Result<Self, PlacementError> {
        let placement = nominal_placement(plan, appliance, systems)?;
        let bytes = RoleBytes::new(plan, &placement, &appliance.link);
        let traffic = traffic(plan, &placement);
        let batch = plan.leaves.batch();
        let sum = |flops: fn(&crate::plan::LayerPlan) -> u64| {
            plan.layers.iter().map(flops).fold(0, u64::saturating_add).saturating_mul(batch)
        };
        Ok(Self {
            plan: plan.hash().to_string(),
            parameters: plan.parameters(),
            sequence: plan.sequence,
            encoding: plan.encoding,
            leaves: plan.leaves,
            eval_leaves: plan.eval_leaves,
            tree_depth: plan.leaves.count.next_power_of_two().ilog2(),
            leaves_per_round: max_leaves_at_once(&placement.rounds),
            largest_num_csx: plan.leaves.count,
            layers: layers(plan),
            chunks: plan.chunks.len(),
            resident: plan.resident.iter().map(|&group| plan.groups[group].name.clone()).collect(),
            recompute: plan.layers.iter().any(|layer| layer.recompute),
            tiles: plan.tiles,
            step_flops: sum(|layer| layer.forward_flops.saturating_add(layer.backward_flops)),
            recompute_flops: sum(|layer| layer.recompute_flops),
            placement: PlacementReport::new(&placement),
            host_bytes: bytes.on_host(&placement),
            host_work: HostWork::new(plan, &placement, &traffic),
            bytes,
            traffic,
            projection: project_placement(plan, appliance, &placement),
            anchors: projection_errors().to_vec(),
        })
    }
}

impl PlacementReport {
    fn new(placement: &Placement) -> Self {
        Self {
            systems: placement.systems.len() as u32,
            swarmx: placement.swarm.len(),
            shards: placement.shards,
            memoryx: placement.memoryx.len(),
            rounds: placement.rounds.len(),
            eval_rounds: placement.eval_rounds.len(),
        }
    }
}

fn layers(plan: &StreamPlan) -> Vec<LayerReport> {
    let report = |(layer, shape): (&crate::plan::LayerPlan, &crate::graph::Layer)| LayerReport {
        name: shape.name.clone(),
        parameters: layer.groups.iter().map(|&group| plan.groups[group].elements as u64).sum(),
        chunks: layer.groups.iter().map(|&group| plan.groups[group].chunks.len()).sum(),
        recompute: layer.recompute,
        flops: layer.forward_flops.saturating_add(layer.backward_flops),
        saved: layer.saved,
        working: layer.working,
    };
    plan.layers.iter().zip(&plan.graph.layers).map(report).collect()
}

#[cfg(test)]
mod tests;
