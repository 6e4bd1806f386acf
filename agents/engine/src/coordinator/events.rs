//! Events and commands of the coordinator.

use std::sync::Arc;
use std::time::Duration;

use millrace_emulator::placement::{Placement, swarm_nodes};

use crate::message::{
    AgentCommand, AgentReport, ChunkDigests, FailureCause, ParameterSource, ShardState, SnapshotRequest,
};
use crate::types::{AgentId, CommitRecord, Epoch, OtherLosses, Role, TrainingHistory};

use super::SkippedBatch;

/// The number of agents that a job requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredAgents {
    /// Systems requested by the user.
    pub systems: u32,
    /// Minimum number of systems; with fewer the run does not continue.
    pub min_systems: u32,
    /// Number of MemoryX shards.
    pub shards: u32,
    /// Number of MemoryX agents that hold each shard; the run continues with one.
    pub replicas: u32,
    /// Maximum children of a SwarmX node.
    pub fan_out: u32,
    /// Maximum number of activation servers; the run continues with one.
    pub activation_servers: u32,
}

impl RequiredAgents {
    /// Returns whether `agent` is one of the required agents: those of each role are numbered from 0. Others may take
    /// part while one of these is missing.
    pub fn contains(&self, agent: AgentId) -> bool {
        let count = match agent.role {
            Role::Coordinator => 1,
            Role::MemoryX => self.shards.saturating_mul(self.replicas),
            Role::SwarmX => u32::try_from(swarm_nodes(self.systems as usize, self.fan_out)).unwrap_or(u32::MAX),
            Role::Activation => self.activation_servers.max(1),
            Role::Cs2 => self.systems,
        };
        agent.index < count
    }
}

/// Input of the coordinator.
#[allow(missing_docs, reason = "the variants describe their fields")]
#[derive(Clone, Debug)]
pub enum CoordinatorEvent {
    /// An agent joined and can be reached at `address`. It replaces an earlier agent of the same name. After this
    /// event, the driver must not send reports or the loss of the older stream.
    Joined {
        agent: AgentId,
        /// Address of its data port; empty for systems.
        address: String,
        /// State of a shard; `None` for other roles.
        shard: Option<ShardState>,
    },
    /// An agent's control stream broke.
    Lost { agent: AgentId },
    /// An agent sent a report.
    Report { agent: AgentId, report: AgentReport },
    /// The job is to run on another number of systems, with the same shards. The other placement begins between two
    /// iterations.
    Resized(RequiredAgents),
    /// The user requests a checkpoint of the last committed step.
    CheckpointRequested,
    /// The user stops the run, in any phase: the current iteration is abandoned, and the last committed step is saved.
    /// Requires only the shards. The run ends at once if a shard has joined that holds no parameters yet.
    StopRequested,
    /// The driver has created the directory of a checkpoint.
    Staged(SnapshotRequest),
    /// The driver has published a checkpoint.
    Published {
        /// Number of updates in it.
        step: u64,
        /// Its directory.
        path: String,
    },
    /// The driver could not create the directory of a checkpoint, or could not publish it.
    SaveFailed {
        /// Number of updates in it.
        step: u64,
        /// The reason, in one sentence.
        reason: String,
        cause: FailureCause,
    },
    /// The newest complete checkpoint, after [`CoordinatorCommand::FindCheckpoint`].
    CheckpointFound {
        /// The checkpoint, or what the run began with.
        source: ParameterSource,
        /// Whether it is a checkpoint of this run, so that none has to be written at its step.
        is_saved: bool,
        /// Skipped batches and means up to it.
        history: TrainingHistory,
    },
    /// After [`CoordinatorCommand::ReportSaveFailure`]: save the last committed step now.
    RetrySave,
    /// The current iteration takes far longer than others: a message may be lost. It is repeated in a new epoch.
    IterationOverdue {
        /// The epoch of the iteration.
        epoch: Epoch,
    },
    /// The time of a [`CoordinatorCommand::Backoff`] has elapsed.
    BackoffElapsed {
        /// The epoch of that command.
        epoch: Epoch,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// All steps are done.
    Complete,
    /// The user stopped it.
    Stopped,
    /// The run failed.
    Failed {
        /// The reason, in one sentence.
        reason: String,
        /// The agent that caused the failure, if any.
        agent: Option<AgentId>,
        /// Kind of failure.
        cause: FailureCause,
    },
}

/// A finished evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Updates applied.
    pub step: u64,
    /// Sum of all losses, each that has a weight divided by the sum of it, and the others by the number of samples. If
    /// none has a weight, all are divided by the number of tokens with a label in the main loss.
    pub loss: f64,
    /// Mean of the main loss, with its factor: over its weight, or over the tokens with a label.
    pub main_loss: f64,
    /// Number of tokens with a label.
    pub tokens: u64,
    /// Number of tokens predicted correctly.
    pub correct: u64,
    /// Sums of the losses beside the main one.
    pub other: OtherLosses,
    /// Sums of the metrics of the model's graph.
    pub metrics: Vec<f64>,
    /// Number of evaluated batches.
    pub batches: u64,
}

