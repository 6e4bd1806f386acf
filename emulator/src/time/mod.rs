//! Projects how long the modelled machine takes for a step. This is a projection, not a measurement.
//!
//! A step consists of its rounds, one after the other, and the commit. In a round every system computes its leaves
//! layer by layer. Meanwhile the weights of the next layers stream in and gradients stream out, chunk by chunk, so that
//! a pass over a layer takes as long as the slowest of these. Two things are not overlapped: the hops of the tree, and
//! the update of the first layer in MemoryX, which updates each layer just before streaming it. [`crate::wafer`] has
//! the rates.
//!
//! Each link carries down the weights of every pass, twice for the backward pass of a recomputed layer, because the
//! wafer does not keep a layer. It carries up one f32 gradient of each parameter per round: a real system accumulates
//! the gradients of all its samples, and SwarmX those of its children. The partial sums of the leaf tree exist only in
//! the emulation; [`Traffic`](crate::report::Traffic) counts them. If samples are divided into tiles, the link also
//! carries the values between layers, to the activation server and back, and the wafer keeps a layer during its pass.

use std::collections::BTreeMap;

use millrace_params::MachineSpec;
use serde::{Deserialize, Serialize};

use crate::optimizers::PLANNED_STATE_TENSORS;
use crate::placement::{Placement, PlacementError, PlacementMembers, swarm_nodes};
use crate::plan::{DEFAULT_CHUNK_ELEMENTS, StateShape, StreamPlan};
use crate::wafer::WaferModel;

mod layer;
mod published_results;

use layer::{LayerTime, PassSeconds, layer_times};
pub use published_results::{
    PUBLISHED_RESULTS, ProjectionError, PublishedModel, PublishedResult, PublishedResultUse, projection_errors,
};

/// Returns the bytes that MemoryX moves to update one parameter: it reads weight, gradient and state, and writes weight
/// and state. An optimizer with sums over whole tensors reads all of them twice.
fn update_bytes(plan: &StreamPlan) -> f64 {
    let values = match &plan.whole_tensor_state {
        None => 3 + 2 * (PLANNED_STATE_TENSORS + plan.extra_state_tensors as usize),
        // State of rows and columns has far fewer elements than the weights.
        Some(state) => 5 + 3 * state.iter().filter(|shape| **shape == StateShape::Full).count(),
    };
    4.0 * values as f64
}

/// Seconds for a SwarmX node to forward a chunk: switch, copy and queue of a 100 GbE network (estimate).
const HOP_SECONDS: f64 = 10e-6;
/// Seconds for the two phases of a commit: four messages (estimate).
const COMMIT_SECONDS: f64 = 400e-6;

/// Projected time of a training step. All rates and seconds refer to the modelled machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    /// Systems that share the batch.
    pub systems: u32,
    /// Seconds of a step, from its first weights to those of the next step.
    pub step_seconds: f64,
    /// Part of `seconds` in which the busiest system computes.
    pub compute_seconds: f64,
    /// Seconds in which it waits for links: the sum of `waits` without MemoryX.
    pub link_seconds: f64,
    /// Seconds between the last gradient and the next step's first weights.
    pub boundary_seconds: f64,
    /// Waits of the busiest system in a step.
    pub waits: WaitSeconds,
    /// Seconds of a step in which a link carries weights down. All links carry the same weights.
    pub weights_link_seconds: f64,
    /// Seconds of a step in which a link carries gradients up.
    pub gradients_link_seconds: f64,
    /// Samples of all systems together, per second.
    pub samples_per_second: f64,
    /// Tokens of all systems together, per second.
    pub tokens_per_second: f64,
    /// Counted operations (without recomputation) divided by the peak of all systems.
    pub utilisation: f64,
}

/// Seconds of a step in which a system waits, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitSeconds {
    /// Weights on the links down.
    pub weights: f64,
    /// Gradients on the links up.
    pub gradients: f64,
    /// MemoryX updating weights ahead of the first round.
    pub memoryx: f64,
    /// The hops of the tree, at both ends of a round.
    pub hops: f64,
    /// Values between layers on the links to and from activation servers.
    pub activations: f64,
}

