//! Positions on a link: which slots are sent in which order in one iteration.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_emulator::graph::LayerId;
use millrace_emulator::placement::{Placement, ShardId};
use millrace_emulator::plan::{ChunkId, Pass, StreamPlan};

use crate::types::{Iteration, IterationKind};

/// One slot of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Round within the iteration.
    pub round: u32,
    /// Index into the plan's order for this direction.
    pub slot: u32,
    /// The chunk.
    pub chunk: ChunkId,
    /// The layer it is for.
    pub layer: LayerId,
    /// The pass it is for.
    pub pass: Pass,
}

/// Direction in which a stream crosses the tree of SwarmX nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Weights, from MemoryX to the systems.
    Down,
    /// Gradients, from the systems to MemoryX.
    Up,
}

/// The slots of one iteration on one link, in order. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SlotSequence {
    slots: Arc<[Slot]>,
    rounds: u32,
}

impl SlotSequence {
    /// Creates the sequence for `task` in `direction`; only the chunks of `shard`, if given.
    pub fn new(
        plan: &StreamPlan,
        placement: &Placement,
        task: IterationKind,
        direction: Direction,
        shard: Option<ShardId>,
    ) -> Self {
        let down = |(slot, down): (usize, &millrace_emulator::plan::DownSlot)| Slot {
            round: 0,
            slot: slot as u32,
            chunk: down.chunk,
            layer: down.layer,
            pass: down.pass,
        };
        let all: Vec<Slot> = match (direction, task.is_training()) {
            (Direction::Down, true) => plan.down_train.iter().enumerate().map(down).collect(),
            (Direction::Down, false) => plan.down_eval.iter().enumerate().map(down).collect(),
            (Direction::Up, true) => {
                let up = plan.up.iter().enumerate();
                up.map(|(slot, up)| Slot {
                    round: 0,
                    slot: slot as u32,
                    chunk: up.chunk,
                    layer: up.layer,
                    pass: Pass::Backward,
                })
                .collect()
            }
            (Direction::Up, false) => Vec::new(),
        };
        let mine = |at: &Slot| shard.is_none_or(|shard| placement.shard_of(at.chunk) == shard);
        let rounds = if task.is_training() { &placement.rounds } else { &placement.eval_rounds };
        Self { slots: all.into_iter().filter(mine).collect(), rounds: rounds.len() as u32 }
    }

    /// Returns the slots of the whole iteration.
    pub fn len(&self) -> usize {
        self.slots.len() * self.rounds as usize
    }

    /// Returns whether there are no slots.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the slot at `position` of the iteration.
    pub fn at(&self, position: usize) -> Option<Slot> {
        let at = *self.slots.get(position.checked_rem(self.slots.len())?)?;
        let round = (position / self.slots.len()) as u32;
        (round < self.rounds).then_some(Slot { round, ..at })
    }
}

/// The training and evaluation sequences of one link and direction.
#[derive(Clone, Debug)]
pub struct SlotSequences {
    train: SlotSequence,
    eval: SlotSequence,
}

impl SlotSequences {
    /// Creates both sequences of a link; see [`SlotSequence::new`].
    pub fn new(plan: &StreamPlan, placement: &Placement, direction: Direction, shard: Option<ShardId>) -> Self {
        let course = |task| SlotSequence::new(plan, placement, task, direction, shard);
        Self {
            train: course(IterationKind::Train { step: 1, batch: 0 }),
            eval: course(IterationKind::Eval { step: 0, batch: 0 }),
        }
    }

    /// Creates the sequences of a direction in which nothing is sent.
    pub fn empty() -> Self {
        let empty = SlotSequence { slots: Arc::new([]), rounds: 0 };
        Self { train: empty.clone(), eval: empty }
    }

    /// Returns the sequence for `task`.
    pub const fn for_kind(&self, task: IterationKind) -> &SlotSequence {
        if task.is_training() { &self.train } else { &self.eval }
    }
}

/// The position of a link in the iterations opened so far.
#[derive(Clone, Debug)]
pub struct SlotCursor {
    courses: SlotSequences,
    iterations: VecDeque<Iteration>,
    position: usize,
}

impl SlotCursor {
    /// Creates a cursor without iterations.
    pub fn new(courses: SlotSequences) -> Self {
        Self { courses, iterations: VecDeque::new(), position: 0 }
    }

    /// Adds an opened iteration; ignored if it has no slots on this link.
    pub fn open(&mut self, iteration: Iteration) {
        if !self.courses.for_kind(iteration.task).is_empty() {
            self.iterations.push_back(iteration);
        }
    }

    /// Returns the next slot, or `None` until another iteration is opened.
    pub fn next(&self) -> Option<(Iteration, Slot)> {
        let iteration = *self.iterations.front()?;
        Some((iteration, self.courses.for_kind(iteration.task).at(self.position)?))
    }

    /// Marks the next slot as done.
    pub fn advance(&mut self) {
        let Some(iteration) = self.iterations.front() else { return };
        self.position += 1;
        if self.position >= self.courses.for_kind(iteration.task).len() {
            self.iterations.pop_front();
            self.position = 0;
        }
    }
}
