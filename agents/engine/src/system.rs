//! The state machine of a system: the order in which it requests samples, loads weights, computes, reports losses and
//! sends gradients.
//!
//! The driver polls [`System::next`], which returns the next action, or `None` if it must wait ([`System::wait_reason`]
//! returns for what, for `stall_seconds`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use millrace_emulator::graph::LayerId;
use millrace_emulator::placement::Placement;
use millrace_emulator::plan::{DownSlot, Pass, StreamPlan};
use millrace_emulator::tree::Node;

use crate::credit::{ReceiveWindow, SendCredit};
use crate::frame::{Frame, FrameError, FrameKey};
use crate::payload::Payload;
use crate::slots::Slot;
use crate::swarm::check_expected;
use crate::types::{Epoch, Iteration};

/// Next action of the system.
#[allow(missing_docs, reason = "the variants describe their fields")]
#[derive(Clone, Debug)]
pub enum SystemAction {
    /// Take the samples of these leaves and begin a round.
    Begin {
        iteration: Iteration,
        /// Round within the iteration.
        round: u32,
        /// Leaves of the system; may be empty.
        leaves: Range<u32>,
    },
    /// Load this chunk onto the wafer, then grant the sender a running total of slots.
    Load {
        at: Slot,
        /// Its weights, as the plan encodes them.
        weights: Bytes,
        /// The running total.
        grant: u64,
    },
    /// Compute a layer for all leaves of the round. The backward pass of the loss layer follows its forward pass
    /// immediately.
    Compute { layer: LayerId, pass: Pass },
    /// Report the losses of the round's leaves to the coordinator.
    Report { iteration: Iteration },
    /// Send the partial sums of one chunk.
    Send {
        /// Keys of the frames, one per node.
        keys: Vec<FrameKey>,
        at: Slot,
    },
}

/// What a system waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The next iteration, which follows commit and update.
    Iteration,
    /// Weights.
    Weights,
    /// Credit for gradients.
    Credit,
}

#[derive(Clone, Copy, Debug)]
enum SystemStage {
    Begin,
    Load(Slot),
    Compute(LayerId, Pass),
    Report,
    Send(Slot),
}

/// The state machine of one system in one epoch.
pub struct System {
    epoch: Epoch,
    placement: Arc<Placement>,
    system_index: usize,
    /// Stages of one training round and of one evaluation round.
    train: Vec<SystemStage>,
    eval: Vec<SystemStage>,
    iterations: VecDeque<Iteration>,
    round: u32,
    stage: usize,
    frames: VecDeque<Frame>,
    window: ReceiveWindow,
    credit: SendCredit,
    nodes: Vec<Vec<Node>>,
}

impl System {
    /// Creates the system at `system_index` of the placement; `window` weight slots may be in flight to it.
    pub fn new(plan: &StreamPlan, placement: Arc<Placement>, system_index: usize, epoch: Epoch, window: u64) -> Self {
        Self {
            epoch,
            system_index,
            train: stages(plan, &plan.down_train, true),
            eval: stages(plan, &plan.down_eval, false),
            iterations: VecDeque::new(),
            round: 0,
            stage: 0,
            frames: VecDeque::new(),
            window: ReceiveWindow::new(window),
            credit: SendCredit::default(),
            nodes: (0..placement.rounds.len()).map(|round| placement.system_nodes(system_index, round)).collect(),
            placement,
        }
    }

    /// Returns the initial grant, to be sent when the link is established.
    pub const fn initial_grant(&self) -> u64 {
        self.window.total()
    }

    /// Opens an iteration.
    pub fn open(&mut self, iteration: Iteration) {
        self.iterations.push_back(iteration);
    }

    /// Handles a weight frame.
    pub fn weights(&mut self, frame: Frame) {
        self.frames.push_back(frame);
    }

    /// Handles a grant of gradient slots by the parent.
    pub fn grant(&mut self, total: u64) {
        self.credit.grant(total);
    }

    /// Returns the number of queued weight frames.
    pub fn queued_frames(&self) -> usize {
        self.frames.len()
    }

