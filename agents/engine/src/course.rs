//! Positions on a link: which slots pass in which order, in one turn.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_emulator::graph::LayerId;
use millrace_emulator::placement::{Placement, ShardId};
use millrace_emulator::plan::{ChunkId, Pass, StreamPlan};

use crate::types::{Task, Turn};

/// One slot of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Round within the turn.
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

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Weights, from MemoryX to the systems.
    Down,
    /// Gradients, from the systems to MemoryX.
    Up,
}

/// The slots of one turn on one link, in order. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Course {
    slots: Arc<[At]>,
    rounds: u32,
}

impl Course {
    /// The course of `task` in `direction`; only the chunks of `shard`, where one is given.
    pub fn new(
        plan: &StreamPlan,
        placement: &Placement,
        task: Task,
        direction: Direction,
        shard: Option<ShardId>,
    ) -> Self {
        let down = |(slot, down): (usize, &millrace_emulator::plan::DownSlot)| At {
            round: 0,
            slot: slot as u32,
            chunk: down.chunk,
            layer: down.layer,
            pass: down.pass,
        };
        let all: Vec<At> = match (direction, task.trains()) {
            (Direction::Down, true) => plan.down_train.iter().enumerate().map(down).collect(),
            (Direction::Down, false) => plan.down_eval.iter().enumerate().map(down).collect(),
            (Direction::Up, true) => {
                let up = plan.up.iter().enumerate();
                up.map(|(slot, up)| At {
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
        let mine = |at: &At| shard.is_none_or(|shard| placement.shard_of(at.chunk) == shard);
        let rounds = if task.trains() { &placement.rounds } else { &placement.eval_rounds };
        Self { slots: all.into_iter().filter(mine).collect(), rounds: rounds.len() as u32 }
    }

    /// Slots of the whole turn.
    pub fn len(&self) -> usize {
        self.slots.len() * self.rounds as usize
    }

    /// Whether nothing passes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slot at `position` of the turn.
    pub fn at(&self, position: usize) -> Option<At> {
        let at = *self.slots.get(position.checked_rem(self.slots.len())?)?;
        let round = (position / self.slots.len()) as u32;
        (round < self.rounds).then_some(At { round, ..at })
    }
}

/// The training and evaluation courses of one link and direction.
#[derive(Clone, Debug)]
pub struct Courses {
    train: Course,
    eval: Course,
}

impl Courses {
    /// Both courses of a link; see [`Course::new`].
    pub fn new(plan: &StreamPlan, placement: &Placement, direction: Direction, shard: Option<ShardId>) -> Self {
        let course = |task| Course::new(plan, placement, task, direction, shard);
        Self { train: course(Task::Train { step: 1 }), eval: course(Task::Eval { step: 0, batch: 0 }) }
    }

    /// The course of `task`.
    pub const fn of(&self, task: Task) -> &Course {
        if task.trains() { &self.train } else { &self.eval }
    }
}

/// Where a link stands: a cursor over the turns opened so far.
#[derive(Clone, Debug)]
pub struct Cursor {
    courses: Courses,
    turns: VecDeque<Turn>,
    position: usize,
}

impl Cursor {
    /// Nothing opened yet.
    pub fn new(courses: Courses) -> Self {
        Self { courses, turns: VecDeque::new(), position: 0 }
    }

    /// A turn was opened; passed over if nothing of it travels here.
    pub fn open(&mut self, turn: Turn) {
        if !self.courses.of(turn.task).is_empty() {
            self.turns.push_back(turn);
        }
    }

    /// What comes next, or `None` until another turn is opened.
    pub fn next(&self) -> Option<(Turn, At)> {
        let turn = *self.turns.front()?;
        Some((turn, self.courses.of(turn.task).at(self.position)?))
    }

    /// The next slot is done.
    pub fn advance(&mut self) {
        let Some(turn) = self.turns.front() else { return };
        self.position += 1;
        if self.position >= self.courses.of(turn.task).len() {
            self.turns.pop_front();
            self.position = 0;
        }
    }
}
