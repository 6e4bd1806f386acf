//! The coordinator: membership, epochs, iterations, the two-phase commit, checkpoints and the end of a run.
//!
//! ```text
//! gather members -> load parameters -> configure (epoch + 1) -> all linked -> iterations -> end
//!        ^                                                                     |
//!        '-- an agent or link is lost, a system has joined, a job is resized --'
//! ```
//!
//! * An agent that joins and is not needed waits for the end of the current iteration, as does another number of
//!   systems. After a link failure, the next epoch waits for a delay.
//! * A training iteration is decided once every MemoryX agent that takes part has reported it prepared and the loss of
//!   every leaf is known. The commit is sent until a replica of every shard has acknowledged it, over any number of
//!   epochs. Everything before that decision may be discarded and repeated.
//! * A run that only evaluates may have several sources. Each is loaded, linked and evaluated in its own epoch.
//! * No state is durable: the coordinator of a later attempt, started with the same source, continues from the state of
//!   the shards.
//! * If no replica of a shard is left with its parameters, all shards load the newest checkpoint, and the steps since
//!   are executed again: with the same bits, so what was reported of them is not reported again.
//! * A step whose loss spikes is executed again with the next batch, if the policy says so.

mod checkpointing;
mod events;
mod iterations;
mod link_failures;
mod loss_weights;
mod membership;
mod restore;
mod run_policy;
mod shards;
mod spikes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::StreamPlan;

use crate::message::{AgentCommand, AgentReport, FailureCause, ParameterSource, ShardState};
use crate::types::{AgentId, CommitRecord, Epoch, Role};

pub use events::{CoordinatorCommand, CoordinatorEvent, Evaluation, RequiredAgents, RunOutcome};
pub use link_failures::{INITIAL_LINK_BACKOFF, MAX_LINK_BACKOFF, MAX_LINK_FAILURES};
pub use run_policy::{
    EvalPolicy, LeafTable, LearningRateFn, LossScaling, NextAction, ResumeState, RunPolicy, StepProgress,
    gradient_scale,
};
pub use spikes::{MAX_CONSECUTIVE_SKIPS, SkippedBatch, SpikePolicy};

use checkpointing::CheckpointInProgress;
use iterations::{CurrentIteration, EvaluationInProgress, PendingCommit};
use link_failures::LinkFailures;
use loss_weights::BatchWeights;
use restore::{CheckpointSearch, FailedLoad, RestorePoint};

#[derive(Debug)]
struct MemberState {
    address: String,
    /// State of a MemoryX agent; the default for other roles.
    state: ShardState,
    /// Whether it copies the parameters of another replica.
    is_copying: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for required agents.
    Gathering,
    /// These shards are loading their parameters.
    Loading(BTreeSet<AgentId>),
    /// These agents have not established all their links yet.
    Linking(BTreeSet<AgentId>),
    Running,
    Ended,
}

/// Decides about membership, iterations, commits and checkpoints. The driver must execute the commands of an event in
/// order, before it passes the next event.
pub struct Coordinator {
    plan: Arc<StreamPlan>,
    policy: RunPolicy,
    required: RequiredAgents,
    source: ParameterSource,
    /// What all shards load after one of them has lost its parameters.
    restore_point: RestorePoint,
    /// The search for another checkpoint, after a shard could not load the newest one.
    search: Option<CheckpointSearch>,
    /// Sources to evaluate after `source`, in order.
    remaining_sources: VecDeque<ParameterSource>,
    epoch: Epoch,
    phase: Phase,
    members: BTreeMap<AgentId, MemberState>,
    placement: Option<Arc<Placement>>,
    /// Whether an agent has joined or the job was resized, so that another placement may be better from the next
    /// iteration on.
    may_place_better: bool,
    failures: LinkFailures,
    /// Number of updates committed, or decided to be.
    step: u64,
    /// The newest step reported by [`CoordinatorCommand::ReportStep`], or known at the start.
    reported_step: u64,
    /// The newest step whose evaluation was reported.
    evaluated_step: Option<u64>,
    /// Commit record of the newest committed step that is known.
    record: Option<CommitRecord>,
    /// Number of batches skipped since that commit.
    skips_of_step: u64,
    /// What has been done at `step`.
    done: StepProgress,
    resume_state: ResumeState,
    /// Number of the next iteration in this epoch.
    next_iteration: u64,
    current: Option<CurrentIteration>,
    evaluating: Option<EvaluationInProgress>,
    /// By number of the batch of the training, from that of the next step on.
    batch_weights: BTreeMap<u64, BatchWeights>,
    checkpoint: Option<CheckpointInProgress>,
    /// The step whose checkpoint could not be written, until another one begins.
    failed_save: Option<u64>,
    pending_commit: Option<PendingCommit>,
    /// Whether a client requested a checkpoint of the last committed step.
    checkpoint_wanted: bool,
    /// Whether the run was requested to stop.
    stopping: bool,
}