    /// Returns what the system waits for if [`System::next`] returned `None`.
    pub fn wait_reason(&self) -> WaitReason {
        match self.current() {
            None => WaitReason::Iteration,
            Some((_, SystemStage::Send(_))) => WaitReason::Credit,
            Some(_) => WaitReason::Weights,
        }
    }

    fn current(&self) -> Option<(Iteration, SystemStage)> {
        let iteration = *self.iterations.front()?;
        let stages = if iteration.task.is_training() { &self.train } else { &self.eval };
        Some((iteration, *stages.get(self.stage)?))
    }

    /// Returns the next action, or `None` if the system must wait.
    ///
    /// # Errors
    /// Weights arrived in another order than the plan's.
    #[expect(clippy::should_implement_trait, reason = "it can return actions after a `None`, and can fail")]
    pub fn next(&mut self) -> Result<Option<SystemAction>, FrameError> {
        loop {
            let Some((iteration, stage)) = self.current() else { return Ok(None) };
            let act = match stage {
                SystemStage::Begin => {
                    let rounds =
                        if iteration.task.is_training() { &self.placement.rounds } else { &self.placement.eval_rounds };
                    let leaves = rounds[self.round as usize].owned[self.system_index].clone();
                    SystemAction::Begin { iteration, round: self.round, leaves }
                }
                SystemStage::Load(at) => {
                    let Some(frame) = self.frames.pop_front() else { return Ok(None) };
                    let at = Slot { round: self.round, ..at };
                    check_expected(&frame.key, iteration, at)?;
                    let Payload::Dense(weights) = frame.payload else {
                        return Err(FrameError::SparseWeights { chunk: at.chunk });
                    };
                    SystemAction::Load { at, weights, grant: self.window.consume() }
                }
                SystemStage::Compute(layer, pass) => SystemAction::Compute { layer, pass },
                SystemStage::Report => SystemAction::Report { iteration },
                SystemStage::Send(at) => {
                    let nodes = &self.nodes[self.round as usize];
                    if nodes.is_empty() {
                        self.advance(iteration);
                        continue;
                    }
                    if !self.credit.spend() {
                        return Ok(None);
                    }
                    let at = Slot { round: self.round, ..at };
                    let key = |&node: &Node| FrameKey {
                        epoch: self.epoch,
                        iteration: iteration.number,
                        round: at.round,
                        slot: at.slot,
                        chunk: at.chunk,
                        node,
                    };
                    SystemAction::Send { keys: nodes.iter().map(key).collect(), at }
                }
            };
            self.advance(iteration);
            return Ok(Some(act));
        }
    }

    fn advance(&mut self, iteration: Iteration) {
        let (stages, rounds) = if iteration.task.is_training() {
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
            self.iterations.pop_front();
        }
    }
}

/// Returns the stages of one round: for each layer its loads, then its computation; the report after the loss; the
/// sends after each backward computation.
fn stages(plan: &StreamPlan, down: &[DownSlot], trains: bool) -> Vec<SystemStage> {
    let layers = plan.layers.len();
    let forward = (0..layers).map(|layer| (layer, Pass::Forward));
    let backward = (0..layers).rev().map(|layer| (layer, Pass::Backward));
    let mut stages = vec![SystemStage::Begin];
    let order: Vec<_> = if trains { forward.chain(backward).collect() } else { forward.collect() };
    for (layer, pass) in order {
        let loads = down.iter().enumerate().filter(|(_, slot)| slot.layer == layer && slot.pass == pass);
        stages.extend(loads.map(|(slot, down)| {
            SystemStage::Load(Slot { round: 0, slot: slot as u32, chunk: down.chunk, layer, pass })
        }));
        stages.push(SystemStage::Compute(layer, pass));
        if pass == Pass::Forward && layer + 1 == layers {
            stages.push(SystemStage::Report);
        }
        if pass == Pass::Backward {
            let sends = plan.up.iter().enumerate().filter(|(_, up)| up.layer == layer);
            stages.extend(sends.map(|(slot, up)| {
                SystemStage::Send(Slot { round: 0, slot: slot as u32, chunk: up.chunk, layer, pass })
            }));
        }
    }
    stages
}
