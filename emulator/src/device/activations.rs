//! Activations of a round in one arena, laid out by the schedule.

use std::ops::Range;

use super::samples::RoundSamples;
use crate::graph::{Graph, LayerId};
use crate::kernels::Buffer;
use crate::plan::{LeafLayout, Pass};
use crate::schedule::{ArenaLayout, Extent, PassSchedule, Step, leaves_per_block};
use crate::tree::Node;

/// Steps and memory of training rounds or of evaluation rounds.
#[derive(Debug)]
pub(super) struct RoundKind {
    pub schedule: PassSchedule,
    /// How the plan cuts the batch of this kind.
    pub leaves: LeafLayout,
    /// Maximum leaves of a block.
    block_leaves: u32,
    layout: Option<ArenaLayout>,
}

/// Leaves of a round that are computed together.
#[derive(Clone, Debug)]
pub(super) struct LeafBlock {
    /// The node of the leaf tree that has these leaves.
    pub node: Node,
    /// Their positions in the round.
    pub leaves: Range<usize>,
}

impl RoundKind {
    pub fn new(schedule: PassSchedule, graph: &Graph, leaves: LeafLayout) -> Self {
        Self { schedule, leaves, block_leaves: leaves_per_block(graph, leaves.samples), layout: None }
    }

    /// Divides the leaves `leaves`, all of a round, into blocks. If `single`, each block has one leaf.
    pub fn blocks(&self, leaves: Range<u32>, single: bool) -> impl Iterator<Item = LeafBlock> + use<> {
        let first = leaves.start;
        let nodes = self.leaves.tree().blocks(leaves, if single { 1 } else { self.block_leaves });
        nodes.map(move |node| LeafBlock { node, leaves: (node.start - first) as usize..(node.end - first) as usize })
    }

    /// The layout for rounds of up to `leaves` leaves, computed at the first such round.
    fn layout(&mut self, leaves: usize) -> &ArenaLayout {
        let (samples, block) = (self.leaves.samples as usize, self.block_leaves as usize);
        let schedule = &self.schedule;
        self.layout.get_or_insert_with(|| ArenaLayout::new(schedule, samples, leaves, block))
    }

    /// Returns the steps of a pass; none for the backward pass of an evaluation.
    pub fn steps(&self, pass: Pass, layer: LayerId) -> &[Step] {
        let layers = match pass {
            Pass::Forward => &self.schedule.forward,
            Pass::Backward => &self.schedule.backward,
        };
        layers.get(layer).map_or(&[], Vec::as_slice)
    }

    /// Position of each storage slot; empty before the first round.
    pub fn extents(&self) -> &[Extent] {
        self.layout.as_ref().map_or(&[], |layout| &layout.extents)
    }
}

/// The activation arena of the device, shared by all kinds of rounds.
#[derive(Debug, Default)]
pub(super) struct Arena(Buffer);

impl Arena {
    /// Allocates memory for rounds of `kind` of up to `leaves` leaves.
    pub fn reserve(&mut self, kind: &mut RoundKind, leaves: usize) {
        self.0.resize(kind.layout(leaves).len);
    }

    /// Returns the elements of the arena.
    pub fn numbers(&mut self) -> &mut [f32] {
        self.0.as_mut_slice()
    }

    /// Returns the bytes held, including those of the samples.
    pub fn bytes(&self, samples: &RoundSamples) -> usize {
        self.0.bytes() + samples.bytes()
    }
}
