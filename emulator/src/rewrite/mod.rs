//! Replaces known patterns of generic operators by macro-operators, which have tuned kernels.
//!
//! ```text
//! g / (1 + e^-g)                              activation (silu)
//! silu(g) * u                                 gate (silu)
//! x * rsqrt(mean(x^2) + eps) * gain           rms_norm
//! (x - mean) / sqrt(variance + eps) * gain    layer_norm
//! softmax(where(causal, q k^T / s, -inf)) v   causal_attention
//! -gather(log softmax(x w^T), labels)         cross_entropy
//! ```
//!
//! A pattern is a function and a line of the table `PATTERNS`. `tests` compares values and gradients of both forms.
//!
//! * The result computes the same values, up to rounding, of the same inputs and with the same tensors, in the same
//!   layers. It is part of the plan, not of the document.
//! * A pattern is replaced only if nothing else reads its intermediate values, all of it is in one layer, and the shape
//!   rule of the macro-operator accepts it.
//! * Rewriting a rewritten graph changes nothing. The time is proportional to the size of the graph.

use crate::graph::{Graph, NodeId, OpNode, Shape, Value, ValueId};
use crate::ops::Signature;

mod activation;
mod attention;
mod cross_entropy;
mod gate;
mod layer_norm;
mod mask;
mod matcher;
mod rms_norm;
#[cfg(all(test, feature = "kernels"))]
mod tests;

use matcher::{Input, Matcher, NewNode, Replacement};

/// Recognizes a pattern by its last operator. Returns `None` if there is none.
type Pattern = fn(&mut Matcher<'_>, NodeId) -> Option<Replacement>;

/// All patterns, each after those whose result it contains.
const PATTERNS: [Pattern; 8] = [
    activation::sigmoid,
    activation::activation,
    gate::gate,
    layer_norm::layer_norm,
    layer_norm::biasless_layer_norm,
    rms_norm::rms_norm,
    attention::causal_attention,
    cross_entropy::cross_entropy,
];

/// Returns a valid graph with all patterns replaced.
pub fn rewrite(graph: Graph) -> Graph {
    let mut graph = graph;
    for pattern in PATTERNS {
        let changes = find(&graph, pattern);
        if !changes.is_empty() {
            graph = without_unused_values(without_dead_nodes(replace(graph, changes)));
        }
    }
    graph
}

/// What becomes of an operator.
#[derive(Debug)]
enum Change {
    Stays,
    /// It is an inner operator of a pattern.
    IsRemoved,
    /// It is the last operator of a pattern. With the shapes of the values that the replacement computes besides its
    /// output.
    IsReplaced(Replacement, Vec<Shape>),
}

/// Returns the change of each operator; empty if no pattern is found.
fn find(graph: &Graph, pattern: Pattern) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    let mut matcher = Matcher::new(graph);
    for root in 0..graph.nodes.len() {
        matcher.begin();
        let Some(replacement) = pattern(&mut matcher, root) else { continue };
        let inner = matcher.inner_nodes();
        let is_free = |node: &NodeId| matches!(changes.get(*node), None | Some(Change::Stays));
        if !inner.iter().chain([&root]).all(is_free) || !matcher.is_closed(root) {
            continue;
        }
        if let Some(shapes) = made_shapes(graph, root, &replacement) {
            changes.resize_with(graph.nodes.len(), || Change::Stays);
            inner.into_iter().for_each(|node| changes[node] = Change::IsRemoved);
            changes[root] = Change::IsReplaced(replacement, shapes);
        }
    }
    changes
}

/// Returns the shapes of the values that a replacement computes besides its output, if the shape rules accept its
/// operators and the output has the shape of the root's.
fn made_shapes(graph: &Graph, root: NodeId, replacement: &Replacement) -> Option<Vec<Shape>> {
    let mut shapes: Vec<Shape> = Vec::new();
    let (last, others) = replacement.nodes.split_last()?;
    let output = |node: &NewNode, shapes: &[Shape]| {
        let shape = |input: &Input| match *input {
            Input::Value(value) => graph.values[value].shape,
            Input::Made(index) => shapes[index],
        };
        let io = Signature {
            inputs: node.inputs.iter().map(shape).collect(),
            params: node.params.iter().map(|&tensor| graph.tensors[tensor].shape.as_slice()).collect(),
        };
        node.op.operator().output(&io).ok()
    };
    for node in others {
        shapes.push(output(node, &shapes)??);
    }
    let expected = graph.nodes[root].output.map(|value| graph.values[value].shape);
    (output(last, &shapes)? == expected).then_some(shapes)
}

