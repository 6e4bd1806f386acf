//! Computes the memory that a system needs to execute a plan.

use millrace_params::LinkSpec;
use serde::{Deserialize, Serialize};

use super::activation_memory::{self, LayerMemory};
use super::{WeightBytes, WeightElements, job, window_elements};
use crate::packing;
use crate::plan::StreamPlan;
use crate::schedule::leaves_per_block;

/// Peak memory of a system on one machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemBytes {
    /// Weights and partial sums of gradients; independent of the number of layers.
    pub weights: WeightBytes,
    /// Matrices in the layout that products read, besides those of `weights`; in the process only.
    pub packed: u64,
    /// Activations of all leaves held at once, and the working memory of one leaf; in the process, of one block of
    /// leaves.
    pub activations: u64,
}

impl SystemBytes {
    /// Returns the sum of all parts.
    pub const fn total(self) -> u64 {
        self.weights.total() + self.packed + self.activations
    }
}

/// Peak memory on the modelled wafer and in the emulating process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemMemory {
    /// On the wafer.
    pub wafer: SystemBytes,
    /// In the process, in f32.
    pub host: SystemBytes,
}

/// Returns the memory of a system that holds `leaves` leaves of a training round, or of an evaluation round, with links
/// as in `link`.
pub fn system_bytes(plan: &StreamPlan, leaves: u32, training: bool, link: &LinkSpec) -> SystemMemory {
    PlanMemory::new(plan).system_bytes(leaves, training, link)
}

/// The memory of every layer of a plan on both machines, computed once.
pub struct PlanMemory<'a> {
    plan: &'a StreamPlan,
    wafer: Vec<LayerMemory>,
    host: Vec<LayerMemory>,
}

impl<'a> PlanMemory<'a> {
    /// Analyzes the layers of `plan`.
    pub fn new(plan: &'a StreamPlan) -> Self {
        let recompute: Vec<bool> = plan.layers.iter().map(|layer| layer.recompute).collect();
        let [wafer, host] = activation_memory::of_machines(&plan.graph, plan.encoding, &recompute, plan.tiles);
        Self { plan, wafer, host }
    }

    /// See [`system_bytes`].
    pub fn system_bytes(&self, leaves: u32, training: bool, link: &LinkSpec) -> SystemMemory {
        let plan = self.plan;
        let layers = plan.layers.iter().map(|layer| layer.groups.as_slice());
        let elements = WeightElements::new(layers, |group| plan.groups[group].elements as u64, &plan.resident);
        let window = match plan.tiles {
            1 => window_elements(job::chunk_elements(link), link.window_chunks),
            _ => u64::MAX,
        };
        let (mut wafer, mut host) = (elements.on_wafer(plan.encoding.bytes() as u64, window), elements.on_host(leaves));
        if !training {
            (wafer.gradients, host.gradients) = (0, 0);
        }
        let samples = if training { plan.leaves.samples } else { plan.eval_leaves.samples };
        let activations = |layers: &[LayerMemory], block: u32| {
            let peak = |layer: &LayerMemory| {
                let (retained, working) = if training {
                    (layer.retained, layer.working())
                } else {
                    (layer.retained_eval, layer.working_eval)
                };
                (retained * u64::from(leaves) + working * u64::from(block)) * u64::from(samples)
            };
            layers.iter().map(peak).max().unwrap_or(0)
        };
        let block = leaves_per_block(&plan.graph, samples).min(leaves);
        SystemMemory {
            wafer: SystemBytes { weights: wafer, packed: 0, activations: activations(&self.wafer, 1) },
            host: SystemBytes {
                weights: host,
                packed: packing::packed_bytes(plan, training),
                activations: activations(&self.host, block),
            },
        }
    }
}
