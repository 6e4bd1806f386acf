//! What a system holds while it works, of a finished plan.

use millrace_params::LinkSpec;
use serde::{Deserialize, Serialize};

use super::activation_memory::{LayerMemory, MemoryAnalysis};
use super::{HOST_ACTIVATION_BYTES, WeightBytes, WeightElements, job, wafer_activation_bytes, window_elements};
use crate::graph::OpNode;
use crate::ops::{Signature, operator};
use crate::plan::StreamPlan;

/// Bytes a system needs at its fullest, on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemBytes {
    /// Weights and partial sums of gradients; independent of the number of layers.
    pub weights: WeightBytes,
    /// Copies of the weights of the layer at work, in the order in which products read them; in the process only.
    pub packed: u64,
    /// Activations of all leaves held at once, and the working memory of one.
    pub activations: u64,
}

impl SystemBytes {
    /// All of it.
    pub const fn total(self) -> u64 {
        self.weights.total() + self.packed + self.activations
    }
}

/// The same on the modelled wafer and in the emulating process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemMemory {
    /// On the wafer.
    pub wafer: SystemBytes,
    /// In the process, where everything is f32.
    pub host: SystemBytes,
}

/// What a system needs that holds `leaves` leaves of a training round, or of an evaluation round, behind links as in
/// `link`.
pub fn system_bytes(plan: &StreamPlan, leaves: u32, training: bool, link: &LinkSpec) -> SystemMemory {
    PlanMemory::new(plan).system_bytes(leaves, training, link)
}

/// The memory of every layer of a plan, on both machines.
pub struct PlanMemory<'a> {
    plan: &'a StreamPlan,
    wafer: Vec<LayerMemory>,
    host: Vec<LayerMemory>,
}

impl<'a> PlanMemory<'a> {
    /// Of `plan`.
    pub fn new(plan: &'a StreamPlan) -> Self {
        let recompute: Vec<bool> = plan.layers.iter().map(|layer| layer.recompute).collect();
        let machines = [wafer_activation_bytes(plan.encoding), HOST_ACTIVATION_BYTES];
        let [wafer, host] = MemoryAnalysis::new(&plan.graph, machines).training(&recompute).layers;
        Self { plan, wafer, host }
    }

    /// As [`system_bytes`].
    pub fn system_bytes(&self, leaves: u32, training: bool, link: &LinkSpec) -> SystemMemory {
        let plan = self.plan;
        let layers = plan.layers.iter().map(|layer| layer.groups.as_slice());
        let elements = WeightElements::new(layers, |group| plan.groups[group].elements as u64, &plan.resident);
        let window = window_elements(job::chunk_elements(link), link.window_chunks);
        let (mut wafer, mut host) = (elements.on_wafer(plan.encoding.bytes() as u64, window), elements.on_host(leaves));
        if !training {
            (wafer.gradients, host.gradients) = (0, 0);
        }
        let samples = u64::from(if training { plan.leaves.samples } else { plan.eval_leaves.samples });
        let peak = |layer: &LayerMemory| {
            let (held, working) =
                if training { (layer.held, layer.working()) } else { (layer.held_eval, layer.working_eval) };
            (held * u64::from(leaves) + working) * samples
        };
        let activations = |layers: &[LayerMemory]| layers.iter().map(peak).max().unwrap_or(0);
        SystemMemory {
            wafer: SystemBytes { weights: wafer, packed: 0, activations: activations(&self.wafer) },
            host: SystemBytes {
                weights: host,
                packed: packed_bytes(plan, training),
                activations: activations(&self.host),
            },
        }
    }
}

/// Layers share the memory of their copies: forward ones, and in training backward ones.
fn packed_bytes(plan: &StreamPlan, training: bool) -> u64 {
    let graph = &plan.graph;
    let of = |node: &OpNode| operator(&node.op).packed(&Signature::of(graph, node));
    let layers = graph.layers.iter().map(|layer| graph.nodes[layer.nodes.clone()].iter().map(of).sum::<u64>());
    layers.max().unwrap_or(0) * 4 * if training { 2 } else { 1 }
}
