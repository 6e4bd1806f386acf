//! Activations of a round in one arena, laid out by the schedule.

use super::samples::RoundSamples;
use crate::graph::LayerId;
use crate::kernels::Buffer;
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
