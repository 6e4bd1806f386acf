//! How many bytes a sample needs, layer by layer, by the lifetimes of values.
//!
//! What lives when (the executor's contract, see also [`crate::ops`]):
//! * a layer's input values live from where they are made to the end of the backward pass of the first layer that reads
//!   them; each is counted once, in that layer's `saved`;
//! * values that a layer makes and its own backward pass needs live until then: in `saved`, or, when the layer is
//!   recomputed, in `backward` (one leaf at a time), and so do the extra numbers of operators;
//! * all other values live while their layer works on one leaf: in `forward` and `backward`;
//! * the gradient of a value that crosses layers lives, for all leaves, between their backward passes: in `held`.

use crate::graph::{Graph, LayerId, NodeId, ValueId, ValueType};
use crate::ops::{Signature, operator};

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
    /// Kept for every leaf while this layer trains: what is saved up to here and gradients that cross into it.
    pub held: u64,
    /// Kept for every leaf while this layer evaluates: the values that cross into or out of it.
    pub held_eval: u64,
}

impl LayerMemory {
    /// Working memory of the pass that needs more.
    pub fn working(&self) -> u64 {
        self.forward.max(self.backward)
    }
}

/// The memory of every layer of a valid graph, on a machine whose activations have `activation_bytes`.
pub(super) fn analyse(graph: &Graph, recompute: &[bool], activation_bytes: u64) -> Vec<LayerMemory> {
    let lives = Lives::new(graph);
    let machine = Machine { graph, lives: &lives, activation_bytes };
    let mut layers: Vec<LayerMemory> = Vec::with_capacity(graph.layers.len());
    let mut crossing = Crossing::new(&machine);
    let mut saved_before = 0;
    for (layer, &recompute) in recompute.iter().enumerate() {
        let mut memory = machine.layer(layer, recompute);
        saved_before += memory.saved;
        let (gradients, values) = crossing.pass(layer);
        memory.held = saved_before + gradients;
        memory.held_eval = values;
        layers.push(memory);
    }
    layers
}

/// Whether recomputing `layer` inside keeps less than saving what its backward pass needs.
pub(super) fn recompute_helps(graph: &Graph) -> Vec<bool> {
    let lives = Lives::new(graph);
    let machine = Machine { graph, lives: &lives, activation_bytes: HALF_OR_FULL };
    (0..graph.layers.len()).map(|layer| machine.layer(layer, true).saved < machine.layer(layer, false).saved).collect()
}

/// For each layer of a valid graph, the operators that it carries out again in its backward pass when it is recomputed,
/// in order: those that lead to a value its backward pass needs (of a transformer block, not the last projection). What
/// the others save besides values is saved even then.
pub fn recomputed_nodes(graph: &Graph) -> Vec<Vec<NodeId>> {
    let lives = Lives::new(graph);
    let machine = Machine { graph, lives: &lives, activation_bytes: HALF_OR_FULL };
    let nodes = |layer| repeated_nodes(graph, &lives, layer, &machine.needed_backward(layer));
    (0..graph.layers.len()).map(nodes).collect()
}

fn repeated_nodes(graph: &Graph, lives: &Lives, layer: LayerId, needed: &[ValueId]) -> Vec<NodeId> {
    let mut wanted = needed.to_vec();
    let mut nodes = Vec::new();
    for id in graph.layers[layer].nodes.clone().rev() {
        let node = &graph.nodes[id];
        if node.output.is_some_and(|output| wanted.contains(&output)) {
            wanted.extend(node.inputs.iter().filter(|&&input| lives.made_in(input) == Some(layer)));
            nodes.push(id);
        }
    }
    nodes.reverse();
    nodes
}

/// Whether something is saved does not depend on its size.
const HALF_OR_FULL: u64 = 2;

/// By whom each value is made and read; the graph is valid.
struct Lives {
    /// Layer of each node.
    layer_of: Vec<LayerId>,
    /// Maker of each value, `None` for tokens and labels.
    maker: Vec<Option<NodeId>>,
    /// Nodes that read each value, ascending.
    readers: Vec<Vec<NodeId>>,
}