/// The bottleneck of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The compute rate of the systems.
    Compute,
    /// Weights on the links from MemoryX through SwarmX to the systems.
    WeightsDown,
    /// Gradients on the links from the systems through SwarmX to MemoryX.
    GradientsUp,
    /// The memory of MemoryX, in which weights are updated.
    MemoryX,
    /// Values between layers of samples that are divided into tiles, on the links to and from activation servers.
    Activations,
    /// The hops of the tree and the commit: the time of a step with an arbitrarily small model.
    Latency,
}

/// A wait is the bottleneck of a step, instead of compute, if it takes at least this share of it.
const MIN_BOTTLENECK_SHARE: f64 = 0.05;

impl WaitSeconds {
    const fn total(&self) -> f64 {
        self.weights + self.gradients + self.memoryx + self.hops + self.activations
    }

    fn add(&mut self, other: &Self, times: f64) {
        self.weights += other.weights * times;
        self.gradients += other.gradients * times;
        self.memoryx += other.memoryx * times;
        self.hops += other.hops * times;
        self.activations += other.activations * times;
    }
}

impl Projection {
    /// Returns the bottleneck, and the share of a step that would be saved without it. For compute, returns the share
    /// of the step that it takes.
    pub fn bound(&self) -> (Bottleneck, f64) {
        let by_cause = [
            (Bottleneck::WeightsDown, self.waits.weights),
            (Bottleneck::GradientsUp, self.waits.gradients),
            (Bottleneck::MemoryX, self.waits.memoryx),
            (Bottleneck::Activations, self.waits.activations),
            (Bottleneck::Latency, self.waits.hops + self.boundary_seconds),
        ];
        let (bound, seconds) =
            by_cause.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Bottleneck::Compute, 0.0));
        let share = seconds / self.step_seconds;
        if share > MIN_BOTTLENECK_SHARE {
            (bound, share)
        } else {
            (Bottleneck::Compute, self.compute_seconds / self.step_seconds)
        }
    }
}

/// Projects a step of `plan` on `systems` systems of `appliance`.
///
/// # Errors
/// There is no placement: no systems, or more systems than leaves.
pub fn project_step(plan: &StreamPlan, appliance: &MachineSpec, systems: u32) -> Result<Projection, PlacementError> {
    Ok(project_placement(plan, appliance, &nominal_placement(plan, appliance, systems)?))
}

/// Projects a step of `plan` under `placement`.
pub fn project_placement(plan: &StreamPlan, appliance: &MachineSpec, placement: &Placement) -> Projection {
    let model = TimeModel::new(plan, appliance, placement);
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for round in &placement.rounds {
        *sizes.entry(round.owned.iter().map(ExactSizeIterator::len).max().unwrap_or(0)).or_default() += 1;
    }
    let (mut compute, mut waits) = (0.0, WaitSeconds::default());
    for (&leaves, &rounds) in &sizes {
        let (busy, waited) = model.round(leaves, false);
        compute += busy * rounds as f64;
        waits.add(&waited, rounds as f64);
    }
    if let Some(first) = placement.rounds.first() {
        // The weights of the first round are updated just before they are sent.
        let leaves = first.owned.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        waits.add(&model.round(leaves, false).1, -1.0);
        waits.add(&model.round(leaves, true).1, 1.0);
    }
    let boundary = model.boundary();
    let step = compute + waits.total() + boundary;
    let samples = plan.leaves.batch() as f64;
    let counted: f64 = plan.layers.iter().map(|layer| (layer.forward_flops + layer.backward_flops) as f64).sum();
    let (rounds, systems) = (placement.rounds.len() as f64, placement.systems.len() as u32);
    let down: f64 = model.layers.iter().map(|layer| layer.down_forward + layer.down_backward).sum();
    let up: f64 = model.layers.iter().map(|layer| layer.up).sum();
    Projection {
        systems,
        step_seconds: step,
        compute_seconds: compute,
        link_seconds: waits.total() - waits.memoryx,
        boundary_seconds: boundary,
        waits,
        weights_link_seconds: rounds * model.wafer.link_seconds(down),
        gradients_link_seconds: rounds * model.wafer.link_seconds(up),
        samples_per_second: samples / step,
        tokens_per_second: samples * plan.sequence as f64 / step,
        utilisation: counted * samples / step / (appliance.wafer.peak_flops * f64::from(systems)),
    }
}