impl Coordinator {
    /// Creates a coordinator that starts with the parameters of `source`, or with the state of the shards if they hold
    /// the same job. Its first epoch is (`attempt`, 1).
    pub fn new(
        plan: Arc<StreamPlan>,
        policy: RunPolicy,
        required: RequiredAgents,
        source: ParameterSource,
        attempt: u32,
        resume_state: ResumeState,
    ) -> Self {
        let known = resume_state.progress_at(source.step());
        let done = StepProgress { evaluated: known.evaluated || source.step() < resume_state.step, ..known };
        Self {
            plan,
            policy,
            required,
            step: source.step(),
            // A previous coordinator reported each step before it opened the next one. The shards that hold the newest
            // step may be lost before the run continues from it.
            reported_step: source.step().max(resume_state.step.saturating_sub(1)),
            evaluated_step: done.evaluated.then_some(source.step()),
            restore_point: RestorePoint { source: source.clone(), is_saved: done.saved, history: resume_state.history },
            search: None,
            source,
            remaining_sources: VecDeque::new(),
            epoch: Epoch { attempt, number: 0 },
            phase: Phase::Gathering,
            members: BTreeMap::new(),
            placement: None,
            may_place_better: false,
            failures: LinkFailures::default(),
            record: None,
            skips_of_step: 0,
            done,
            resume_state,
            next_iteration: 0,
            current: None,
            evaluating: None,
            batch_weights: BTreeMap::new(),
            checkpoint: None,
            failed_save: None,
            pending_commit: None,
            checkpoint_wanted: false,
            stopping: false,
        }
    }

    /// Adds sources that an evaluation run evaluates after the first one, in this order. Each has more updates than the
    /// previous one.
    #[must_use]
    pub fn with_further_evaluations(mut self, further: impl IntoIterator<Item = ParameterSource>) -> Self {
        self.remaining_sources = further.into_iter().collect();
        self
    }

    /// Returns the number of updates committed, or decided to be.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Returns whether an iteration is in progress.
    pub const fn is_iterating(&self) -> bool {
        self.current.is_some()
    }

    /// Returns the current epoch.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the agents that the job requires.
    pub const fn required(&self) -> RequiredAgents {
        self.required
    }

    /// Returns whether `agent` has joined and is connected.
    pub fn has(&self, agent: AgentId) -> bool {
        self.members.contains_key(&agent)
    }

    /// Handles an event and appends the resulting commands to `out`.
    pub fn handle_event(&mut self, event: CoordinatorEvent, out: &mut Vec<CoordinatorCommand>) {
        if self.phase == Phase::Ended {
            // This agent was not connected when `Finish` was sent to the others.
            if let CoordinatorEvent::Joined { agent, .. } = event {
                out.push(CoordinatorCommand::Send(agent, AgentCommand::Finish));
            }
            return;
        }
        match event {
            CoordinatorEvent::Joined { agent, address, shard } => self.on_joined(agent, address, shard, out),
            CoordinatorEvent::Lost { agent } => self.on_lost(agent, out),
            CoordinatorEvent::Report { agent, report } => self.on_report(agent, report, out),
            CoordinatorEvent::Resized(required) => self.resize(required),
            CoordinatorEvent::CheckpointRequested if self.lacks_checkpoint() => self.retry_checkpoint(),
            CoordinatorEvent::CheckpointRequested => self.checkpoint_wanted = !self.done.saved,
            CoordinatorEvent::StopRequested => self.request_stop(),
            CoordinatorEvent::Staged(snapshot) => self.on_staged(snapshot, out),
            CoordinatorEvent::Published { step, path } => self.on_published(step, path),
            CoordinatorEvent::CheckpointFound { source, is_saved, history } => {
                self.on_checkpoint_found(RestorePoint { source, is_saved, history }, out);
            }
            CoordinatorEvent::SaveFailed { step, reason, cause } => self.on_save_failed(step, reason, cause, out),
            CoordinatorEvent::RetrySave => self.retry_checkpoint(),
            CoordinatorEvent::IterationOverdue { epoch } if epoch == self.epoch && self.current.is_some() => {
                self.restart_gathering();
            }
            CoordinatorEvent::IterationOverdue { .. } => {}
            CoordinatorEvent::BackoffElapsed { epoch } => self.failures.backoff_elapsed(epoch),
        }
        self.advance(out);
    }

    fn on_report(&mut self, agent: AgentId, report: AgentReport, out: &mut Vec<CoordinatorCommand>) {
        match report {
            AgentReport::Loaded { state } => self.on_loaded(agent, state),
            AgentReport::CopyFailed { reason } => self.on_copy_failed(agent, reason, out),
            AgentReport::Linked { epoch } if epoch == self.epoch => self.on_linked(agent, out),
            AgentReport::Leaves { epoch, iteration, results, .. } if epoch == self.epoch => {
                self.on_leaf_results(iteration, results, out)
            }
            AgentReport::Prepared { epoch, step, norms } if epoch == self.epoch => {
                self.on_prepared(agent, step, &norms, out)
            }
            AgentReport::Committed { step } => self.on_committed(agent, step, out),
            AgentReport::Written { snapshot, digests } => self.on_written(agent, &snapshot, digests, out),
            AgentReport::WriteFailed { snapshot, reason, cause } => {
                self.on_write_failed(agent, &snapshot, reason, cause, out)
            }
            AgentReport::LinkLost { epoch, peer } if epoch == self.epoch => self.on_link_lost(agent, peer, out),
            AgentReport::Failed { reason, cause } => self.on_failed(agent, reason, cause, out),
            AgentReport::LossWeights { epoch, batch, first, weights } if epoch == self.epoch => {
                self.on_loss_weights(batch, first, weights)
            }
            // Reports of an older epoch.
            AgentReport::Linked { .. }
            | AgentReport::LossWeights { .. }
            | AgentReport::Leaves { .. }
            | AgentReport::Prepared { .. }
            | AgentReport::LinkLost { .. }
            // The driver handles these.
            | AgentReport::StorageStalled { .. }
            | AgentReport::Worked { .. } => {}
        }
    }

