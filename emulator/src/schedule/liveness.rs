//! Determines which operators compute and read each value.

use crate::graph::{Graph, LayerId, NodeId, ValueId};
use crate::ops::Signature;

/// Producers and readers of every value of a valid graph.
pub(crate) struct Liveness {
    layer_of: Vec<LayerId>,
    /// Producer of each value, `None` for an input.
    maker: Vec<Option<NodeId>>,
    /// Nodes that read each value, ascending.
    readers: Vec<Vec<NodeId>>,
    /// Whether each value depends on a tensor.
    trained: Vec<bool>,
}

impl Liveness {
    pub fn new(graph: &Graph) -> Self {
        let mut layer_of = vec![0; graph.nodes.len()];
        for (id, layer) in graph.layers.iter().enumerate() {
            layer_of[layer.nodes.clone()].fill(id);
        }
        let mut maker = vec![None; graph.values.len()];
        let mut readers = vec![Vec::new(); graph.values.len()];
        let mut trained = vec![false; graph.values.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|&input| readers[input].push(id));
            if let Some(output) = node.output {
                maker[output] = Some(id);
                trained[output] = !node.params.is_empty() || node.inputs.iter().any(|&input| trained[input]);
            }
        }
        Self { layer_of, maker, readers, trained }
    }

    /// Returns the operator that computes `value`; `None` for an input.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        self.maker[value]
    }

    /// Returns whether `value` depends on a tensor, and therefore has a gradient.
    pub fn depends_on_tensor(&self, value: ValueId) -> bool {
        self.trained[value]
    }

    /// Returns the layer of an operator.
    pub fn layer_of(&self, node: NodeId) -> Option<LayerId> {
        self.layer_of.get(node).copied()
    }

    /// Returns the layer that computes `value`; `None` for an input.
    pub fn defining_layer(&self, value: ValueId) -> Option<LayerId> {
        self.maker[value].map(|node| self.layer_of[node])
    }

    /// Returns the nodes that read `value`, ascending.
    pub fn readers(&self, value: ValueId) -> &[NodeId] {
        &self.readers[value]
    }

    /// Returns whether a layer after the producer's reads `value`.
    pub fn crosses(&self, value: ValueId) -> bool {
        self.readers[value].last().map(|&node| self.layer_of[node]) > self.defining_layer(value)
    }

    /// Returns the values computed in `layer` that its backward pass needs, ascending.
    pub fn needed_backward(&self, graph: &Graph, layer: LayerId) -> Vec<ValueId> {
        let mut needed = Vec::new();
        for node in &graph.nodes[graph.layers[layer].nodes.clone()] {
            let saved = node.op.operator().saved(&Signature::of(graph, node));
            needed.extend(saved.inputs.iter().map(|&input| node.inputs[input]));
            needed.extend(node.output.filter(|_| saved.output));
        }
        needed.sort_unstable();
        needed.dedup();
        needed.retain(|&value| self.defining_layer(value) == Some(layer));
        needed
    }

    /// Returns the nodes that a recomputed layer repeats in its backward pass, in order: those that contribute to a
    /// value or to extra numbers that it needs. (In a transformer block this excludes the last projection.)
    pub fn repeated(&self, graph: &Graph, layer: LayerId) -> Vec<NodeId> {
        let mut needed = self.needed_backward(graph, layer);
        let mut nodes = Vec::new();
        for id in graph.layers[layer].nodes.clone().rev() {
            let node = &graph.nodes[id];
            let Some(output) = node.output else { continue };
            if needed.contains(&output) || node.op.operator().saved(&Signature::of(graph, node)).floats > 0 {
                needed.extend(node.inputs.iter().filter(|&&input| self.defining_layer(input) == Some(layer)));
                nodes.push(id);
            }
        }
        nodes.reverse();
        nodes
    }
}
