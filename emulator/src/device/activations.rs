//! Activations of a round in one arena, laid out by the schedule, and the samples of the round.

use super::{DeviceError, LeafInput};
use crate::graph::{Graph, LayerId, ValueId};
use crate::kernels::Buffer;
use crate::ops::Signature;
use crate::plan::{LeafLayout, Pass};
use crate::schedule::{ArenaLayout, Extent, PassSchedule, Step};

/// Steps and memory of training rounds or of evaluation rounds.
#[derive(Debug)]
pub(super) struct RoundKind {
    pub schedule: PassSchedule,
    /// How the plan cuts the batch of this kind.
    pub leaves: LeafLayout,
    layout: Option<ArenaLayout>,
}

impl RoundKind {
    pub const fn new(schedule: PassSchedule, leaves: LeafLayout) -> Self {
        Self { schedule, leaves, layout: None }
    }

    /// The layout for rounds of up to `leaves` leaves, computed at the first such round.
    fn layout(&mut self, leaves: usize) -> &ArenaLayout {
        let samples = self.leaves.samples as usize;
        let schedule = &self.schedule;
        self.layout.get_or_insert_with(|| ArenaLayout::new(schedule, samples, leaves))
    }

    pub fn steps(&self, pass: Pass, layer: LayerId) -> &[Step] {
        match pass {
            Pass::Forward => &self.schedule.forward[layer],
            Pass::Backward => &self.schedule.backward[layer],
        }
    }

    /// Position of each storage slot; empty before the first round.
    pub fn extents(&self) -> &[Extent] {
        self.layout.as_ref().map_or(&[], |layout| &layout.extents)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RoundLeaf {
    pub leaf: u32,
    pub first_sample: u64,
}

/// Tokens and labels of a round.
#[derive(Debug)]
pub(super) struct RoundSamples {
    pub leaves: Vec<RoundLeaf>,
    input_ids: Vec<i32>,
    labels: Vec<i32>,
    /// Tokens per leaf.
    width: usize,
    /// Number of entries of the smallest tables that tokens and labels index.
    bounds: [usize; 2],
    /// The graph values that hold tokens and labels.
    values: [ValueId; 2],
}

impl RoundSamples {
    pub fn new(graph: &Graph) -> Self {
        let values = [graph.tokens, graph.labels];
        let looked_up = |value: ValueId| {
            let bounds = graph.nodes.iter().flat_map(|node| {
                let uses = node.inputs.iter().enumerate().filter(|(_, input)| **input == value);
                uses.filter_map(|(at, _)| node.op.operator().token_bound(&Signature::of(graph, node), at))
            });
            bounds.min().unwrap_or(usize::MAX)
        };
        Self {
            leaves: Vec::new(),
            input_ids: Vec::new(),
            labels: Vec::new(),
            width: 0,
            bounds: values.map(looked_up),
            values,
        }
    }

    /// Checks and copies the samples of a round whose leaves have `width` tokens.
    pub fn take(&mut self, leaves: &[LeafInput<'_>], width: usize) -> Result<(), DeviceError> {
        self.leaves.clear();
        self.input_ids.clear();
        self.labels.clear();
        self.width = width;
        for leaf in leaves {
            let id = leaf.leaf;
            for (what, tokens, bound) in
                [("tokens", leaf.input_ids, self.bounds[0]), ("labels", leaf.labels, self.bounds[1])]
            {
                if tokens.len() != width {
                    return Err(DeviceError::Samples { leaf: id, what, expected: width, found: tokens.len() });
                }
                let is_label = what == "labels";
                let bad = |&token: &i32| usize::try_from(token).map_or(!is_label, |token| token >= bound);
                if let Some(place) = tokens.iter().position(bad) {
                    let what = if is_label { "label" } else { "token" };
                    let token = tokens[place];
                    return Err(DeviceError::Token { leaf: id, what, token, place, vocabulary: bound });
                }
            }
            self.leaves.push(RoundLeaf { leaf: id, first_sample: leaf.first_sample });
            self.input_ids.extend_from_slice(leaf.input_ids);
            self.labels.extend_from_slice(leaf.labels);
        }
        Ok(())
    }

    /// Returns the tokens or labels of the leaf at position `at` of the round.
    pub fn of(&self, value: ValueId, at: usize) -> &[i32] {
        let all = if value == self.values[0] { &self.input_ids } else { &self.labels };
        &all[at * self.width..][..self.width]
    }

    fn bytes(&self) -> usize {
        (self.input_ids.capacity() + self.labels.capacity()) * size_of::<i32>()
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
