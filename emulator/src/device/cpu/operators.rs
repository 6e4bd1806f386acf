//! Properties of each operator that a device computes before its first step.

use std::ops::Range;
use std::time::Duration;

use super::DeviceStartError;
use crate::graph::{Graph, GraphMetric, NodeId, OpNode, WeightedLoss};
use crate::ops::execute::{MAX_INPUTS, MAX_PARAMS, NodeShape, UnsupportedOperator};
use crate::ops::{IndexBounds, OpKind};

/// Seconds spent in one kind of operator.
#[derive(Clone, Copy, Debug)]
pub struct OperatorTime {
    /// Kind of operator.
    pub name: &'static str,
    /// In forward steps, including recomputation.
    pub forward: Duration,
    /// In backward steps.
    pub backward: Duration,
    /// Packing of its weights.
    pub packing: Duration,
}

/// Per-operator data of the graph, computed once.
#[derive(Debug)]
pub(super) struct OperatorTable {
    pub shapes: Vec<NodeShape>,
    /// Index into the times.
    pub kinds: Vec<usize>,
    /// For each operator, the positions of its sums among those that are reported; empty if it is neither a metric nor
    /// a loss with a weight.
    pub metrics: Vec<Range<usize>>,
    /// Number of sums that are reported.
    pub metric_elements: usize,
    /// The losses with a weight.
    pub weighted_losses: Vec<WeightedLoss>,
    /// Each operator as training executes it: losses with a weight times the factors of the step.
    pub training: Vec<OpKind>,
    /// For each operator, the bounds of those of its inputs that other operators compute.
    bounds: Vec<[Option<IndexBounds>; MAX_INPUTS]>,
}

impl OperatorTable {
    /// Returns the table of a graph whose operators are [supported](check), and a time for each kind of operator.
    pub fn new(graph: &Graph) -> (Self, Vec<OperatorTime>) {
        let mut times: Vec<OperatorTime> = Vec::new();
        let mut kind = |name: &'static str| {
            times.iter().position(|time| time.name == name).unwrap_or_else(|| {
                let zero = Duration::ZERO;
                times.push(OperatorTime { name, forward: zero, backward: zero, packing: zero });
                times.len() - 1
            })
        };
        let mut is_computed = vec![false; graph.values.len()];
        graph.nodes.iter().filter_map(|node| node.output).for_each(|output| is_computed[output] = true);
        let bounds = |node: &OpNode| {
            std::array::from_fn(|position| {
                let input = node.inputs.get(position).filter(|input| is_computed[**input]);
                input.and_then(|_| IndexBounds::of_use(graph, node, position))
            })
        };
        let mut metrics = vec![0..0; graph.nodes.len()];
        for GraphMetric { node, sums, weight, .. } in graph.metrics() {
            metrics[node] = sums.start..weight.map_or(sums.end, |weight| weight + 1);
        }
        let weighted_losses: Vec<WeightedLoss> = graph.weighted_losses().collect();
        weighted_losses.iter().for_each(|loss| metrics[loss.node] = loss.sums.clone());
        let table = Self {
            metrics,
            metric_elements: graph.reported_sums(),
            weighted_losses,
            training: graph.nodes.iter().map(|node| node.op).collect(),
            shapes: graph.nodes.iter().map(|node| NodeShape::of(graph, node)).collect(),
            kinds: graph.nodes.iter().map(|node| kind(node.op.name())).collect(),
            bounds: graph.nodes.iter().map(bounds).collect(),
        };
        (table, times)
    }

    /// Returns the position of the weight among the inputs of a loss that has one.
    pub fn weight_input(&self, node: NodeId) -> Option<usize> {
        self.weighted_losses.iter().find(|loss| loss.node == node).map(|loss| loss.input)
    }

    /// Returns the inputs of an operator that have bounds and are computed by other operators.
    pub fn bounds(&self, node: NodeId) -> impl Iterator<Item = (usize, IndexBounds)> {
        self.bounds[node].iter().enumerate().filter_map(|(input, bounds)| Some((input, (*bounds)?)))
    }
}

/// Rejects operators that the kernels do not support.
pub(super) fn check(graph: &Graph) -> Result<(), DeviceStartError> {
    for (id, node) in graph.nodes.iter().enumerate() {
        check_operator(graph, node).map_err(|reason| DeviceStartError::Operator {
            id,
            name: node.op.name(),
            reason,
        })?;
    }
    Ok(())
}

/// Checks that the kernels support an operator.
pub(crate) fn check_operator(graph: &Graph, node: &OpNode) -> Result<(), UnsupportedOperator> {
    if node.inputs.len() > MAX_INPUTS || node.params.len() > MAX_PARAMS {
        return Err(UnsupportedOperator::TooManyOperands);
    }
    if matches!(node.params[..], [one, other] if one == other) {
        return Err(UnsupportedOperator::RepeatedTensor);
    }
    node.op.executor().check_supported(&NodeShape::of(graph, node))
}
