//! A system: in which order it asks for samples, takes weights, computes, reports and sends gradients.
//!
//! The driver pulls: [`System::next`] answers the next act, or `None` when something must come first
//! ([`System::waits_for`] says what, for `stall_seconds`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use millrace_emulator::graph::LayerId;
use millrace_emulator::placement::Placement;
use millrace_emulator::plan::{DownSlot, Pass, StreamPlan};
use millrace_emulator::tree::Node;

use crate::course::At;
use crate::credit::{Allowance, Window};
use crate::frame::{Frame, FrameError, Place};
use crate::payload::Payload;
use crate::swarm::expect;
use crate::types::{Epoch, Turn};

/// What the system does next.
#[derive(Clone, Debug)]
pub enum Act {
    /// Take the samples of these leaves and start a round.
    Begin {
        /// The turn.
        turn: Turn,
        /// Round within the turn.
        round: u32,
        /// The system's leaves; may be none.
        leaves: Range<u32>,
    },
    /// Put this chunk on the wafer, then grant the sender a running total of slots.
    Load {
        /// The chunk's slot.
        at: At,
        /// Its weights, as the plan encodes them.
        weights: Bytes,
        /// The total.
        grant: u64,
    },
    /// Run a layer for all leaves of the round. The loss layer's backward pass follows its forward pass at once.
    Compute {
        /// The layer.
        layer: LayerId,
        /// Which pass.
        pass: Pass,
    },
    /// Tell the coordinator the losses of the round's leaves.
    Report {
        /// The turn.
        turn: Turn,
    },
    /// Send the sums of these nodes for one chunk.
    Send {
        /// Where each frame belongs, one per node.
        places: Vec<Place>,
        /// The slot.
        at: At,
    },
}

/// What a blocked system waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The coordinator's next turn: commit and update.
    Turn,
    /// Weights.
    Weights,
    /// Room for gradients.
    Credit,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Begin,
    Load(At),
    Compute(LayerId, Pass),
    Report,
    Send(At),
}

/// The machine of one system in one epoch.
pub struct System {
    epoch: Epoch,
    placement: Arc<Placement>,
    place: usize,
    /// Stages of one training round and of one evaluation round.
    train: Vec<Stage>,
    eval: Vec<Stage>,
    turns: VecDeque<Turn>,
    round: u32,
    stage: usize,
    frames: VecDeque<Frame>,
    window: Window,
    allowance: Allowance,
    nodes: Vec<Vec<Node>>,
}

impl System {
    /// The system at `place` of the placement; `window` weight slots may be in flight to it.
    pub fn new(plan: &StreamPlan, placement: Arc<Placement>, place: usize, epoch: Epoch, window: u64) -> Self {
        Self {
            epoch,
            place,
            train: stages(plan, &plan.down_train, true),
            eval: stages(plan, &plan.down_eval, false),
            turns: VecDeque::new(),
            round: 0,
            stage: 0,
            frames: VecDeque::new(),
            window: Window::new(window),
            allowance: Allowance::default(),
            nodes: (0..placement.rounds.len()).map(|round| placement.system_nodes(place, round)).collect(),
            placement,
        }
    }

    /// The first grant, to be sent when the link is up.
    pub const fn first_grant(&self) -> u64 {
        self.window.total()
    }

    /// The coordinator opened a turn.
    pub fn open(&mut self, turn: Turn) {
        self.turns.push_back(turn);
    }

    /// Weights came.
    pub fn weights(&mut self, frame: Frame) {
        self.frames.push_back(frame);
    }

    /// The parent granted gradient slots.
    pub fn grant(&mut self, total: u64) {
        self.allowance.grant(total);
    }

    /// Weight frames waiting.
    pub fn queued(&self) -> usize {
        self.frames.len()
    }

    /// What a `None` of [`System::next`] waits for.
    pub fn waits_for(&self) -> Wait {
        match self.current() {
            None => Wait::Turn,
            Some((_, Stage::Send(_))) => Wait::Credit,
            Some(_) => Wait::Weights,
        }
    }

