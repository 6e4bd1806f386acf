//! Computes the bytes of activation memory that each layer needs per sample, from its [schedule](crate::schedule).
//!
//! Each value is counted once. A value that lives between a forward and a backward pass counts as `saved` in the layer
//! whose backward pass reads it last. Saved are the inputs of a layer and, unless the layer is recomputed, what its
//! operators save. Samples are held during all passes.

use super::tiles::SampleTiling;
use super::{HOST_ACTIVATION_BYTES, wafer_activation_bytes};
use crate::graph::{Graph, NodeId};
use crate::plan::Encoding;
use crate::schedule::{Liveness, PassMemory, PassSchedule, StorageKind, StorageSlot};

/// Bytes of an extra number or an element of an input, on every machine.
const ELEMENT_BYTES: u64 = 4;

/// Bytes per sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerMemory {
    /// Held by this layer from its forward pass to its backward pass.
    pub saved: u64,
    /// Working memory of the forward pass.
    pub forward: u64,
    /// Working memory of the backward pass, recomputation included.
    pub backward: u64,
    /// Held for every leaf while this layer trains: samples, values saved so far, and gradients that enter or leave the
    /// layer.
    pub retained: u64,
    /// Held for every leaf while this layer evaluates: samples and the values that enter or leave the layer.
    pub retained_eval: u64,
    /// Working memory in an evaluation.
    pub working_eval: u64,
}

impl LayerMemory {
    /// Returns the larger of the working memories of the two training passes.
    pub fn working(&self) -> u64 {
        self.forward.max(self.backward)
    }
}

/// Computes the memory of a valid graph on `N` machines with the given bytes per activation. Only one schedule is in
/// memory at a time, because the schedule of a large model is larger than its graph; each schedule is built once for
/// all machines.
pub(super) struct MemoryAnalysis<'a, const N: usize> {
    graph: &'a Graph,
    activation_bytes: [u64; N],
    evaluation: [Vec<PassMemory>; N],
}

/// Returns the memory of training if the layers marked in `recompute` are recomputed.
pub(super) struct TrainingMemory<const N: usize> {
    /// Memory of each layer, for each machine.
    pub layers: [Vec<LayerMemory>; N],
    /// Elements that each layer holds between its passes.
    saved_elements: Vec<u64>,
}

/// Computes the memory of training on the modelled wafer, which divides a sample into `tiles`, and in the emulating
/// process.
pub(super) fn of_machines(graph: &Graph, encoding: Encoding, recompute: &[bool], tiles: u32) -> [Vec<LayerMemory>; 2] {
    let bytes = wafer_activation_bytes(encoding);
    let [mut wafer, host] = MemoryAnalysis::new(graph, [bytes, HOST_ACTIVATION_BYTES]).training(recompute).layers;
    if let (2.., Some(tiling)) = (tiles, SampleTiling::new(graph)) {
        wafer = tiling.memory(&wafer, bytes, tiles);
    }
    [wafer, host]
}

impl<'a, const N: usize> MemoryAnalysis<'a, N> {
    pub fn new(graph: &'a Graph, activation_bytes: [u64; N]) -> Self {
        let schedule = PassSchedule::evaluation(graph);
        let evaluation = activation_bytes.map(|bytes| schedule.demand(|piece| size_of_piece(piece, bytes)));
        Self { graph, activation_bytes, evaluation }
    }

    /// Analyzes training with the layers recomputed that `recompute` marks.
    pub fn training(&self, recompute: &[bool]) -> TrainingMemory<N> {
        let schedule = PassSchedule::training(self.graph, recompute);
        let layers = std::array::from_fn(|machine| self.layers(&schedule, machine));
        TrainingMemory { layers, saved_elements: saved_bytes_by_layer(self.graph, &schedule, |piece| piece.elements) }
    }

    /// Returns for each layer whether recomputation holds less memory than saving what its backward pass needs.
    pub fn recompute_helps(&self, saving: &TrainingMemory<N>) -> Vec<bool> {
        let recomputing = self.training(&vec![true; self.graph.layers.len()]);
        recomputing.saved_elements.iter().zip(&saving.saved_elements).map(|(with, without)| with < without).collect()
    }

    fn layers(&self, schedule: &PassSchedule, machine: usize) -> Vec<LayerMemory> {
        let size = |piece: &StorageSlot| size_of_piece(piece, self.activation_bytes[machine]);
        let (train, eval) = (schedule.demand(size), &self.evaluation[machine]);
        let saved = saved_bytes_by_layer(self.graph, schedule, size);
        let samples = self.graph.input_bytes() + self.graph.constant_bytes();
        let layer = |layer: usize| {
            let (forward, backward) = (train[layer], train[schedule.backward_pass(layer)]);
            LayerMemory {
                saved: saved[layer],
                forward: forward.working,
                backward: backward.working,
                retained: samples + forward.retained.max(backward.retained),
                retained_eval: samples + eval[layer].retained,
                working_eval: eval[layer].working,
            }
        };
        (0..self.graph.layers.len()).map(layer).collect()
    }
}

/// Returns the bytes of a storage slot on a machine with `activation_bytes` per activation.
const fn size_of_piece(piece: &StorageSlot, activation_bytes: u64) -> u64 {
    match piece.kind {
        StorageKind::Values => piece.elements * activation_bytes,
        StorageKind::Scratch => piece.elements * ELEMENT_BYTES,
    }
}

/// Returns the bytes each layer holds from its forward to its backward pass. Samples count in the layer that reads them
/// first.
fn saved_bytes_by_layer(graph: &Graph, schedule: &PassSchedule, size: impl Fn(&StorageSlot) -> u64) -> Vec<u64> {
    let layers = graph.layers.len();
    let mut saved = vec![0; layers];
    for piece in &schedule.storage {
        let (first, last) = piece.passes;
        if first < layers && last >= layers {
            saved[2 * layers - 1 - last] += size(piece);
        }
    }
    for &value in &graph.inputs {
        let is_read_by =
            |nodes: &std::ops::Range<NodeId>| graph.nodes[nodes.clone()].iter().any(|n| n.inputs.contains(&value));
        if let Some(layer) = graph.layers.iter().position(|layer| is_read_by(&layer.nodes)) {
            saved[layer] += graph.values[value].shape.elements() * ELEMENT_BYTES;
        }
    }
    saved
}

/// Returns for each layer the operators that its backward pass repeats if the layer is recomputed, in order: those that
/// contribute to a value its backward pass needs. (In a transformer block this excludes the last projection.)
pub fn recomputed_nodes(graph: &Graph) -> Vec<Vec<NodeId>> {
    let liveness = Liveness::new(graph);
    (0..graph.layers.len()).map(|layer| liveness.repeated(graph, layer)).collect()
}
