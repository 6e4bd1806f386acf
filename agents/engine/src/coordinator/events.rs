//! What the coordinator hears and says.

use std::sync::Arc;
use std::time::Duration;

use millrace_emulator::placement::Placement;

use crate::message::{
    AgentCommand, AgentReport, ChunkDigests, FailureCause, ParameterSource, ShardState, SnapshotRequest,
};
use crate::types::{AgentId, CommitRecord, Epoch};

/// The agents a job wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredAgents {
    /// Systems the user asked for.
    pub systems: u32,
    /// Fewest systems to run with.
    pub min_systems: u32,
    /// MemoryX shards.
    pub shards: u32,
    /// Most children of a SwarmX node.
    pub fan_out: u32,
    /// Activation servers.
    pub activation_servers: u32,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum CoordinatorEvent {
    /// An agent said hello and can be dialled at `address`. It replaces whoever had its name: of the older stream
    /// nothing may be told any more, neither a report nor its loss.
    Joined {
        /// Who.
        agent: AgentId,
        /// Its data port; empty for systems.
        address: String,
        /// What a shard holds.
        shard: Option<ShardState>,
    },
    /// An agent's control stream broke.
    Lost {
        /// Who.
        agent: AgentId,
    },
    /// An agent reports.
    Report {
        /// Who.
        agent: AgentId,
        /// What.
        report: AgentReport,
    },
    /// The user wants a checkpoint of the last committed step.
    CheckpointRequested,
    /// The user wants the run to end: the iteration in flight is abandoned, the last committed step is saved, in
    /// whatever phase. Needs the shards only; ends at once when one has joined that holds no parameters yet.
    StopRequested,
    /// The driver has made the directory for a checkpoint.
    Staged(SnapshotRequest),
    /// The driver has published a checkpoint.
    Published {
        /// Updates in it.
        step: u64,
    },
    /// The driver could not make the directory for a checkpoint, or not publish it.
    SaveFailed {
        /// Updates in it.
        step: u64,
        /// Why, in one sentence.
        reason: String,
        /// What kind of failure.
        cause: FailureCause,
    },
    /// After [`CoordinatorCommand::ReportSaveFailure`]: save the last committed step now.
    RetrySave,
    /// The time of a [`CoordinatorCommand::Backoff`] is over.
    BackoffElapsed {
        /// The epoch it was told for.
        epoch: Epoch,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// All steps done.
    Complete,
    /// The user stopped it.
    Stopped,
    /// It can't go on.
    Failed {
        /// One sentence.
        reason: String,
        /// Who is the cause, where it is an agent.
        agent: Option<AgentId>,
        /// What kind of failure.
        cause: FailureCause,
    },
}

/// A finished evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Updates applied.
    pub step: u64,
    /// Loss.
    pub loss: f64,
    /// Tokens that counted.
    pub tokens: u64,
    /// Tokens predicted right.
    pub correct: u64,
    /// Batches.
    pub batches: u64,
}

impl Evaluation {
    /// Share of the tokens predicted right.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.tokens.max(1) as f64
    }

    /// The exponential of the loss.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// What to do.
#[derive(Clone, Debug)]
pub enum CoordinatorCommand {
    /// Send an order to an agent.
    Send(AgentId, AgentCommand),
    /// Make the directory for a checkpoint of `step`; answer [`CoordinatorEvent::Staged`].
    StageCheckpoint {
        /// Updates in it.
        step: u64,
    },
    /// Publish a checkpoint whose chunks are all on disk; answer [`CoordinatorEvent::Published`].
    PublishCheckpoint {
        /// Updates in it.
        step: u64,
        /// Digests in plan order.
        digests: Vec<ChunkDigests>,
        /// The commit that made it, if any.
        record: Option<CommitRecord>,
        /// Epoch of its writers.
        epoch: Epoch,
    },
    /// A checkpoint could not be written. Training goes on; the driver decides when to try again by
    /// [`CoordinatorEvent::RetrySave`]. A run that has nothing else left to do waits for that, see
    /// [`Coordinator::is_awaiting_checkpoint`].
    ///
    /// [`Coordinator::is_awaiting_checkpoint`]: super::Coordinator::is_awaiting_checkpoint
    ReportSaveFailure {
        /// Updates in it.
        step: u64,
        /// Why, in one sentence.
        reason: String,
        /// The shard that could not write, where it was one.
        agent: Option<AgentId>,
        /// What kind of failure.
        cause: FailureCause,
    },
    /// A new epoch begins with so many systems.
    Epoch {
        /// The epoch.
        epoch: Epoch,
        /// Its placement.
        placement: Arc<Placement>,
    },
    /// A link of `epoch` failed: answer [`CoordinatorEvent::BackoffElapsed`] after so long. No new epoch begins before,
    /// unless one of the two ends comes or goes.
    Backoff {
        /// The epoch that failed.
        epoch: Epoch,
        /// How long.
        after: Duration,
        /// Who reports it.
        reporter: AgentId,
        /// Who is at the other end, as far as it is known.
        peer: Option<AgentId>,
        /// How often this link has failed in a row.
        failures: u32,
    },
    /// An agent can't go on, and the run does without it: end its stream.
    Disconnect {
        /// Who.
        agent: AgentId,
        /// Why, in one sentence.
        reason: String,
    },
    /// Iterations begin: every link of the epoch is up.
    ReportRunning,
    /// A step is committed on some shard. Told once, in order; a coordinator that takes over tells the newest again,
    /// since its forerunner may not have come to it.
    ReportStep(CommitRecord),
    /// The run goes on with this source, which is evaluated next.
    EvaluateNext(ParameterSource),
    /// An evaluation begins; perhaps again, after a change of membership.
    Evaluating,
    /// A batch of evaluation is done; the running loss so far.
    ReportEvalBatch(Evaluation),
    /// An evaluation is done.
    ReportEvaluation(Evaluation),
    /// The run is over; agents have been told.
    End(RunOutcome),
}
