//! How long the modelled machine would take: a projection, never a measurement.
//!
//! A step is its rounds one after the other, and the commit. In a round every system works on its leaves layer by layer,
//! while the next layer's weights come in and the last one's gradients go out: a layer takes as long as the slowest of
//! the three. What can't be hidden: the first weights, the last gradients, and the tree's hops. MemoryX updates each
//! layer just ahead of streaming it, so that only the first update shows. See [`crate::wafer`] for the rates.

use millrace_params::ApplianceSpec;
use serde::{Deserialize, Serialize};

use crate::graph::LayerId;
use crate::ops::{Signature, node_flops, operator};
use crate::placement::{Members, Placement, PlacementError, swarm_nodes};
use crate::plan::{CHUNK_ELEMENTS, Pass, StreamPlan};
use crate::wafer::Wafer;

mod anchors;

pub use anchors::{ANCHORS, Anchor, AnchorError, anchor_errors};

/// Bytes that MemoryX moves to update one parameter: weight, two moments and gradient read, the first three written.
const UPDATE_BYTES: f64 = 28.0;
/// Bytes of a gradient on the wire.
const GRADIENT_BYTES: f64 = 4.0;
/// Seconds for a SwarmX node to pass on what has arrived: switch, copy and queue of a 100 GbE network (an estimate).
const HOP_SECONDS: f64 = 10e-6;
/// Seconds for the two phases of a commit: four messages (an estimate).
const COMMIT_SECONDS: f64 = 400e-6;

/// Projected time of a training step. All rates and seconds are of the modelled machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    /// Systems that share the batch.
    pub systems: u32,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Of these, seconds in which the busiest system computes.
    pub compute_seconds: f64,
    /// Seconds in which it waits for weights, or for its gradients to leave.
    pub link_seconds: f64,
    /// Seconds between the last gradient and the next step's first weights.
    pub boundary_seconds: f64,
    /// Samples of all systems together, per second.
    pub samples_per_second: f64,
    /// Tokens of all systems together, per second.
    pub tokens_per_second: f64,
    /// Counted operations (no recomputation) over the peak of all systems.
    pub utilisation: f64,
}

/// Projects a step of `plan` on `systems` systems of `appliance`.
///
/// # Errors
/// When there can be no such placement: no systems, or more than leaves.
pub fn project(plan: &StreamPlan, appliance: &ApplianceSpec, systems: u32) -> Result<Projection, PlacementError> {
    let placement = nominal_placement(plan, appliance, systems)?;
    let model = Model::new(plan, appliance, &placement);
    let (mut compute, mut link) = (0.0, 0.0);
    for round in 0..placement.rounds.len() {
        let (busy, total) = model.round(round);
        compute += busy;
        link += total - busy;
    }
    let boundary = model.boundary();
    let step = compute + link + boundary;
    let samples = plan.leaves.batch() as f64;
    let counted: f64 = plan.layers.iter().map(|layer| (layer.forward_flops + layer.backward_flops) as f64).sum();
    Ok(Projection {
        systems,
        step_seconds: step,
        compute_seconds: compute,
        link_seconds: link,
        boundary_seconds: boundary,
        samples_per_second: samples / step,
        tokens_per_second: samples * plan.sequence as f64 / step,
        utilisation: counted * samples / step / (appliance.wafer.peak_flops * f64::from(systems)),
    })
}

/// A placement on `systems` systems with as many SwarmX nodes as they need.
///
/// # Errors
/// As [`Placement::new`].
pub fn nominal_placement(
    plan: &StreamPlan,
    appliance: &ApplianceSpec,
    systems: u32,
) -> Result<Placement, PlacementError> {
    // More systems than leaves are refused before any list of them is made.
    if systems > plan.leaves.count {
        return Err(PlacementError::TooManySystems { systems: systems as usize, leaves: plan.leaves.count });
    }
    let fan_out = appliance.swarmx.fan_out as u32;
    let members = Members {
        systems: (0..systems).collect(),
        shards: appliance.memoryx.shards as u32,
        swarmx: (0..swarm_nodes(systems as usize, fan_out) as u32).collect(),
        fan_out,
        activation_servers: systems,
    };
    Placement::new(plan, &members)
}

/// Per layer of the plan, what does not depend on the round.
struct LayerTime {
    /// Seconds a sample takes forward.
    forward: f64,
    /// Seconds a sample takes backward, recomputation included.
    backward: f64,
    /// Weight bytes streamed for the forward pass.
    down_forward: f64,
    /// Weight bytes streamed for the backward pass.
    down_backward: f64,
    /// Bytes of one partial sum of its gradients.
    up: f64,
}

struct Model<'a> {
    placement: &'a Placement,
    leaf_samples: f64,
    wafer: Wafer<'a>,
    memoryx_bandwidth: f64,
    weight_bytes: f64,
    layers: Vec<LayerTime>,
    /// SwarmX nodes between MemoryX and a system.
    depth: f64,
}

