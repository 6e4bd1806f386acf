//! Packed copies of matrices in the layout that products read, made once for all leaves of a pass: of those that are
//! not packed as they arrive, because they stay on the wafer or several operators read them.
//!
//! Layers share the memory. The slots of each layer begin at the first one, those of the forward pass before those of
//! the backward pass. A slot that already holds the requested tensor is not packed again.

use super::weights::LoadedWeights;
use crate::graph::{Graph, NodeId, OpNode};
use crate::kernels::{Context, MatRef, PackedB, PackedOperand};
use crate::ops::execute::{MAX_PARAMS, NodeShape};
use crate::plan::Pass;

/// Identifies the content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotTag {
    node: NodeId,
    pass: Pass,
    version: u64,
}

/// Packed matrices of one layer at a time; see the module documentation.
#[derive(Debug)]
pub(super) struct PackedWeights {
    slots: Vec<PackedB>,
    tags: Vec<Option<SlotTag>>,
    /// Slot of each node for the forward and the backward pass.
    of_nodes: Vec<[Option<usize>; 2]>,
}

impl PackedWeights {
    pub fn new(graph: &Graph, weights: &LoadedWeights) -> Self {
        let (mut of_nodes, mut length) = (vec![[None; 2]; graph.nodes.len()], 0);
        for layer in &graph.layers {
            let mut end = 0;
            for pass in [Pass::Forward, Pass::Backward] {
                let packs = |node: &NodeId| graph.nodes[*node].op.operator().packs_matrix();
                for node in layer.nodes.clone().filter(packs).filter(|node| !weights.packs_matrix(*node)) {
                    of_nodes[node][pass as usize] = Some(end);
                    end += 1;
                }
            }
            length = length.max(end);
        }
        let mut slots = Vec::new();
        slots.resize_with(length, PackedB::new);
        Self { slots, tags: vec![None; length], of_nodes }
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
        let (Some(slot), Some(&tensor)) = (self.of_nodes[node][pass as usize], graph.nodes[node].params.first()) else {
            return;
        };
        let tag = Some(SlotTag { node, pass, version: weights.version(tensor) });
        if self.tags[slot] != tag {
            let (rows, columns) = shape.matrix();
            let matrix = MatRef::row_major(weights.tensor(tensor), rows, columns);
            self.slots[slot].pack(cx, if pass == Pass::Forward { matrix.t() } else { matrix });
            self.tags[slot] = tag;
        }
    }

    /// Returns the packed matrix of `node` for `pass`.
    pub fn of(&self, node: NodeId, pass: Pass) -> Option<PackedOperand<'_>> {
        self.of_nodes[node][pass as usize].map(|slot| self.slots[slot].operand())
    }

    pub fn bytes(&self) -> usize {
        self.slots.iter().map(PackedB::bytes).sum()
    }
}

/// Returns the tensors of a node; an empty slice for a tensor that does not exist or is not loaded.
pub(super) fn tensors<'a>(graph: &Graph, weights: &'a LoadedWeights, node: NodeId) -> [&'a [f32]; MAX_PARAMS] {
    let OpNode { params, .. } = &graph.nodes[node];
    std::array::from_fn(|param| params.get(param).map_or(&[][..], |&tensor| weights.tensor(tensor)))
}
