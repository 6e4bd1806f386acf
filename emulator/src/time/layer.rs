//! The time of a pass over a layer: computing, and what crosses the system's link meanwhile.

use super::WaitSeconds;
use crate::compile::{SampleTiling, TiledLayer, recomputed_nodes, wafer_activation_bytes};
use crate::graph::{Graph, NodeId};
use crate::ops::{RowDependency, Signature, node_flops};
use crate::plan::{Pass, StreamPlan};
use crate::wafer::WaferModel;

/// Bytes of a gradient on the wire.
const GRADIENT_BYTES: f64 = 4.0;

/// The values of a layer that do not depend on the round.
#[derive(Clone, Copy, Default)]
pub(super) struct LayerTime {
    /// Seconds a sample takes forward.
    pub forward: f64,
    /// Seconds a sample takes backward, recomputation included.
    pub backward: f64,
    /// Seconds to sum the gradients of its tensors over the wafer, for any number of samples.
    pub summing: f64,
    /// Weight bytes streamed for the forward pass.
    pub down_forward: f64,
    /// Weight bytes streamed for the backward pass.
    pub down_backward: f64,
    /// Bytes of its gradients.
    pub up: f64,
    /// Bytes of a sample's values that the forward pass receives and sends; 0 without tiles.
    pub values_forward: [f64; 2],
    /// The same for the backward pass, with gradients of values.
    pub values_backward: [f64; 2],
}

/// Seconds of what happens at the same time while a system passes over a layer.
pub(super) struct PassSeconds {
    pub compute: f64,
    /// Weights on the link down.
    pub down: f64,
    /// Gradients of weights on the link up.
    pub up: f64,
    /// The update of the weights in MemoryX.
    pub update: f64,
    /// Values between layers on the links down and up.
    pub values: [f64; 2],
}

impl PassSeconds {
    /// Adds the time that the slowest part takes in excess of computing to the wait for this part.
    pub fn add_wait(&self, waits: &mut WaitSeconds) {
        let [values_down, values_up] = self.values;
        let (down, up) = (self.down + values_down, self.up + values_up);
        let excess = down.max(up).max(self.update).max(self.compute) - self.compute;
        let (streamed, values) = if down > up { (self.down, values_down) } else { (self.up, values_up) };
        let wait = match () {
            () if self.update > down.max(up) => &mut waits.memoryx,
            () if values > streamed => &mut waits.activations,
            () if down > up => &mut waits.weights,
            () => &mut waits.gradients,
        };
        *wait += excess;
    }
}

/// Returns the times of all layers: products at the wafer's rate, and every value read or written once.
pub(super) fn layer_times(plan: &StreamPlan, wafer: WaferModel<'_>) -> Vec<LayerTime> {
    let graph = &plan.graph;
    let mut layers = vec![LayerTime::default(); plan.layers.len()];
    let recomputed = recomputed_nodes(graph);
    for (index, layer) in layers.iter_mut().enumerate() {
        let nodes = graph.layers[index].nodes.clone();
        for id in nodes.clone() {
            let [forward, backward] = node_seconds(plan, wafer, id);
            layer.forward += forward;
            layer.backward += backward;
            if plan.layers[index].recompute && recomputed[index].contains(&id) {
                // What attention reads is computed for all rows, and again for the rows of each tile.
                let attends = (id + 1..nodes.end).any(|later| is_attention(graph, later));
                layer.backward += if plan.tiles > 1 && attends { 2.0 * forward } else { forward };
            }
        }
        let weights: usize = plan.layers[index].groups.iter().map(|&group| plan.groups[group].elements).sum();
        layer.summing = wafer.product_seconds(0.0, weights as f64);
    }
    if let (2.., Some(tiling)) = (plan.tiles, SampleTiling::new(graph)) {
        for (layer, tiled) in layers.iter_mut().zip(tiling.layers()) {
            (layer.values_forward, layer.values_backward) = value_bytes(tiled, plan);
        }
    }
    for slot in &plan.down_train {
        let bytes = (plan.chunks[slot.chunk].elements * plan.chunk_encoding(slot.chunk).bytes()) as f64;
        let layer = &mut layers[slot.layer];
        match slot.pass {
            Pass::Forward => layer.down_forward += bytes,
            // Twice: to recompute the layer, and for the gradients. All tiles use the weights while they are there.
            Pass::Backward if plan.layers[slot.layer].recompute && plan.tiles == 1 => {
                layer.down_backward += 2.0 * bytes
            }
            Pass::Backward => layer.down_backward += bytes,
        }
    }
    for slot in &plan.up {
        layers[slot.layer].up += plan.chunks[slot.chunk].elements as f64 * GRADIENT_BYTES;
    }
    layers
}

/// Returns the seconds that an operator takes for a sample, forward and backward without recomputation.
fn node_seconds(plan: &StreamPlan, wafer: WaferModel<'_>, id: NodeId) -> [f64; 2] {
    let graph = &plan.graph;
    let (flops, node) = (node_flops(graph, id), &graph.nodes[id]);
    let io = Signature::of(graph, node);
    let output = node.op.operator().output(&io).ok().flatten().map_or(0, |shape| shape.elements());
    let elements = io.inputs.iter().map(|shape| shape.elements()).sum::<u64>() + output;
    let memory = wafer.memory_seconds((elements * plan.encoding.bytes() as u64) as f64);
    [
        wafer.product_seconds(flops.forward as f64, flops.forward_sums as f64) + memory,
        wafer.product_seconds(flops.backward as f64, flops.backward_sums as f64) + 2.0 * memory,
    ]
}

fn is_attention(graph: &Graph, id: NodeId) -> bool {
    graph.nodes[id].op.operator().row_dependency() == RowDependency::Earlier
}

/// Returns the bytes of a sample's values that each pass over a layer receives and sends.
fn value_bytes(layer: &TiledLayer, plan: &StreamPlan) -> ([f64; 2], [f64; 2]) {
    let bytes = |elements: u64| (elements * wafer_activation_bytes(plan.encoding)) as f64;
    let (read, written) = (bytes(layer.read), bytes(layer.written));
    // The backward pass first computes what attention reads in all rows, and then goes through the tiles.
    let times = if layer.attends() { 2.0 } else { 1.0 };
    ([read, written], [times * read + written, read])
}