impl Lives {
    fn new(graph: &Graph) -> Self {
        let mut layer_of = vec![0; graph.nodes.len()];
        for (id, layer) in graph.layers.iter().enumerate() {
            layer_of[layer.nodes.clone()].fill(id);
        }
        let mut maker = vec![None; graph.values.len()];
        let mut readers = vec![Vec::new(); graph.values.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|&input| readers[input].push(id));
            if let Some(output) = node.output {
                maker[output] = Some(id);
            }
        }
        Self { layer_of, maker, readers }
    }

    fn made_in(&self, value: ValueId) -> Option<LayerId> {
        self.maker[value].map(|node| self.layer_of[node])
    }

    fn first_read_in(&self, value: ValueId) -> Option<LayerId> {
        self.readers[value].first().map(|&node| self.layer_of[node])
    }

    fn last_read_in(&self, value: ValueId) -> Option<LayerId> {
        self.readers[value].last().map(|&node| self.layer_of[node])
    }

    /// Whether a later layer than its maker's reads the value.
    fn crosses(&self, value: ValueId) -> bool {
        self.last_read_in(value) > self.made_in(value)
    }
}

struct Machine<'a> {
    graph: &'a Graph,
    lives: &'a Lives,
    activation_bytes: u64,
}

impl Machine<'_> {
    fn bytes(&self, value: ValueId) -> u64 {
        let value = &self.graph.values[value];
        let width = if value.kind == ValueType::Token { NUMBER_BYTES } else { self.activation_bytes };
        value.rows as u64 * value.columns as u64 * width
    }

    /// Everything of one layer that does not depend on others.
    fn layer(&self, layer: LayerId, recompute: bool) -> LayerMemory {
        let nodes = self.graph.layers[layer].nodes.clone();
        let needed = self.needed_backward(layer);
        let values: u64 = needed.iter().map(|&value| self.bytes(value)).sum();
        let inputs: u64 = self.inputs(layer).map(|value| self.bytes(value)).sum();
        let extras = |nodes: &mut dyn Iterator<Item = NodeId>| nodes.map(|node| self.extra(node)).sum::<u64>();
        let all_extras = extras(&mut nodes.clone());
        if !recompute {
            let saved = inputs + values + all_extras;
            let (forward, backward) = (self.forward_peak(layer, nodes, &needed), self.backward_peak(layer));
            return LayerMemory { saved, forward, backward, ..LayerMemory::default() };
        }
        // The first forward pass leaves only what the second will not make, the second leaves all that is needed.
        let repeated = repeated_nodes(self.graph, self.lives, layer, &needed);
        let again = extras(&mut repeated.iter().copied());
        let forward = self.forward_peak(layer, nodes, &[]);
        let peak = self.forward_peak(layer, repeated.into_iter(), &needed).max(self.backward_peak(layer));
        let saved = inputs + all_extras - again;
        LayerMemory { saved, forward, backward: values + again + peak, ..LayerMemory::default() }
    }

    /// Values first read in `layer` that come from outside of it.
    fn inputs(&self, layer: LayerId) -> impl Iterator<Item = ValueId> {
        let mut inputs: Vec<ValueId> = self.graph.nodes[self.graph.layers[layer].nodes.clone()]
            .iter()
            .flat_map(|node| node.inputs.iter().copied())
            .filter(|&value| self.lives.made_in(value) != Some(layer) && self.lives.first_read_in(value) == Some(layer))
            .collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs.into_iter()
    }

    /// Values made in `layer`, not crossing out of it, that its backward pass needs.
    fn needed_backward(&self, layer: LayerId) -> Vec<ValueId> {
        let mut needed = Vec::new();
        for node in self.graph.layers[layer].nodes.clone() {
            let node = &self.graph.nodes[node];
            let saved = operator(&node.op).saved(&Signature::of(self.graph, node));
            needed.extend(saved.inputs.iter().map(|&at| node.inputs[at]));
            needed.extend(node.output.filter(|_| saved.output));
        }
        needed.sort_unstable();
        needed.dedup();
        needed.retain(|&value| self.lives.made_in(value) == Some(layer) && !self.lives.crosses(value));
        needed
    }

    /// Bytes of the extra numbers an operator saves.
    fn extra(&self, node: NodeId) -> u64 {
        let node = &self.graph.nodes[node];
        operator(&node.op).saved(&Signature::of(self.graph, node)).floats * NUMBER_BYTES
    }

    fn scratch(&self, node: NodeId) -> u64 {
        let node = &self.graph.nodes[node];
        operator(&node.op).scratch(&Signature::of(self.graph, node)) * self.activation_bytes
    }

    /// Most bytes of values alive at a time while `layer` computes forward, besides its inputs, its outputs to other
    /// layers and `kept` values.
    fn forward_peak(&self, layer: LayerId, nodes: impl Iterator<Item = NodeId>, kept: &[ValueId]) -> u64 {
        let passing = |value: &ValueId| {
            self.lives.made_in(*value) == Some(layer) && !self.lives.crosses(*value) && !kept.contains(value)
        };
        let (mut live, mut peak) = (0, 0);
        for id in nodes {
            let node = &self.graph.nodes[id];
            live += node.output.iter().filter(|&value| passing(value)).map(|&value| self.bytes(value)).sum::<u64>();
            peak = peak.max(live + self.scratch(id));
            let mut last_read: Vec<ValueId> = node.inputs.iter().copied().filter(passing).collect();
            last_read.dedup();
            last_read.retain(|&value| self.lives.readers[value].last() == Some(&id));
            live -= last_read.into_iter().map(|value| self.bytes(value)).sum::<u64>();
        }
        peak
    }

    /// Most bytes of gradients alive at a time while `layer` computes backward, besides those that come from later
    /// layers.
    fn backward_peak(&self, layer: LayerId) -> u64 {
        let nodes = self.graph.layers[layer].nodes.clone();
        let (mut live, mut peak) = (0, 0);
        let mut has_gradient: Vec<ValueId> = Vec::new();
        for id in nodes.rev() {
            let node = &self.graph.nodes[id];
            let operator = operator(&node.op);
            for (at, &input) in node.inputs.iter().enumerate() {
                if operator.makes_gradient(at) && !has_gradient.contains(&input) {
                    has_gradient.push(input);
                    // The gradient of a value that later layers read, too, has come from there.
                    if self.lives.last_read_in(input) == Some(layer) {
                        live += self.bytes(input);
                    }
                }
            }
            peak = peak.max(live + self.scratch(id));
            if let Some(at) = has_gradient.iter().position(|value| Some(*value) == node.output) {
                let value = has_gradient.swap_remove(at);
                if !self.lives.crosses(value) {
                    live -= self.bytes(value);
                }
            }
        }
        peak
    }
}

