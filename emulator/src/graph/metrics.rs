//! The metrics of a graph: what training steps and evaluations report beside losses.

use std::collections::HashSet;
use std::ops::Range;

use super::{Graph, GraphError, NodeId};
use crate::ops::OpKind;

/// Maximum numbers that the metrics of a graph sum, all together. Systems report them for each leaf.
pub const MAX_METRIC_ELEMENTS: u64 = 1 << 16;
/// Maximum length of the name of a metric.
const MAX_NAME_BYTES: usize = 100;

/// A metric of a graph, see [`crate::ops::Metric`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphMetric<'a> {
    /// The operator.
    pub node: NodeId,
    /// The name, unique in the graph.
    pub name: &'a str,
    /// The positions of its sums among those of all metrics.
    pub sums: Range<usize>,
    /// The position of the sum of its weight; `None` if each sample has the weight 1.
    pub weight: Option<usize>,
}

impl Graph {
    /// Returns the metrics, in the order of their operators.
    pub fn metrics(&self) -> impl Iterator<Item = GraphMetric<'_>> {
        let metrics = self.nodes.iter().enumerate().filter(|(_, node)| matches!(node.op, OpKind::Metric(_)));
        let mut end = 0;
        metrics.filter_map(move |(id, node)| {
            let value = self.values.get(node.output?)?;
            let sums = end..end + value.shape.elements() as usize;
            let weight = node.inputs.get(1).map(|_| sums.end);
            end = sums.end + usize::from(weight.is_some());
            Some(GraphMetric { node: id, name: &value.name, sums, weight })
        })
    }

    /// Returns the number of sums of all metrics together.
    pub fn metric_elements(&self) -> usize {
        self.metrics().last().map_or(0, |last| last.weight.map_or(last.sums.end, |weight| weight + 1))
    }

    /// Returns the graph without operators that only metrics need. It need not be valid.
    pub fn without_metrics(&self) -> Self {
        if !self.nodes.iter().any(|node| matches!(node.op, OpKind::Metric(_))) {
            return self.clone();
        }
        let mut is_needed = vec![false; self.values.len()];
        let mut is_kept = vec![false; self.nodes.len()];
        for (id, node) in self.nodes.iter().enumerate().rev() {
            is_kept[id] = node.output.is_none_or(|output| is_needed.get(output) == Some(&true));
            for input in node.inputs.iter().filter(|_| is_kept[id]) {
                if let Some(is_needed) = is_needed.get_mut(*input) {
                    *is_needed = true;
                }
            }
        }
        self.with_nodes(&is_kept)
    }

    /// Checks names and sizes of the metrics of a graph that is valid otherwise.
    pub(super) fn check_metrics(&self) -> Result<(), GraphError> {
        let mut names = HashSet::new();
        let mut elements = 0u64;
        for node in self.nodes.iter().filter(|node| matches!(node.op, OpKind::Metric(_))) {
            let Some(value) = node.output.and_then(|output| self.values.get(output)) else { continue };
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/');
            let is_name = (1..=MAX_NAME_BYTES).contains(&value.name.len()) && value.name.bytes().all(is_letter);
            if !is_name || !names.insert(&value.name) {
                return Err(GraphError::MetricName(value.name.clone()));
            }
            elements = elements.saturating_add(value.shape.elements()).saturating_add(1);
        }
        if elements > MAX_METRIC_ELEMENTS { Err(GraphError::MetricElements(elements)) } else { Ok(()) }
    }
}
