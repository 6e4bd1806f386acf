//! How many bytes a sample needs, layer by layer: the [schedule](crate::schedule) in bytes of a machine.
//!
//! Each value is counted once. What lives between forward and backward passes is `saved` by the layer whose backward pass
//! is the last to need it: its inputs, and what its operators save unless it is recomputed. Samples are there all along.

use std::rc::Rc;

use crate::graph::{Graph, NodeId, ValueId};
use crate::schedule::{Lives, Schedule, Storage, StorageKind};

/// Bytes of extra numbers and tokens, on every machine.
const NUMBER_BYTES: u64 = 4;

/// Bytes per sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerMemory {
    /// Kept by this layer between its passes.
    pub saved: u64,
    /// Working memory of the forward pass.
    pub forward: u64,
    /// Working memory of the backward pass, recomputation included.
    pub backward: u64,
    /// Kept for every leaf while this layer trains: samples, what is saved up to here and gradients that cross into it or
    /// out of it.
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

/// The schedules of a valid graph, from which its memory follows on any machine. Of a large model they take more memory than
/// its graph, so they are made once and not kept.
pub(super) struct Analysis<'a> {
    graph: &'a Graph,
    training: Schedule,
    evaluation: Rc<Schedule>,
}

impl<'a> Analysis<'a> {
    /// With the layers recomputed that `recompute` says.
    pub fn new(graph: &'a Graph, recompute: &[bool]) -> Self {
        let evaluation = Rc::new(Schedule::evaluation(graph));
        Self { graph, training: Schedule::training(graph, recompute), evaluation }
    }

    /// The same graph with other layers recomputed.
    pub fn with(&self, recompute: &[bool]) -> Self {
        let training = Schedule::training(self.graph, recompute);
        Self { graph: self.graph, training, evaluation: Rc::clone(&self.evaluation) }
    }

    /// Whether recomputing each layer inside keeps less than this, which saves all of it.
    pub fn recompute_helps(&self) -> Vec<bool> {
        let recomputing = Schedule::training(self.graph, &vec![true; self.graph.layers.len()]);
        let saved = |schedule: &Schedule| saved(self.graph, schedule, |piece| piece.elements);
        saved(&recomputing).iter().zip(saved(&self.training)).map(|(with, without)| *with < without).collect()
    }

    /// The memory of every layer on a machine whose activations have `activation_bytes`.
    pub fn layers(&self, activation_bytes: u64) -> Vec<LayerMemory> {
        let size = |piece: &Storage| match piece.kind {
            StorageKind::Values => piece.elements * activation_bytes,
            StorageKind::Numbers => piece.elements * NUMBER_BYTES,
        };
        let (train, eval) = (self.training.demand(size), self.evaluation.demand(size));
        let saved = saved(self.graph, &self.training, size);
        let samples = token_bytes(self.graph, self.graph.tokens) + token_bytes(self.graph, self.graph.labels);
        let layer = |layer: usize| {
            let (forward, backward) = (train[layer], train[self.training.backward_pass(layer)]);
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

/// What each layer keeps from its forward to its backward pass; samples count where they are read first.
fn saved(graph: &Graph, schedule: &Schedule, size: impl Fn(&Storage) -> u64) -> Vec<u64> {
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
    graph.values[value].rows as u64 * NUMBER_BYTES
}

/// For each layer, the operators that it carries out again in its backward pass when it is recomputed, in order: those
/// that lead to something its backward pass needs. (Of a transformer block, not the last projection.)
pub fn recomputed_nodes(graph: &Graph) -> Vec<Vec<NodeId>> {
    let lives = Lives::new(graph);
    (0..graph.layers.len()).map(|layer| lives.repeated(graph, layer)).collect()
}
