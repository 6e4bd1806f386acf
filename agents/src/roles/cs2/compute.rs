//! The compute thread of a system: owns the device, and runs the layers of each round in the order that the engine
//! decides.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::TryRecvError;
use std::time::Instant;

use millrace_emulator::device::{CpuDevice, Device, DeviceError, DeviceOptions, LeafInput};
use millrace_emulator::kernels::Simd;
use millrace_emulator::plan::{Encoding, Pass};
use millrace_engine::frame::Frame;
use millrace_engine::message::AgentReport;
use millrace_engine::payload::Payload;
use millrace_engine::system::{System, SystemAction, WaitReason};
use millrace_engine::types::{AgentId, Iteration, IterationKind, LeafResult, OtherLosses, Role};
use millrace_protocol::codec::LinkContext;
use millrace_protocol::proto;
use millrace_protocol::samples::Checked;
use millrace_shared_memory::SharedMemory;
use millrace_telemetry::metric_definitions::RoleMetrics;
use millrace_telemetry::stall::StallReason;

use super::{ComputeInput, EpochStart, WorkReceiver};
use crate::control::client::{ComputeUsage, MessageSender};
use crate::control::job::CompiledJob;
use crate::error::AgentError;
use crate::roles::samples::{RoundInputs, device_failure};

/// The state of the compute thread; see the parent module.
pub(super) struct ComputeWorker {
    job: CompiledJob,
    threads: usize,
    outbox: MessageSender,
    metrics: RoleMetrics,
    inputs: WorkReceiver<ComputeInput>,
    /// Memory for the gradients that the system sends.
    memory: SharedMemory,
    usage: ComputeUsage,
}

/// Maximum rounds whose samples are requested or received but not used yet.
pub(super) const PREFETCH_ROUNDS: usize = 2;

/// Why an epoch can't continue on this system.
enum EpochError {
    /// A peer sent invalid data.
    Peer(AgentId, String),
    /// This process failed.
    Own(AgentError),
}

impl From<AgentError> for EpochError {
    fn from(failure: AgentError) -> Self {
        Self::Own(failure)
    }
}

/// The state of the system in one epoch.
struct ComputeEpoch {
    start: Box<EpochStart>,
    system: System,
    device: CpuDevice,
    samples: VecDeque<proto::SamplesReply>,
    /// Opened rounds whose samples are not requested yet.
    rounds_to_request: VecDeque<(Iteration, usize)>,
    /// Number of rounds whose samples are requested and that have not begun.
    requested_rounds: usize,
    /// The round that waits for its samples.
    begin: Option<RoundStart>,
    /// Factors of the losses that have a weight, by iteration, of those that have not begun.
    loss_factors: VecDeque<(u64, Vec<f64>)>,
    /// The step of the current iteration.
    step: u64,
    /// Whether an iteration was opened in this epoch.
    opened: bool,
}

#[derive(Clone, Debug)]
struct RoundStart {
    iteration: Iteration,
    round: u32,
    leaves: Range<u32>,
}

/// The next action of the compute thread.
enum ComputeAction {
    Begin(RoundStart, proto::SamplesReply),
    Act(SystemAction),
}

impl ComputeEpoch {
    /// Returns the SwarmX node that sends weights.
    fn parent(&self) -> AgentId {
        let EpochStart { placement, system_index, .. } = &*self.start;
        AgentId::new(Role::SwarmX, placement.swarm[placement.systems[*system_index].parent].id)
    }

    fn server(&self) -> AgentId {
        let EpochStart { placement, system_index, .. } = &*self.start;
        AgentId::new(Role::Activation, placement.systems[*system_index].activation)
    }

    fn bad_weights(&self, error: impl std::fmt::Display) -> EpochError {
        EpochError::Peer(self.parent(), error.to_string())
    }

