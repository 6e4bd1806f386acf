//! Which matrices a device packs while their chunks arrive.
//!
//! Such a matrix is never in memory as it is, and its packed form not twice: it is packed for the pass for which it is
//! streamed. Other matrices are packed by the pass that reads them.

use crate::graph::{LayerId, NodeId, OpNode, TensorId};
use crate::plan::StreamPlan;

/// The only operator that reads a matrix; it reads the packed form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixReader {
    pub layer: LayerId,
    pub node: NodeId,
}

/// Returns, for each tensor, the reader of a matrix that is packed while its chunks arrive. `None` for a tensor that is
/// read by several operators, that is not read in packed form, or that stays on the wafer between the passes.
pub(crate) fn matrix_readers(plan: &StreamPlan) -> Vec<Option<MatrixReader>> {
    let graph = &plan.graph;
    let (mut readers, mut uses) = (vec![None; graph.tensors.len()], vec![0; graph.tensors.len()]);
    for (layer, nodes) in graph.layers.iter().map(|layer| layer.nodes.clone()).enumerate() {
        for node in nodes {
            let OpNode { op, params, .. } = &graph.nodes[node];
            params.iter().for_each(|tensor| uses[*tensor] += 1);
            if let (true, Some(tensor)) = (op.operator().packs_matrix(), params.first()) {
                readers[*tensor] = Some(MatrixReader { layer, node });
            }
        }
    }
    let resident = plan.resident.iter().flat_map(|group| &plan.groups[*group].tensors);
    resident.for_each(|(tensor, _)| readers[*tensor] = None);
    let is_only = |tensor: TensorId| uses[tensor] == 1 && graph.tensors[tensor].elements() > 0;
    readers.into_iter().enumerate().map(|(tensor, reader)| reader.filter(|_| is_only(tensor))).collect()
}

/// Returns the bytes that packed matrices take in addition to the weights that a system has received.
pub(crate) fn packed_bytes(plan: &StreamPlan, training: bool) -> u64 {
    let graph = &plan.graph;
    let on_arrival = matrix_readers(plan);
    // Elements of the matrices of each layer that are packed by a pass, and of those that are packed while they arrive.
    let elements = |layer: LayerId| {
        let nodes = graph.nodes[graph.layers[layer].nodes.clone()].iter();
        let matrices = nodes.filter(|node| node.op.operator().packs_matrix()).filter_map(|node| node.params.first());
        let (late, early): (Vec<_>, Vec<_>) = matrices.partition(|tensor| on_arrival[**tensor].is_none());
        let sum =
            |tensors: Vec<&TensorId>| tensors.iter().map(|tensor| graph.tensors[**tensor].elements() as u64).sum();
        [sum(late), sum(early)]
    };
    let layers: Vec<[u64; 2]> = (0..graph.layers.len()).map(elements).collect();
    // Layers share the memory of the former: those of the forward pass, and in training those of the backward pass.
    let by_pass = layers.iter().map(|[late, _]| *late).max().unwrap_or(0);
    if !training {
        return 4 * by_pass;
    }
    // The backward pass of a layer that is recomputed reads both forms; the next layer may already have arrived. The
    // forward and the backward pass of the last layer follow each other.
    let second = |layer: LayerId| if plan.layers[layer].recompute { layers[layer][1] } else { 0 };
    let two = (1..layers.len()).map(|layer| second(layer - 1) + second(layer)).max().unwrap_or(0);
    let last = layers.last().map_or(0, |[_, early]| *early);
    4 * (2 * by_pass + two.max(last))
}
