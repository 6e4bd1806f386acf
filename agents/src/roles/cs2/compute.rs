//! The compute thread of a system.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use millrace_emulator::device::{CpuDevice, Device, DeviceOptions, LeafInput};
use millrace_emulator::kernels::Simd;
use millrace_emulator::plan::{Encoding, Pass};
use millrace_engine::frame::Frame;
use millrace_engine::message::AgentReport;
use millrace_engine::payload::Payload;
use millrace_engine::system::{System, SystemAction, WaitReason};
use millrace_engine::types::{AgentId, Iteration, IterationKind, LeafResult, Role};
use millrace_protocol::codec::{self, LinkContext};
use millrace_protocol::proto;
use millrace_telemetry::metric_definitions::RoleMetrics;
use millrace_telemetry::stall::StallReason;

use super::{IDLE, Input, Start, tokens};
use crate::control::agent::{Outbox, Work};
use crate::control::job::CompiledJob;
use crate::failure::Failure;

/// The state of the compute thread; see the parent module.
pub(super) struct Worker {
    job: CompiledJob,
    threads: usize,
    outbox: Outbox,
    metrics: RoleMetrics,
    inputs: Receiver<Input>,
    work: Work,
}

/// Maximum rounds whose samples are requested or received but not used yet.
pub(super) const ROUNDS_AHEAD: usize = 2;

/// Why an epoch can't continue on this system.
enum Fault {
    /// A peer sent invalid data.
    Peer(AgentId, String),
    /// This process failed.
    Own(Failure),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Own(failure)
    }
}

/// The state of the system in one epoch.
struct InEpoch {
    start: Box<Start>,
    system: System,
    device: CpuDevice,
    samples: VecDeque<proto::SamplesReply>,
    /// Opened rounds whose samples are not requested yet.
    unasked: VecDeque<(Iteration, usize)>,
    /// Number of rounds whose samples are requested and that have not begun.
    asked: usize,
    /// The round that waits for its samples.
    begin: Option<Begin>,
    /// The step of the current iteration.
    step: u64,
    /// Whether an iteration was opened in this epoch.
    opened: bool,
}

/// A round to begin.
#[derive(Clone, Debug)]
struct Begin {
    iteration: Iteration,
    round: u32,
    leaves: Range<u32>,
}

/// The next action of the compute thread.
enum Next {
    Begin(Begin, proto::SamplesReply),
    Act(SystemAction),
}

impl InEpoch {
    /// Returns the SwarmX node that sends weights.
    fn parent(&self) -> AgentId {
        let Start { placement, place, .. } = &*self.start;
        AgentId::new(Role::SwarmX, placement.swarm[placement.systems[*place].parent].id)
    }

    /// Returns the activation server.
    fn server(&self) -> AgentId {
        let Start { placement, place, .. } = &*self.start;
        AgentId::new(Role::Activation, placement.systems[*place].activation)
    }

    fn bad_weights(&self, error: impl std::fmt::Display) -> Fault {
        Fault::Peer(self.parent(), error.to_string())
    }

    /// Returns the next possible action; `None` if samples, weights or credits must arrive first.
    fn next(&mut self) -> Result<Option<Next>, Fault> {
        if self.begin.is_none() {
            let act = self.system.next().map_err(|error| self.bad_weights(error))?;
            match act {
                Some(SystemAction::Begin { iteration, round, leaves }) => {
                    self.begin = Some(Begin { iteration, round, leaves })
                }
                act => return Ok(act.map(Next::Act)),
            }
        }
        let Some(begin) = &self.begin else { return Ok(None) };
        let wanted = |reply: &proto::SamplesReply| (reply.turn, reply.round) == (begin.iteration.number, begin.round);
        let Some(reply) = self.samples.iter().position(wanted).and_then(|at| self.samples.remove(at)) else {
            return Ok(None);
        };
        Ok(self.begin.take().map(|begin| Next::Begin(begin, reply)))
    }

    fn waits_for(&self) -> StallReason {
        match self.system.wait_reason() {
            _ if self.begin.is_some() => StallReason::Samples,
            WaitReason::Iteration if !self.opened => StallReason::Epoch,
            WaitReason::Iteration => StallReason::Commit,
            WaitReason::Weights => StallReason::Weights,
            WaitReason::Credit => StallReason::Credit,
        }
    }
}

impl Worker {
    pub fn new(
        job: CompiledJob,
        threads: usize,
        outbox: Outbox,
        metrics: RoleMetrics,
        inputs: Receiver<Input>,
    ) -> Self {
        Self { job, threads, outbox, metrics, inputs, work: IDLE }
    }

