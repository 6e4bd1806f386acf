//! Models whose samples contain several sequences, one after the other.
//!
//! Such a graph has two more inputs: for each token, the number of later tokens that attend to it, and its position in
//! its sequence, which in an encoder is also the number of earlier tokens that attend to it.

use super::{Graph, OpNode, ValueId};
use crate::ops::{AddPosition, OpKind};

/// Name of the input of the numbers of later tokens that attend to each token.
pub const ATTENTION_SPAN: &str = "attention_span";
/// Name of the input of the positions of tokens in their sequences.
pub const POSITION_IDS: &str = "position_ids";

impl Graph {
    /// Returns the graph of the same model for samples of one sequence, or a copy if it has no packed samples. It need
    /// not be valid.
    pub fn without_packing(&self) -> Self {
        let inputs = [ATTENTION_SPAN, POSITION_IDS].map(|name| self.input(name));
        let mut graph = self.clone();
        if inputs == [None, None] {
            return graph;
        }
        let is_removed = |value: &ValueId| inputs.contains(&Some(*value));
        graph.inputs.retain(|input| !is_removed(input));
        // The embedding of positions, which becomes an operator of its own kind with the sum.
        let mut rows = None;
        for node in &mut graph.nodes {
            if matches!(node.op, OpKind::Embedding(_)) && node.inputs.first().is_some_and(is_removed) {
                rows = node.output.zip(node.params.first().copied());
            } else if let (OpKind::Add(_), Some((rows, table))) = (node.op, rows)
                && node.inputs.get(1) == Some(&rows)
            {
                node.op = AddPosition.into();
                node.inputs.truncate(1);
                node.params = vec![table];
            }
            node.inputs.retain(|input| !is_removed(input));
        }
        let is_kept = |node: &OpNode| !matches!(node.op, OpKind::Embedding(_)) || !node.inputs.is_empty();
        let is_kept: Vec<bool> = graph.nodes.iter().map(is_kept).collect();
        graph.with_nodes(&is_kept)
    }
}