impl Evaluation {
    /// Returns the share of the tokens predicted correctly.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.tokens.max(1) as f64
    }

    /// Returns the share of the labels of the other losses predicted correctly.
    pub fn other_accuracy(&self) -> f64 {
        self.other.correct as f64 / self.other.labels.max(1) as f64
    }

    /// Returns the exponential of the loss.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// Output of the coordinator.
#[allow(missing_docs, reason = "the variants describe their fields")]
#[derive(Clone, Debug)]
pub enum CoordinatorCommand {
    /// Send a command to an agent.
    Send(AgentId, AgentCommand),
    /// Create the directory for a checkpoint of `step`; reply with [`CoordinatorEvent::Staged`].
    StageCheckpoint {
        /// Number of updates in it.
        step: u64,
    },
    /// Publish a checkpoint whose chunks are all on disk; reply with [`CoordinatorEvent::Published`].
    PublishCheckpoint {
        /// Number of updates in it.
        step: u64,
        /// Digests in plan order.
        digests: Vec<ChunkDigests>,
        /// The commit of its step, if any.
        record: Option<CommitRecord>,
        /// Skipped batches and means up to its step.
        history: TrainingHistory,
        /// Epoch of its writers.
        epoch: Epoch,
    },
    /// Report that a checkpoint could not be written. Training continues; the driver decides when to retry with
    /// [`CoordinatorEvent::RetrySave`]. A run that has nothing else to do waits for that, see
    /// [`Coordinator::is_awaiting_checkpoint`].
    ///
    /// [`Coordinator::is_awaiting_checkpoint`]: super::Coordinator::is_awaiting_checkpoint
    ReportSaveFailure {
        /// Number of updates in it.
        step: u64,
        /// The reason, in one sentence.
        reason: String,
        /// The shard that could not write, if one failed.
        agent: Option<AgentId>,
        cause: FailureCause,
    },
    /// A shard lost its parameters. All shards load the newest checkpoint, and the steps since are executed again. The
    /// checkpoint in progress, if any, is abandoned: remove its directory.
    ReportRestore {
        /// The shard.
        shard: AgentId,
        /// The step of the checkpoint.
        from: u64,
        /// The newest committed step.
        to: u64,
    },
    /// All shards load another checkpoint than the one that a shard could not load, after
    /// [`CoordinatorEvent::CheckpointFound`]. The steps since are executed again.
    ReportFallback {
        /// The step of the checkpoint.
        from: u64,
        /// The newest committed step.
        to: u64,
    },
    /// A shard can't load the checkpoint that all shards are to load. Find the newest complete one, of which every byte
    /// was verified, and reply with [`CoordinatorEvent::CheckpointFound`]; or end the run for the same reason. Nothing
    /// is loaded in the meantime.
    FindCheckpoint {
        /// The shard.
        agent: AgentId,
        /// Directory of the checkpoint.
        path: String,
        /// The reason, in one sentence.
        reason: String,
        cause: FailureCause,
    },
    /// A new epoch begins.
    Epoch { epoch: Epoch, placement: Arc<Placement> },
    /// A link of `epoch` failed: reply with [`CoordinatorEvent::BackoffElapsed`] after this time. No new epoch begins
    /// earlier, unless one of the two agents joins or disconnects.
    Backoff {
        /// The epoch that failed.
        epoch: Epoch,
        after: Duration,
        /// The agent that reports the failure.
        reporter: AgentId,
        /// The agent at the other end, if known.
        peer: Option<AgentId>,
        /// Number of consecutive failures of this link.
        failures: u32,
    },
    /// An agent failed, and the run continues without it: close its stream.
    Disconnect {
        agent: AgentId,
        /// The reason, in one sentence.
        reason: String,
    },
    /// Iterations begin: every link of the epoch is established.
    ReportRunning,
    /// Report that a shard has recorded the commit of a step. Sent once per step, in order. A new coordinator repeats
    /// the newest step, because the previous one may not have reported it.
    ReportStep {
        record: CommitRecord,
        /// Sums of the metrics of the model's graph; empty for a step of a previous coordinator.
        metrics: Vec<f64>,
    },
    /// Report that a batch was skipped. Repeated if the run continues from a commit before it.
    ReportSkip(SkippedBatch),
    /// The run continues with this source, which is evaluated next.
    EvaluateNext(ParameterSource),
    /// An evaluation begins, or begins again after a change of membership.
    Evaluating,
    /// Report a finished evaluation batch, with the loss so far.
    ReportEvalBatch(Evaluation),
    /// Report a finished evaluation.
    ReportEvaluation(Evaluation),
    /// The run has ended, and the agents have received [`AgentCommand::Finish`].
    End(RunOutcome),
}