    /// Computes until the driver has dropped its sender; returns the work done.
    pub fn run(mut self) -> Result<Work, Failure> {
        millrace_emulator::kernels::ftz::enable();
        let mut here: Option<InEpoch> = None;
        loop {
            match self.advance(&mut here) {
                Ok(true) => {}
                Ok(false) => return Ok(self.work),
                Err(Fault::Own(failure)) => return Err(failure),
                Err(Fault::Peer(peer, reason)) => self.link_lost(here.take(), peer, &reason),
            }
        }
    }

    /// Abandons the epoch because of invalid data of `peer`, and reports it to the coordinator.
    fn link_lost(&self, here: Option<InEpoch>, peer: AgentId, reason: &str) {
        let Some(here) = here else { return };
        tracing::warn!(%peer, epoch = %here.start.epoch, "link is gone: {reason}");
        self.outbox.report(&AgentReport::LinkLost { epoch: here.start.epoch, peer: Some(peer) });
    }

    /// Executes the next action, or waits for an input. Returns false if the driver has dropped its sender.
    fn advance(&mut self, here: &mut Option<InEpoch>) -> Result<bool, Fault> {
        let act = here.as_mut().map(InEpoch::next).transpose()?.flatten();
        // Between two actions, receive all inputs that have arrived; without an action, wait for one.
        if let (Some(act), Some(here)) = (act, here.as_mut()) {
            self.act(here, act)?;
        } else {
            let reason = here.as_ref().map_or(StallReason::Epoch, InEpoch::waits_for);
            let (began, waiting) = (Instant::now(), self.metrics.stall().start(reason));
            let input = self.inputs.recv();
            drop(waiting);
            let Ok(input) = input else {
                self.work.idle_at_end = if reason == StallReason::Commit { began.elapsed().as_secs_f64() } else { 0.0 };
                return Ok(false);
            };
            self.take(here, input)?;
        }
        Ok(self.drain(here)?)
    }

