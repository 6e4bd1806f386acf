//! How many bytes a sample needs, layer by layer: the [schedule](crate::schedule) in bytes of a machine.
//!
//! Each value is counted once. What lives between forward and backward passes is `saved` by the layer whose backward
//! pass is the last to need it: its inputs, and what its operators save unless it is recomputed. Samples are there all
//! along.

use crate::graph::{Graph, NodeId, ValueId};
use crate::schedule::{Liveness, PassMemory, PassSchedule, StorageKind, StorageSlot};

/// Bytes of extra numbers and tokens, on every machine.
const ELEMENT_BYTES: u64 = 4;

/// Bytes per sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerMemory {
    /// Kept by this layer between its passes.
    pub saved: u64,
    /// Working memory of the forward pass.
    pub forward: u64,
    /// Working memory of the backward pass, recomputation included.
    pub backward: u64,
    /// Kept for every leaf while this layer trains: samples, what is saved up to here and gradients that cross into it
    /// or out of it.
    pub held: u64,
    /// Kept for every leaf while this layer evaluates: samples and the values that cross into or out of it.
    pub held_eval: u64,
    /// Working memory in an evaluation.
    pub working_eval: u64,
}

impl LayerMemory {
    /// Working memory of the training pass that needs more.
    pub fn working(&self) -> u64 {
        self.forward.max(self.backward)
    }
}

/// The memory of a valid graph on `N` machines, whose activations have so many bytes. Schedules of a large model take
/// more memory than its graph, so there is one at a time, and each is made once for all machines.
pub(super) struct MemoryAnalysis<'a, const N: usize> {
    graph: &'a Graph,
    activation_bytes: [u64; N],
    evaluation: [Vec<PassMemory>; N],
}

/// The memory of training with some layers recomputed.
pub(super) struct TrainingMemory<const N: usize> {
    /// Of every layer on each machine.
    pub layers: [Vec<LayerMemory>; N],
    /// Numbers that each layer keeps between its passes.
    saved_elements: Vec<u64>,
}

impl<'a, const N: usize> MemoryAnalysis<'a, N> {
    pub fn new(graph: &'a Graph, activation_bytes: [u64; N]) -> Self {
        let schedule = PassSchedule::evaluation(graph);
        let evaluation = activation_bytes.map(|bytes| schedule.demand(|piece| size_of_piece(piece, bytes)));
        Self { graph, activation_bytes, evaluation }
    }

    /// With the layers recomputed that `recompute` says.
    pub fn training(&self, recompute: &[bool]) -> TrainingMemory<N> {
        let schedule = PassSchedule::training(self.graph, recompute);
        let layers = std::array::from_fn(|machine| self.layers(&schedule, machine));
        TrainingMemory { layers, saved_elements: saved_bytes_by_layer(self.graph, &schedule, |piece| piece.elements) }
    }

    /// For each layer, whether recomputing it inside keeps less than saving what its backward pass needs.
    pub fn recompute_helps(&self, saving: &TrainingMemory<N>) -> Vec<bool> {
        let recomputing = self.training(&vec![true; self.graph.layers.len()]);
        recomputing.saved_elements.iter().zip(&saving.saved_elements).map(|(with, without)| with < without).collect()
    }

    fn layers(&self, schedule: &PassSchedule, machine: usize) -> Vec<LayerMemory> {
        let size = |piece: &StorageSlot| size_of_piece(piece, self.activation_bytes[machine]);
        let (train, eval) = (schedule.demand(size), &self.evaluation[machine]);
        let saved = saved_bytes_by_layer(self.graph, schedule, size);
        let samples = token_bytes(self.graph, self.graph.tokens) + token_bytes(self.graph, self.graph.labels);
        let layer = |layer: usize| {
            let (forward, backward) = (train[layer], train[schedule.backward_pass(layer)]);
            LayerMemory {
                saved: saved[layer],
                forward: forward.working,
                backward: backward.working,
                held: samples + forward.held.max(backward.held),
                held_eval: samples + eval[layer].held,
                working_eval: eval[layer].working,
            }
        };
        (0..self.graph.layers.len()).map(layer).collect()
    }
}

/// Bytes of a piece of memory on a machine whose activations have `activation_bytes`.
const fn size_of_piece(piece: &StorageSlot, activation_bytes: u64) -> u64 {
    match piece.kind {
        StorageKind::Values => piece.elements * activation_bytes,
        StorageKind::Scratch => piece.elements * ELEMENT_BYTES,
    }
}

/// What each layer keeps from its forward to its backward pass; samples count where they are read first.
fn saved_bytes_by_layer(graph: &Graph, schedule: &PassSchedule, size: impl Fn(&StorageSlot) -> u64) -> Vec<u64> {
    let layers = graph.layers.len();
    let mut saved = vec![0; layers];
    for piece in &schedule.storage {
        let (first, last) = piece.passes;
        if first < layers && last >= layers {
            saved[2 * layers - 1 - last] += size(piece);
        }
    }
    for value in [graph.tokens, graph.labels] {
        let reads =
            |nodes: &std::ops::Range<NodeId>| graph.nodes[nodes.clone()].iter().any(|n| n.inputs.contains(&value));
        if let Some(layer) = graph.layers.iter().position(|layer| reads(&layer.nodes)) {
            saved[layer] += token_bytes(graph, value);
        }
    }
    saved
}

fn token_bytes(graph: &Graph, value: ValueId) -> u64 {
    graph.values[value].rows as u64 * ELEMENT_BYTES
}

/// For each layer, the operators that it carries out again in its backward pass when it is recomputed, in order: those
/// that lead to something its backward pass needs. (Of a transformer block, not the last projection.)
pub fn recomputed_nodes(graph: &Graph) -> Vec<Vec<NodeId>> {
    let lives = Liveness::new(graph);
    (0..graph.layers.len()).map(|layer| lives.repeated(graph, layer)).collect()
}