    /// Continues whatever can continue.
    fn advance(&mut self, out: &mut Vec<CoordinatorCommand>) {
        if self.phase == Phase::Ended {
            return;
        }
        if self.stopping {
            self.finish_stopped_run(out);
            return;
        }
        loop {
            if self.may_place_better && self.current.is_none() && self.evaluating.is_none() {
                self.may_place_better = false;
                if self.has_better_placement() {
                    self.restart_gathering();
                }
            }
            if self.phase == Phase::Gathering && !self.failures.is_backing_off() {
                self.try_begin_epoch(out);
            }
            let runs = self.phase == Phase::Running && self.current.is_none() && !self.is_staging();
            if !runs || !self.next_iteration(out) {
                break;
            }
        }
    }

    /// Handles the failure of an agent. The run ends if it needs that agent or the user has to act; otherwise the other
    /// agents continue.
    fn on_failed(&mut self, agent: AgentId, reason: String, cause: FailureCause, out: &mut Vec<CoordinatorCommand>) {
        if cause == FailureCause::Other && matches!(agent.role, Role::Cs2 | Role::SwarmX) {
            out.push(CoordinatorCommand::Disconnect { agent, reason });
            self.on_lost(agent, out);
        } else if let Some(path) = self.loaded_checkpoint(agent) {
            self.on_load_failed(FailedLoad { agent, path, reason, cause });
        } else {
            self.end(RunOutcome::Failed { reason, agent: Some(agent), cause }, out);
        }
    }

    /// Continues with another source: every shard loads it, and a new epoch begins.
    fn switch_source(&mut self, source: ParameterSource, out: &mut Vec<CoordinatorCommand>) {
        (self.step, self.reported_step) = (source.step(), source.step());
        (self.source, self.done) = (source, StepProgress::default());
        self.phase = Phase::Gathering;
        out.push(CoordinatorCommand::EvaluateNext(self.source.clone()));
        self.try_begin_epoch(out);
    }

    /// Returns whether the run was requested to stop.
    pub const fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn request_stop(&mut self) {
        self.stopping = true;
        self.current = None;
        self.evaluating = None;
    }

    /// Ends a stopped run after saving the last committed step, once every shard has it. Only the shards are needed: no
    /// other agent holds state of that step.
    fn finish_stopped_run(&mut self, out: &mut Vec<CoordinatorCommand>) {
        let begun = self.epoch.number > 0;
        if !begun && (self.phase != Phase::Gathering || self.lacks_parameters()) {
            self.end(RunOutcome::Stopped, out);
            return;
        }
        let agreed = matches!(self.phase, Phase::Linking(_) | Phase::Running) || (begun && self.is_checkpointed());
        // A checkpoint in progress is never finished by a shard that has lost its parameters.
        if (!agreed || self.lacks_parameters()) && !self.align_shards(out) {
            return;
        }
        if self.is_checkpointed() {
            self.finish(RunOutcome::Stopped, out);
        } else {
            self.begin_checkpoint(out);
        }
    }

    /// Ends the run once the last checkpoint is published and the last commit is recorded.
    fn finish(&mut self, outcome: RunOutcome, out: &mut Vec<CoordinatorCommand>) {
        if self.checkpoint.is_none() && self.pending_commit.is_none() && !self.lacks_checkpoint() {
            self.end(outcome, out);
        }
    }

    fn end(&mut self, outcome: RunOutcome, out: &mut Vec<CoordinatorCommand>) {
        self.phase = Phase::Ended;
        out.extend(self.members.keys().map(|&agent| CoordinatorCommand::Send(agent, AgentCommand::Finish)));
        out.push(CoordinatorCommand::End(outcome));
    }
}

/// Shows the state of the run and what it waits for.
impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator")
            .field("epoch", &self.epoch)
            .field("phase", &self.phase)
            .field("members", &self.members.keys().map(AgentId::to_string).collect::<Vec<_>>())
            .field("step", &self.step)
            .field("done", &self.done)
            .field("current", &self.current)
            .field("checkpoint", &self.checkpoint)
            .field("failed_save", &self.failed_save)
            .field("pending_commit", &self.pending_commit)
            .field("checkpoint_wanted", &self.checkpoint_wanted)
            .field("stopping", &self.stopping)
            .finish_non_exhaustive()
    }
}