    fn current(&self) -> Option<(Turn, Stage)> {
        let turn = *self.turns.front()?;
        let stages = if turn.task.trains() { &self.train } else { &self.eval };
        Some((turn, *stages.get(self.stage)?))
    }

    /// The next act, if nothing must come first.
    ///
    /// # Errors
    /// Weights came in another order than the plan's.
    #[expect(clippy::should_implement_trait, reason = "it may have more to give after a `None`, and can fail")]
    pub fn next(&mut self) -> Result<Option<Act>, FrameError> {
        loop {
            let Some((turn, stage)) = self.current() else { return Ok(None) };
            let act = match stage {
                Stage::Begin => {
                    let rounds = if turn.task.trains() { &self.placement.rounds } else { &self.placement.eval_rounds };
                    let leaves = rounds[self.round as usize].owned[self.place].clone();
                    Act::Begin { turn, round: self.round, leaves }
                }
                Stage::Load(at) => {
                    let Some(frame) = self.frames.pop_front() else { return Ok(None) };
                    let at = At { round: self.round, ..at };
                    expect(&frame.place, turn, at)?;
                    let Payload::Dense(weights) = frame.payload else {
                        return Err(FrameError::SparseWeights { chunk: at.chunk });
                    };
                    Act::Load { at, weights, grant: self.window.consume() }
                }
                Stage::Compute(layer, pass) => Act::Compute { layer, pass },
                Stage::Report => Act::Report { turn },
                Stage::Send(at) => {
                    let nodes = &self.nodes[self.round as usize];
                    if nodes.is_empty() {
                        self.advance(turn);
                        continue;
                    }
                    if !self.allowance.spend() {
                        return Ok(None);
                    }
                    let at = At { round: self.round, ..at };
                    let place = |&node: &Node| Place {
                        epoch: self.epoch,
                        turn: turn.serial,
                        round: at.round,
                        slot: at.slot,
                        chunk: at.chunk,
                        node,
                    };
                    Act::Send { places: nodes.iter().map(place).collect(), at }
                }
            };
            self.advance(turn);
            return Ok(Some(act));
        }
    }

    fn advance(&mut self, turn: Turn) {
        let (stages, rounds) = if turn.task.trains() {
            (&self.train, &self.placement.rounds)
        } else {
            (&self.eval, &self.placement.eval_rounds)
        };
        self.stage += 1;
        if self.stage == stages.len() {
            self.stage = 0;
            self.round += 1;
        }
        if self.round as usize == rounds.len() {
            self.round = 0;
            self.turns.pop_front();
        }
    }
}

/// The stages of one round: for each layer its loads, then its computation; after the loss the report; after each
/// backward computation its sends.
fn stages(plan: &StreamPlan, down: &[DownSlot], trains: bool) -> Vec<Stage> {
    let layers = plan.layers.len();
    let forward = (0..layers).map(|layer| (layer, Pass::Forward));
    let backward = (0..layers).rev().map(|layer| (layer, Pass::Backward));
    let mut stages = vec![Stage::Begin];
    let order: Vec<_> = if trains { forward.chain(backward).collect() } else { forward.collect() };
    for (layer, pass) in order {
        let loads = down.iter().enumerate().filter(|(_, slot)| slot.layer == layer && slot.pass == pass);
        stages.extend(
            loads.map(|(slot, down)| Stage::Load(At { round: 0, slot: slot as u32, chunk: down.chunk, layer, pass })),
        );
        stages.push(Stage::Compute(layer, pass));
        if pass == Pass::Forward && layer + 1 == layers {
            stages.push(Stage::Report);
        }
        if pass == Pass::Backward {
            let sends = plan.up.iter().enumerate().filter(|(_, up)| up.layer == layer);
            stages.extend(
                sends.map(|(slot, up)| Stage::Send(At { round: 0, slot: slot as u32, chunk: up.chunk, layer, pass })),
            );
        }
    }
    stages
}