    /// Receives all inputs that have arrived. Returns false if the driver has dropped its sender.
    fn drain(&self, here: &mut Option<InEpoch>) -> Result<bool, Failure> {
        loop {
            match self.inputs.try_recv() {
                Ok(input) => self.take(here, input)?,
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn take(&self, here: &mut Option<InEpoch>, input: Input) -> Result<(), Failure> {
        match (input, here.as_mut()) {
            (Input::Epoch(start), _) => {
                let Start { epoch, place, .. } = *start;
                let device = self.device(&start)?;
                let system = System::new(&self.job.plan, start.placement.clone(), place, epoch, self.job.window());
                start.grants.grant(system.initial_grant());
                *here = Some(InEpoch {
                    start,
                    system,
                    samples: VecDeque::new(),
                    unasked: VecDeque::new(),
                    asked: 0,
                    device,
                    begin: None,
                    step: 0,
                    opened: false,
                });
            }
            (Input::Abandon, _) => *here = None,
            (Input::Open(epoch, iteration), Some(here)) if here.start.epoch == epoch => {
                let Start { placement, .. } = &*here.start;
                let rounds = if iteration.task.is_training() { &placement.rounds } else { &placement.eval_rounds };
                here.unasked.extend((0..rounds.len()).map(|round| (iteration, round)));
                self.request_samples(here);
                here.opened = true;
                here.system.open(iteration);
            }
            (Input::Grant(epoch, total), Some(here)) if here.start.epoch == epoch => here.system.grant(total),
            (Input::Weights(frame), Some(here)) if frame.key.epoch == here.start.epoch => here.system.weights(frame),
            (Input::Samples(reply), Some(here))
                if (reply.attempt, reply.epoch) == (here.start.epoch.attempt, here.start.epoch.number) =>
            {
                here.samples.push_back(*reply);
            }
            // Input of an older epoch.
            _ => {}
        }
        Ok(())
    }

    /// Creates a device with memory for the leaves that this system owns in the epoch.
    fn device(&self, start: &Start) -> Result<CpuDevice, Failure> {
        let simd = Simd::new(self.job.profile.isa).map_err(Failure::own)?;
        let rounds = start.placement.rounds.iter().chain(&start.placement.eval_rounds);
        let leaves = rounds.map(|round| round.owned[start.place].len()).max().unwrap_or(0);
        let options = DeviceOptions { seed: self.job.job.run.seed, threads: self.threads, simd, leaves };
        CpuDevice::new(self.job.plan.clone(), options).map_err(Failure::own)
    }

    /// Returns the batch of a task: first sample number, samples per leaf, whether it is an evaluation.
    fn batch(&self, task: IterationKind) -> (u64, u32, bool) {
        let plan = &self.job.plan;
        match task {
            IterationKind::Train { step } => ((step - 1) * plan.leaves.batch(), plan.leaves.samples, false),
            IterationKind::Eval { batch, .. } => (batch * plan.eval_leaves.batch(), plan.eval_leaves.samples, true),
        }
    }

    /// Requests the samples of the next rounds, at most [`ROUNDS_AHEAD`] of them at a time.
    fn request_samples(&self, here: &mut InEpoch) {
        while here.asked < ROUNDS_AHEAD
            && let Some((iteration, round)) = here.unasked.pop_front()
        {
            let Start { epoch, placement, place, samples, .. } = &*here.start;
            let rounds = if iteration.task.is_training() { &placement.rounds } else { &placement.eval_rounds };
            let (first, of_leaf, evaluation) = self.batch(iteration.task);
            let leaves = rounds[round].owned[*place].clone();
            here.asked += 1;
            // The channel has capacity for all outstanding requests.
            let _ = samples.try_send(proto::SamplesRequest {
                turn: iteration.number,
                round: round as u32,
                evaluation,
                first: first + u64::from(leaves.start) * u64::from(of_leaf),
                count: leaves.len() as u32 * of_leaf,
                attempt: epoch.attempt,
                epoch: epoch.number,
            });
        }
    }

    fn act(&mut self, here: &mut InEpoch, next: Next) -> Result<(), Fault> {
        let act = match next {
            Next::Begin(begin, reply) => return self.begin(here, begin, &reply),
            Next::Act(act) => act,
        };
        match act {
            // Begins later, when its samples have arrived.
            SystemAction::Begin { .. } => {}
            SystemAction::Load { at, weights, grant } => {
                let encoding = self.job.plan.chunk_encoding(at.chunk);
                here.device.load(at.chunk, encoding, &weights).map_err(|error| here.bad_weights(error))?;
                here.start.grants.grant(grant);
            }
            SystemAction::Compute { layer, pass } => {
                let began = Instant::now();
                match pass {
                    Pass::Forward => here.device.forward(layer).map_err(Failure::own)?,
                    Pass::Backward => here.device.backward(layer).map_err(Failure::own)?,
                }
                self.work.seconds += began.elapsed().as_secs_f64();
                self.work.flops = here.device.flops();
            }
            SystemAction::Report { iteration } => {
                let result = |loss: &millrace_emulator::device::LeafLoss| LeafResult {
                    leaf: loss.leaf,
                    loss: loss.loss,
                    tokens: loss.tokens,
                    correct: loss.correct,
                    bad_layer: loss.bad_layer.map(|layer| layer as u32),
                };
                let results = here.device.losses().iter().map(result).collect();
                self.outbox.report(&AgentReport::Leaves {
                    epoch: here.start.epoch,
                    iteration: iteration.number,
                    results,
                });
            }
            SystemAction::Send { keys, at } => {
                for key in keys {
                    let gradient = here.device.gradient(at.layer, at.chunk, key.node).ok_or_else(|| {
                        Failure::own(format!("no gradient of chunk {} for leaves {}", at.chunk, key.node))
                    })?;
                    let frame = Frame::new(key, Payload::from_sum(gradient));
                    let context = LinkContext { plan: self.job.hash, encoding: Encoding::F32, step: here.step };
                    here.start.frames.frame(codec::pack(frame, context));
                }
            }
        }
        Ok(())
    }

    /// Begins a round with its samples.
    fn begin(&self, here: &mut InEpoch, begin: Begin, reply: &proto::SamplesReply) -> Result<(), Fault> {
        here.asked = here.asked.saturating_sub(1);
        self.request_samples(here);
        let Begin { iteration, leaves, .. } = begin;
        let (IterationKind::Train { step } | IterationKind::Eval { step, .. }) = iteration.task;
        here.step = step;
        let (first, of_leaf, evaluation) = self.batch(iteration.task);
        let (ids, labels) = (tokens(&reply.input_ids), tokens(&reply.labels));
        let length = of_leaf as usize * self.job.plan.sequence;
        if ids.len() != leaves.len() * length || labels.len() != ids.len() {
            let reason = "it sent another number of samples than it was asked for".to_owned();
            return Err(Fault::Peer(here.server(), reason));
        }
        let inputs: Vec<LeafInput<'_>> = leaves
            .clone()
            .zip(ids.chunks(length).zip(labels.chunks(length)))
            .map(|(leaf, (input_ids, labels))| LeafInput {
                leaf,
                first_sample: first + u64::from(leaf) * u64::from(of_leaf),
                input_ids,
                labels,
            })
            .collect();
        let nodes = if evaluation { Vec::new() } else { here.start.placement.tree.cover(leaves) };
        Ok(here.device.begin(!evaluation, &nodes, &inputs).map_err(Failure::own)?)
    }
}