impl<'a> Model<'a> {
    fn new(plan: &'a StreamPlan, appliance: &'a ApplianceSpec, placement: &'a Placement) -> Self {
        let wafer = Wafer::new(&appliance.wafer);
        let mut layers: Vec<LayerTime> = (0..plan.layers.len()).map(|layer| layer_time(plan, layer, wafer)).collect();
        for slot in &plan.down_train {
            let bytes = (plan.chunks[slot.chunk].elements * plan.chunk_encoding(slot.chunk).bytes()) as f64;
            let layer = &mut layers[slot.layer];
            *(if slot.pass == Pass::Forward { &mut layer.down_forward } else { &mut layer.down_backward }) += bytes;
        }
        for slot in &plan.up {
            layers[slot.layer].up += plan.chunks[slot.chunk].elements as f64 * GRADIENT_BYTES;
        }
        let mut depth = 1.0;
        let mut node = placement.systems.first().map_or(0, |system| system.parent);
        while let Some(parent) = placement.swarm.get(node).and_then(|node| node.parent) {
            (node, depth) = (parent, depth + 1.0);
        }
        Self {
            placement,
            leaf_samples: f64::from(plan.leaves.samples),
            wafer,
            memoryx_bandwidth: appliance.memoryx.memory_bandwidth,
            weight_bytes: plan.encoding.bytes() as f64,
            layers,
            depth,
        }
    }

    /// Seconds for a chunk to pass all SwarmX nodes, each of which waits for the whole of it.
    fn hops(&self) -> f64 {
        self.depth * (HOP_SECONDS + self.wafer.link_seconds((CHUNK_ELEMENTS as f64) * self.weight_bytes))
    }

    /// Seconds of a round in which the busiest system computes, and all its seconds.
    fn round(&self, round: usize) -> (f64, f64) {
        let leaves = self.placement.rounds[round].owned.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let samples = leaves as f64 * self.leaf_samples;
        let sums = self.most_sums(round);
        let link = |bytes| self.wafer.link_seconds(bytes);
        let last = self.layers.len() - 1;

        let mut busy = 0.0;
        let mut total = self.hops() + link(self.layers[0].down_forward);
        for (at, layer) in self.layers.iter().enumerate() {
            let next = match self.layers.get(at + 1) {
                Some(next) => next.down_forward,
                None => layer.down_backward,
            };
            busy += layer.forward * samples;
            total += (layer.forward * samples).max(link(next));
        }
        for at in (0..=last).rev() {
            let layer = &self.layers[at];
            let next = if at > 0 { self.layers[at - 1].down_backward } else { 0.0 };
            let before = self.layers.get(at + 1).map_or(0.0, |before| before.up * sums);
            busy += layer.backward * samples;
            total += (layer.backward * samples).max(link(next)).max(link(before));
        }
        (busy, total + link(self.layers[0].up * sums) + self.hops())
    }

    /// The most partial sums of a chunk that any link carries in a round.
    fn most_sums(&self, round: usize) -> f64 {
        let systems = (0..self.placement.systems.len()).map(|place| self.placement.system_nodes(place, round).len());
        let swarm = (0..self.placement.swarm.len()).map(|place| self.placement.swarm_nodes(place, round).len());
        systems.chain(swarm).max().unwrap_or(1) as f64
    }

    /// The commit, and the update of the first layer.
    fn boundary(&self) -> f64 {
        let first = self.layers[0].down_forward / self.weight_bytes;
        COMMIT_SECONDS + first * UPDATE_BYTES / self.memoryx_bandwidth
    }
}

/// Seconds a sample takes in a layer: products at the wafer's efficiency, and every value once through its memory.
fn layer_time(plan: &StreamPlan, layer: LayerId, wafer: Wafer<'_>) -> LayerTime {
    let graph = &plan.graph;
    let (mut forward, mut backward) = (0.0, 0.0);
    let mut narrowest = u64::MAX;
    for id in graph.layers[layer].nodes.clone() {
        let flops = node_flops(graph, id);
        let node = &graph.nodes[id];
        let io = Signature::of(graph, node);
        let output = operator(&node.op).output(&io).ok().flatten().map_or(0, |shape| shape.elements());
        let elements = io.inputs.iter().map(|shape| shape.elements()).sum::<u64>() + output;
        let memory = wafer.memory_seconds((elements * plan.encoding.bytes() as u64) as f64);
        forward += wafer.product_seconds(flops.forward as f64, flops.width) + memory;
        backward += wafer.product_seconds(flops.backward as f64, flops.width) + 2.0 * memory;
        narrowest = if flops.forward > 0 { narrowest.min(flops.width) } else { narrowest };
    }
    backward += wafer.product_seconds(plan.layers[layer].recompute_flops as f64, narrowest);
    LayerTime { forward, backward, down_forward: 0.0, down_backward: 0.0, up: 0.0 }
}

#[cfg(test)]
mod tests;