/// Computes a placement on `systems` systems with as many SwarmX nodes as they need.
///
/// # Errors
/// See [`Placement::new`].
pub fn nominal_placement(
    plan: &StreamPlan,
    appliance: &MachineSpec,
    systems: u32,
) -> Result<Placement, PlacementError> {
    // Reject more systems than leaves before allocating lists of them.
    if systems > plan.leaves.count {
        return Err(PlacementError::TooManySystems { systems: systems as usize, leaves: plan.leaves.count });
    }
    let fan_out = appliance.swarmx.fan_out as u32;
    let members = PlacementMembers {
        systems: (0..systems).collect(),
        shards: appliance.memoryx.shards as u32,
        memoryx: (0..(appliance.memoryx.shards * appliance.memoryx.replicas) as u32).collect(),
        swarmx: (0..swarm_nodes(systems as usize, fan_out) as u32).collect(),
        fan_out,
        activation_servers: (0..systems).collect(),
    };
    Placement::new(plan, &members)
}

struct TimeModel<'a> {
    leaf_samples: f64,
    wafer: WaferModel<'a>,
    memoryx_bandwidth: f64,
    weight_bytes: f64,
    update_bytes: f64,
    layers: Vec<LayerTime>,
    /// Returns the number of SwarmX nodes between MemoryX and a system.
    depth: f64,
}

impl<'a> TimeModel<'a> {
    fn new(plan: &'a StreamPlan, appliance: &'a MachineSpec, placement: &Placement) -> Self {
        let wafer = WaferModel::new(&appliance.wafer);
        let mut depth = 1.0;
        let mut node = placement.systems.first().map_or(0, |system| system.parent);
        while let Some(parent) = placement.swarm.get(node).and_then(|node| node.parent) {
            (node, depth) = (parent, depth + 1.0);
        }
        Self {
            leaf_samples: f64::from(plan.leaves.samples),
            wafer,
            memoryx_bandwidth: appliance.memoryx.memory_bandwidth,
            weight_bytes: plan.encoding.bytes() as f64,
            update_bytes: update_bytes(plan),
            layers: layer_times(plan, wafer),
            depth,
        }
    }

    /// Returns the seconds for a chunk to pass all SwarmX nodes, each of which receives it completely before
    /// forwarding.
    fn hops(&self) -> f64 {
        self.depth * (HOP_SECONDS + self.wafer.link_seconds((DEFAULT_CHUNK_ELEMENTS as f64) * self.weight_bytes))
    }

    /// Returns the seconds of a round in which a system with `leaves` leaves computes, and its waits.
    fn round(&self, leaves: usize, updated: bool) -> (f64, WaitSeconds) {
        let samples = leaves as f64 * self.leaf_samples;
        let mut waits = WaitSeconds { hops: 2.0 * self.hops(), ..WaitSeconds::default() };
        let mut busy = 0.0;
        for layer in &self.layers {
            let update = if updated { layer.down_forward / self.weight_bytes * self.update_bytes } else { 0.0 };
            let pass = PassSeconds {
                compute: layer.forward * samples,
                down: self.wafer.broadcast_seconds(layer.down_forward),
                up: 0.0,
                update: update / self.memoryx_bandwidth,
                values: layer.values_forward.map(|bytes| self.wafer.link_seconds(bytes * samples)),
            };
            busy += pass.compute;
            pass.add_wait(&mut waits);
        }
        for layer in &self.layers {
            let pass = PassSeconds {
                compute: layer.backward * samples + layer.summing,
                down: self.wafer.broadcast_seconds(layer.down_backward),
                up: self.wafer.link_seconds(layer.up),
                update: 0.0,
                values: layer.values_backward.map(|bytes| self.wafer.link_seconds(bytes * samples)),
            };
            busy += pass.compute;
            pass.add_wait(&mut waits);
        }
        (busy, waits)
    }

    /// Returns the seconds of the commit and of the update of the first layer.
    fn boundary(&self) -> f64 {
        let first = self.layers.first().map_or(0.0, |layer| layer.down_forward) / self.weight_bytes;
        COMMIT_SECONDS + first * self.update_bytes / self.memoryx_bandwidth
    }
}

#[cfg(test)]
mod tests;