    /// Returns the next possible action; `None` if samples, weights or credits must arrive first.
    fn next(&mut self) -> Result<Option<ComputeAction>, EpochError> {
        if self.begin.is_none() {
            let action = self.system.next().map_err(|error| self.bad_weights(error))?;
            match action {
                Some(SystemAction::Begin { iteration, round, leaves }) => {
                    self.begin = Some(RoundStart { iteration, round, leaves })
                }
                action => return Ok(action.map(ComputeAction::Act)),
            }
        }
        let Some(begin) = &self.begin else { return Ok(None) };
        let is_for_round =
            |reply: &proto::SamplesReply| (reply.iteration, reply.round) == (begin.iteration.number, begin.round);
        let Some(reply) = self.samples.iter().position(is_for_round).and_then(|index| self.samples.remove(index))
        else {
            return Ok(None);
        };
        Ok(self.begin.take().map(|begin| ComputeAction::Begin(begin, reply)))
    }

    /// Sets the factors of the losses in an iteration that trains, or in a further round of it.
    fn scale_losses(&mut self, iteration: u64) -> Result<(), DeviceError> {
        self.loss_factors.retain(|(number, _)| *number >= iteration);
        match self.loss_factors.front() {
            Some((number, factors)) if *number == iteration => self.device.scale_losses(factors),
            // Without losses that have a weight.
            _ => self.device.scale_losses(&[]),
        }
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

impl ComputeWorker {
    pub fn new(
        job: CompiledJob,
        threads: usize,
        outbox: MessageSender,
        metrics: RoleMetrics,
        inputs: WorkReceiver<ComputeInput>,
        memory: SharedMemory,
    ) -> Self {
        Self { job, threads, outbox, metrics, inputs, memory, usage: ComputeUsage::default() }
    }

    /// Computes until the driver has dropped its sender; returns the work done.
    pub fn run(mut self) -> Result<ComputeUsage, AgentError> {
        millrace_emulator::kernels::ftz::enable();
        let mut current: Option<ComputeEpoch> = None;
        loop {
            match self.advance(&mut current) {
                Ok(true) => {}
                Ok(false) => return Ok(self.usage),
                Err(EpochError::Own(failure)) => return Err(failure),
                Err(EpochError::Peer(peer, reason)) => self.link_lost(current.take(), peer, &reason),
            }
        }
    }

    /// Abandons the epoch because of invalid data of `peer`, and reports it to the coordinator.
    fn link_lost(&self, current: Option<ComputeEpoch>, peer: AgentId, reason: &str) {
        let Some(current) = current else { return };
        tracing::warn!(%peer, epoch = %current.start.epoch, "link failed: {reason}");
        self.outbox.send_report(&AgentReport::LinkLost { epoch: current.start.epoch, peer: Some(peer) });
    }

    /// Executes the next action, or waits for an input. Returns false if the driver has dropped its sender.
    fn advance(&mut self, current: &mut Option<ComputeEpoch>) -> Result<bool, EpochError> {
        let act = current.as_mut().map(ComputeEpoch::next).transpose()?.flatten();
        // Between two actions, receive all inputs that have arrived; without an action, wait for one.
        if let (Some(act), Some(current)) = (act, current.as_mut()) {
            self.act(current, act)?;
        } else {
            let reason = current.as_ref().map_or(StallReason::Epoch, ComputeEpoch::waits_for);
            let (began, waiting) = (Instant::now(), self.metrics.stall().start(reason));
            let input = self.inputs.recv();
            drop(waiting);
            let Ok(input) = input else {
                self.usage.idle_at_end =
                    if reason == StallReason::Commit { began.elapsed().as_secs_f64() } else { 0.0 };
                return Ok(false);
            };
            self.handle_input(current, input)?;
        }
        Ok(self.drain(current)?)
    }

    /// Receives all inputs that have arrived. Returns false if the driver has dropped its sender.
    fn drain(&self, current: &mut Option<ComputeEpoch>) -> Result<bool, AgentError> {
        loop {
            match self.inputs.try_recv() {
                Ok(input) => self.handle_input(current, input)?,
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn handle_input(&self, current: &mut Option<ComputeEpoch>, input: ComputeInput) -> Result<(), AgentError> {
        match (input, current.as_mut()) {
            (ComputeInput::Epoch(start), _) => {
                let EpochStart { epoch, system_index, .. } = *start;
                let device = self.device(&start)?;
                let system =
                    System::new(&self.job.plan, start.placement.clone(), system_index, epoch, self.job.window());
                start.grants.grant(system.initial_grant());
                *current = Some(ComputeEpoch {
                    start,
                    system,
                    samples: VecDeque::new(),
                    rounds_to_request: VecDeque::new(),
                    requested_rounds: 0,
                    device,
                    begin: None,
                    loss_factors: VecDeque::new(),
                    step: 0,
                    opened: false,
                });
            }
            (ComputeInput::Abandon, _) => *current = None,
            (ComputeInput::ScaleLosses(epoch, iteration, factors), Some(current)) if current.start.epoch == epoch => {
                current.loss_factors.push_back((iteration, factors));
            }
            (ComputeInput::Open(epoch, iteration), Some(current)) if current.start.epoch == epoch => {
                let EpochStart { placement, .. } = &*current.start;
                let rounds = if iteration.task.is_training() { &placement.rounds } else { &placement.eval_rounds };
                current.rounds_to_request.extend((0..rounds.len()).map(|round| (iteration, round)));
                self.request_samples(current);
                current.opened = true;
                current.system.open(iteration);
            }
            (ComputeInput::Grant(epoch, total), Some(current)) if current.start.epoch == epoch => {
                current.system.grant(total)
            }
            (ComputeInput::Weights(frame), Some(current)) if frame.key.epoch == current.start.epoch => {
                current.system.weights(frame)
            }
            (ComputeInput::Samples(reply), Some(current))
                if (reply.attempt, reply.epoch) == (current.start.epoch.attempt, current.start.epoch.number) =>
            {
                current.samples.push_back(*reply);
            }
            // Input of an older epoch.
            _ => {}
        }
        Ok(())
    }

    /// Creates a device with memory for the leaves that this system owns in the epoch.
    fn device(&self, start: &EpochStart) -> Result<CpuDevice, AgentError> {
        let simd = Simd::new(self.job.profile.isa).map_err(AgentError::local)?;
        let rounds = start.placement.rounds.iter().chain(&start.placement.eval_rounds);
        let leaves = rounds.map(|round| round.owned[start.system_index].len()).max().unwrap_or(0);
        let options = DeviceOptions { seed: self.job.job.run.seed, threads: self.threads, simd, leaves };
        CpuDevice::new(self.job.plan.clone(), options).map_err(AgentError::local)
    }

    /// Returns the batch of a task: first sample number, samples per leaf, whether it is an evaluation.
    fn batch(&self, task: IterationKind) -> (u64, u32, bool) {
        let plan = &self.job.plan;
        match task {
            IterationKind::Train { batch, .. } => (batch * plan.leaves.batch(), plan.leaves.samples, false),
            IterationKind::Eval { batch, .. } => (batch * plan.eval_leaves.batch(), plan.eval_leaves.samples, true),
        }
    }

    /// Requests the samples of the next rounds, at most [`PREFETCH_ROUNDS`] of them at a time.
    fn request_samples(&self, current: &mut ComputeEpoch) {
        while current.requested_rounds < PREFETCH_ROUNDS
            && let Some((iteration, round)) = current.rounds_to_request.pop_front()
        {
            let EpochStart { epoch, placement, system_index, samples, .. } = &*current.start;
            let rounds = if iteration.task.is_training() { &placement.rounds } else { &placement.eval_rounds };
            let (first, of_leaf, evaluation) = self.batch(iteration.task);
            let leaves = rounds[round].owned[*system_index].clone();
            current.requested_rounds += 1;
            // The channel has capacity for all outstanding requests.
            let request = proto::SamplesRequest {
                iteration: iteration.number,
                round: round as u32,
                evaluation,
                first: first + u64::from(leaves.start) * u64::from(of_leaf),
                count: leaves.len() as u32 * of_leaf,
                attempt: epoch.attempt,
                epoch: epoch.number,
                checksum: 0,
            };
            let _ = samples.try_send(request.sealed());
        }
    }

    fn act(&mut self, current: &mut ComputeEpoch, next: ComputeAction) -> Result<(), EpochError> {
        let action = match next {
            ComputeAction::Begin(begin, reply) => return self.begin(current, begin, &reply),
            ComputeAction::Act(action) => action,
        };
        match action {
            // Begins later, when its samples have arrived.
            SystemAction::Begin { .. } => {}
            SystemAction::Load { at, weights, grant } => {
                let encoding = self.job.plan.chunk_encoding(at.chunk);
                current.device.load(at.chunk, encoding, &weights).map_err(|error| current.bad_weights(error))?;
                current.start.grants.grant(grant);
            }
            SystemAction::Compute { layer, pass } => {
                let began = Instant::now();
                match pass {
                    Pass::Forward => current.device.forward(layer).map_err(device_failure)?,
                    Pass::Backward => current.device.backward(layer).map_err(device_failure)?,
                }
                self.usage.computed.seconds += began.elapsed().as_secs_f64();
                self.usage.computed.flops = current.device.flops();
            }
            SystemAction::Report { iteration } => {
                let result = |loss: &millrace_emulator::device::LeafLoss| LeafResult {
                    leaf: loss.leaf,
                    loss: loss.loss,
                    tokens: loss.tokens,
                    correct: loss.correct,
                    other: OtherLosses {
                        loss: loss.other.loss,
                        labels: loss.other.tokens,
                        correct: loss.other.correct,
                    },
                    metrics: loss.metrics.clone(),
                    bad_layer: loss.bad_layer.map(|layer| layer as u32),
                };
                let results = current.device.losses().iter().map(result).collect();
                self.outbox.send_report(&AgentReport::Leaves {
                    epoch: current.start.epoch,
                    iteration: iteration.number,
                    results,
                    work: self.usage.computed,
                });
            }
            SystemAction::Send { keys, at } => {
                for key in keys {
                    let gradient = current.device.gradient(at.layer, at.chunk, key.node).ok_or_else(|| {
                        AgentError::local(format!("no gradient of chunk {} for leaves {}", at.chunk, key.node))
                    })?;
                    let frame = Frame::new(key, Payload::from_sum(gradient, &self.memory));
                    let context = LinkContext { plan: self.job.hash, encoding: Encoding::F32, step: current.step };
                    current.start.frames.frame(frame, context);
                }
            }
        }
        Ok(())
    }

    fn begin(
        &self,
        current: &mut ComputeEpoch,
        begin: RoundStart,
        reply: &proto::SamplesReply,
    ) -> Result<(), EpochError> {
        current.requested_rounds = current.requested_rounds.saturating_sub(1);
        self.request_samples(current);
        let RoundStart { iteration, leaves, .. } = begin;
        current.step = iteration.task.step();
        let (first, of_leaf, evaluation) = self.batch(iteration.task);
        let count = leaves.len() as u64 * u64::from(of_leaf);
        let elements: Vec<_> = reply.inputs.iter().map(|input| (input.name.as_str(), &input.elements[..])).collect();
        let decoded = RoundInputs::decode(&self.job.plan.graph, &elements, count)
            .map_err(|error| EpochError::Peer(current.server(), error.to_string()))?;
        let samples: Vec<_> = (0..leaves.len()).map(|index| decoded.of_leaf(index, leaves.len())).collect();
        let inputs: Vec<LeafInput<'_>> = leaves
            .clone()
            .zip(&samples)
            .map(|(leaf, inputs)| LeafInput {
                leaf,
                first_sample: first + u64::from(leaf) * u64::from(of_leaf),
                inputs,
            })
            .collect();
        if !evaluation {
            current.scale_losses(iteration.number).map_err(device_failure)?;
        }
        let nodes = if evaluation { Vec::new() } else { current.start.placement.tree.cover(leaves) };
        Ok(current.device.begin(!evaluation, &nodes, &inputs).map_err(device_failure)?)
    }
}
