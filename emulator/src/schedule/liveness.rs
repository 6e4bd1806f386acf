//! By whom each value is made and read.

use crate::graph::{Graph, LayerId, NodeId, ValueId};
use crate::ops::{Signature, operator};

/// Makers and readers of every value of a valid graph.
pub(crate) struct Liveness {
    /// Layer of each node.
    layer_of: Vec<LayerId>,
    /// Maker of each value, `None` for tokens and labels.
    maker: Vec<Option<NodeId>>,
    /// Nodes that read each value, ascending.
    readers: Vec<Vec<NodeId>>,
}

impl Liveness {
    pub fn new(graph: &Graph) -> Self {
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

    /// The operator that makes `value`; `None` for tokens and labels.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        self.maker[value]
    }

    /// The layer of an operator.
    pub fn layer_of(&self, node: NodeId) -> Option<LayerId> {
        self.layer_of.get(node).copied()
    }

    /// The layer that makes `value`; `None` for tokens and labels.
    pub fn defining_layer(&self, value: ValueId) -> Option<LayerId> {
        self.maker[value].map(|node| self.layer_of[node])
    }

    /// Nodes that read `value`, ascending.
    pub fn readers(&self, value: ValueId) -> &[NodeId] {
        &self.readers[value]
    }

    /// Whether a later layer than its maker's reads `value`.
    pub fn crosses(&self, value: ValueId) -> bool {
        self.readers[value].last().map(|&node| self.layer_of[node]) > self.defining_layer(value)
    }

    /// Values made in `layer` that its backward pass needs, ascending.
    pub fn needed_backward(&self, graph: &Graph, layer: LayerId) -> Vec<ValueId> {
        let mut needed = Vec::new();
        for node in &graph.nodes[graph.layers[layer].nodes.clone()] {
            let saved = operator(&node.op).saved(&Signature::of(graph, node));
            needed.extend(saved.inputs.iter().map(|&at| node.inputs[at]));
            needed.extend(node.output.filter(|_| saved.output));
        }
        needed.sort_unstable();
        needed.dedup();
        needed.retain(|&value| self.defining_layer(value) == Some(layer));
        needed
    }

    /// The nodes that a recomputed layer carries out again in its backward pass, in order: those that lead to a value
    /// or to numbers that it needs. (Of a transformer block, not the last projection.)
    pub fn repeated(&self, graph: &Graph, layer: LayerId) -> Vec<NodeId> {
        let mut wanted = self.needed_backward(graph, layer);
        let mut nodes = Vec::new();
        for id in graph.layers[layer].nodes.clone().rev() {
            let node = &graph.nodes[id];
            let Some(output) = node.output else { continue };
            if wanted.contains(&output) || operator(&node.op).saved(&Signature::of(graph, node)).floats > 0 {
                wanted.extend(node.inputs.iter().filter(|&&input| self.defining_layer(input) == Some(layer)));
                nodes.push(id);
            }
        }
        nodes.reverse();
        nodes
    }
}