/// Applies the changes of [`find`].
fn replace(graph: Graph, changes: Vec<Change>) -> Graph {
    let (mut nodes, mut ends) = (Vec::with_capacity(graph.nodes.len()), Vec::with_capacity(graph.nodes.len()));
    let mut values = graph.values;
    for (node, change) in graph.nodes.into_iter().zip(changes) {
        match change {
            Change::Stays => nodes.push(node),
            Change::IsRemoved => {}
            Change::IsReplaced(replacement, shapes) => {
                let first = values.len();
                let names = replacement.nodes.iter().map(|node| node.op.name().to_owned());
                values.extend(names.zip(shapes).map(|(name, shape)| Value { name, shape }));
                let new_values = first..values.len();
                let outputs = new_values.map(Some).chain([node.output]);
                nodes.extend(replacement.nodes.into_iter().zip(outputs).map(|(node, output)| {
                    let value = |input: Input| match input {
                        Input::Value(value) => value,
                        Input::Made(index) => first + index,
                    };
                    let NewNode { op, inputs, params } = node;
                    OpNode::new(op, inputs.into_iter().map(value).collect(), params, output)
                }));
            }
        }
        ends.push(nodes.len());
    }
    let mut layers = graph.layers;
    let mut start = 0;
    for layer in &mut layers {
        let end = ends[layer.nodes.end - 1];
        layer.nodes = start..end;
        start = end;
    }
    Graph { nodes, values, layers, ..graph }
}

/// Returns the graph without operators that have no tensors and whose output nothing reads, as long as their layer has
/// others.
fn without_dead_nodes(mut graph: Graph) -> Graph {
    let mut reads = vec![0usize; graph.values.len()];
    graph.nodes.iter().flat_map(|node| &node.inputs).for_each(|&input| reads[input] += 1);
    let mut is_dead = vec![false; graph.nodes.len()];
    for layer in &graph.layers {
        let mut remaining = layer.nodes.len();
        for node in layer.nodes.clone().rev() {
            let OpNode { inputs, params, output, .. } = &graph.nodes[node];
            if remaining > 1 && params.is_empty() && output.is_some_and(|output| reads[output] == 0) {
                is_dead[node] = true;
                remaining -= 1;
                inputs.iter().for_each(|&input| reads[input] -= 1);
            }
        }
    }
    let mut start = 0;
    for layer in &mut graph.layers {
        let count = layer.nodes.clone().filter(|&node| !is_dead[node]).count();
        layer.nodes = start..start + count;
        start += count;
    }
    let mut dead = is_dead.iter();
    graph.nodes.retain(|_| dead.next() == Some(&false));
    graph
}

/// Returns the graph without values that no operator reads or computes, except its inputs.
fn without_unused_values(mut graph: Graph) -> Graph {
    let mut is_read = vec![false; graph.values.len()];
    graph.nodes.iter().flat_map(|node| &node.inputs).for_each(|&input| is_read[input] = true);
    graph.constants.retain(|constant| is_read[constant.value]);
    let mut is_used = is_read;
    graph.inputs.iter().for_each(|&input| is_used[input] = true);
    graph.nodes.iter().filter_map(|node| node.output).for_each(|output| is_used[output] = true);
    let mut number = 0;
    let numbers: Vec<ValueId> = is_used
        .iter()
        .map(|&used| {
            number += usize::from(used);
            number.saturating_sub(1)
        })
        .collect();
    let mut used = is_used.iter();
    graph.values.retain(|_| used.next() == Some(&true));
    for node in &mut graph.nodes {
        node.inputs.iter_mut().chain(&mut node.output).for_each(|value| *value = numbers[*value]);
    }
    graph.inputs.iter_mut().for_each(|input| *input = numbers[*input]);
    graph.constants.iter_mut().for_each(|constant| constant.value = numbers[constant.value]);
    graph
}