/// Sums over the values that cross from layer to layer, kept up while walking forward.
struct Crossing<'a> {
    machine: &'a Machine<'a>,
    /// Values by the layer that makes them; tokens and labels by the first layer.
    made: Vec<Vec<ValueId>>,
    /// Values by the last layer that reads them.
    ends: Vec<Vec<ValueId>>,
    gradients: u64,
    values: u64,
}

impl<'a> Crossing<'a> {
    fn new(machine: &'a Machine<'a>) -> Self {
        let layers = machine.graph.layers.len();
        let (mut made, mut ends) = (vec![Vec::new(); layers], vec![Vec::new(); layers]);
        for value in 0..machine.graph.values.len() {
            if let (true, Some(last)) = (machine.lives.crosses(value), machine.lives.last_read_in(value)) {
                made[machine.lives.made_in(value).unwrap_or(0)].push(value);
                ends[last].push(value);
            }
        }
        Self { machine, made, ends, gradients: 0, values: 0 }
    }

    /// Bytes of gradients that wait at the beginning of `layer`'s backward pass, and of values alive while it computes.
    fn pass(&mut self, layer: LayerId) -> (u64, u64) {
        let graph = self.machine.graph;
        for &value in &self.made[layer] {
            self.values += self.machine.bytes(value);
            self.gradients += gradient(graph, value) * self.machine.bytes(value);
        }
        let values = self.values;
        for &value in &self.ends[layer] {
            self.values -= self.machine.bytes(value);
            self.gradients -= gradient(graph, value) * self.machine.bytes(value);
        }
        (self.gradients, values)
    }
}

/// 1 for values that have a gradient.
fn gradient(graph: &Graph, value: ValueId) -> u64 {
    u64::from(graph.values[value].kind == ValueType::Float)
}
