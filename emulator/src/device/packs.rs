//! Packed copies of weights in the layout that matrix products read, made once for all leaves of a pass.
//!
//! Layers share the memory. The slots of each layer begin at the first one, those of the forward pass before those of
//! the backward pass. A slot that already holds the requested tensor is not packed again.

use std::ops::Range;

use super::weights::LoadedWeights;
use crate::graph::{Graph, NodeId, OpNode};
use crate::kernels::{Context, PackedB};
use crate::ops::execute::{MAX_PARAMS, NodeShape};
use crate::plan::Pass;

/// Identifies the content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotTag {
    node: NodeId,
    pass: Pass,
    version: u64,
}

/// Packed weights of one layer at a time; see the module documentation.
#[derive(Debug)]
pub(super) struct PackedWeights {
    slots: Vec<PackedB>,
    tags: Vec<Option<SlotTag>>,
    /// Slots of each node for the forward and the backward pass.
    ranges: Vec<[Range<usize>; 2]>,
}

impl PackedWeights {
    pub fn new(graph: &Graph, shapes: &[NodeShape]) -> Self {
        let (mut ranges, mut length) = (vec![[0..0, 0..0]; graph.nodes.len()], 0);
        for layer in &graph.layers {
            let mut end = 0;
            for pass in [Pass::Forward, Pass::Backward] {
                for node in layer.nodes.clone() {
                    let (executor, shape) = (graph.nodes[node].op.executor(), &shapes[node]);
                    let count = match pass {
                        Pass::Forward => executor.forward_packs(shape),
                        Pass::Backward => executor.backward_packs(shape),
                    };
                    ranges[node][pass as usize] = end..end + count;
                    end += count;
                }
            }
            length = length.max(end);
        }
        let mut slots = Vec::new();
        slots.resize_with(length, PackedB::new);
        Self { slots, tags: vec![None; length], ranges }
    }

    /// Packs what `node` needs in `pass`, unless it is packed already.
    pub fn prepare(
        &mut self,
        cx: Context<'_>,
        graph: &Graph,
        weights: &LoadedWeights,
        (node, shape): (NodeId, &NodeShape),
        pass: Pass,
    ) {
        let range = self.ranges[node][pass as usize].clone();
        let OpNode { op, params, .. } = &graph.nodes[node];
        let (Some(&first), false) = (params.first(), range.is_empty()) else { return };
        let tag = Some(SlotTag { node, pass, version: weights.version(first) });
        if self.tags[range.clone()].iter().all(|&stored| stored == tag) {
            return;
        }
        let tensors = tensors(graph, weights, node);
        let slots = &mut self.slots[range.clone()];
        match pass {
            Pass::Forward => op.executor().pack_forward(cx, shape, tensors, slots),
            Pass::Backward => op.executor().pack_backward(cx, shape, tensors, slots),
        }
        self.tags[range].fill(tag);
    }

    /// Returns the slots of `node` for `pass`.
    pub fn of(&self, node: NodeId, pass: Pass) -> &[PackedB] {
        &self.slots[self.ranges[node][pass as usize].clone()]
    }

    pub fn bytes(&self) -> usize {
        self.slots.iter().map(PackedB::bytes).sum()
    }
}

/// Returns the tensors of a node; an empty slice for a tensor that does not exist or is not loaded.
pub(super) fn tensors<'a>(graph: &Graph, weights: &'a LoadedWeights, node: NodeId) -> [&'a [f32]; MAX_PARAMS] {
    let params = &graph.nodes[node].params;
    std::array::from_fn(|param| params.get(param).map_or(&[][..], |&tensor| weights.tensor(tensor)))
}
