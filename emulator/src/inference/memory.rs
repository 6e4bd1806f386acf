//! The memory of a decoder: which weights and which values are kept, and for how long.

use super::{MAX_CALL_ROWS, product_of};
use crate::graph::{Graph, NodeId};
use crate::ops::RowDependency;

/// Which operators use each tensor, and how.
pub(super) struct TensorUses {
    /// The last operator; `None` for a tensor that none uses.
    pub(super) last: Vec<Option<NodeId>>,
    /// Whether an operator reads the tensor itself, not only its packed form.
    pub(super) in_place: Vec<bool>,
}

impl TensorUses {
    pub(super) fn of(graph: &Graph) -> Self {
        let tensors = graph.tensors.len();
        let mut uses = Self { last: vec![None; tensors], in_place: vec![false; tensors] };
        for (index, node) in graph.nodes.iter().enumerate() {
            let packed = usize::from(product_of(&node.op).operator().packs_matrix());
            for (param, &tensor) in node.params.iter().enumerate() {
                uses.last[tensor] = Some(index);
                uses.in_place[tensor] |= param >= packed;
            }
        }
        uses
    }
}

/// Returns for each operator whether all rows of its output are kept, because a later operator reads earlier rows.
pub(super) fn kept_outputs(graph: &Graph) -> Vec<bool> {
    let by_later_rows = graph.nodes.iter().filter(|node| node.op.operator().row_dependency() == RowDependency::Earlier);
    let read: Vec<_> = by_later_rows.flat_map(|node| node.inputs.iter().copied()).collect();
    graph.nodes.iter().map(|node| node.output.is_some_and(|output| read.contains(&output))).collect()
}

/// Estimates the bytes of memory of an [`InferenceModel`](super::InferenceModel) that reads this many tokens: weights,
/// packed or in place, the values that are kept, and the largest tensor while it is read.
pub fn memory_bytes(graph: &Graph, tokens: usize) -> u64 {
    let uses = TensorUses::of(graph);
    let bytes = |floats: usize| floats as u64 * 4;
    let sizes = graph.tensors.iter().map(|tensor| bytes(tensor.shape.iter().product()));
    let largest = sizes.clone().max().unwrap_or(0);
    let in_place: u64 = sizes.zip(&uses.in_place).filter(|(_, in_place)| **in_place).map(|(size, _)| size).sum();
    let mut total = largest + in_place;
    for (node, is_kept) in graph.nodes.iter().zip(kept_outputs(graph)) {
        let packed = usize::from(product_of(&node.op).operator().packs_matrix());
        let packed = node.params.iter().take(packed);
        total += packed.map(|tensor| bytes(graph.tensors[*tensor].shape.iter().product())).sum::<u64>();
        let columns = node.output.map_or(0, |output| graph.values[output].shape.columns());
        total += bytes(columns) * if is_kept { tokens } else { tokens.min(MAX_CALL_ROWS) } as u64;
    }
    total
}
