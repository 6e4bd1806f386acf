//! What the coordinator hears and says.

use std::sync::Arc;
use std::time::Duration;

use millrace_emulator::placement::Placement;

use crate::message::{Cause, ChunkDigests, Order, Report, ShardState, Snapshot, Source};
use crate::types::{AgentId, CommitRecord, Epoch};

/// The agents a job wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Systems the user asked for.
    pub systems: u32,
    /// Fewest systems to run with.
    pub least_systems: u32,
    /// MemoryX shards.
    pub shards: u32,
    /// Most children of a SwarmX node.
    pub fan_out: u32,
    /// Activation servers.
    pub activation_servers: u32,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
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
        report: Report,
    },
    /// The user wants a checkpoint of the last committed step.
    CheckpointWanted,
    /// The user wants the run to end: the turn in flight is abandoned, the last committed step is saved, in whatever
    /// phase. Needs the shards only; ends at once when one has joined that holds no parameters yet.
    StopWanted,
    /// The driver has made the directory for a checkpoint.
    Staged(Snapshot),
    /// The driver has published a checkpoint.
    Published {
        /// Updates in it.
        step: u64,
    },
    /// The driver could not make the directory for a checkpoint, or not publish it.
    NotSaved {
        /// Updates in it.
        step: u64,
        /// Why, in one sentence.
        reason: String,
        /// What kind of failure.
        cause: Cause,
    },
    /// After [`Command::NotSaved`]: save the last committed step now.
    SaveAgain,
    /// The time of a [`Command::Pause`] is over.
    PauseOver {
        /// The epoch it was told for.
        epoch: Epoch,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
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
        cause: Cause,
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
pub enum Command {
    /// Send an order to an agent.
    Send(AgentId, Order),
    /// Make the directory for a checkpoint of `step`; answer [`Event::Staged`].
    Stage {
        /// Updates in it.
        step: u64,
    },
    /// Publish a checkpoint whose chunks are all on disk; answer [`Event::Published`].
    Publish {
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
    /// [`Event::SaveAgain`]. A run that has nothing else left to do waits for that, see [`Coordinator::awaits_save`].
    ///
    /// [`Coordinator::awaits_save`]: super::Coordinator::awaits_save
    NotSaved {
        /// Updates in it.
        step: u64,
        /// Why, in one sentence.
        reason: String,
        /// The shard that could not write, where it was one.
        agent: Option<AgentId>,
        /// What kind of failure.
        cause: Cause,
    },
    /// A new epoch begins with so many systems.
    Epoch {
        /// The epoch.
        epoch: Epoch,
        /// Its placement.
        placement: Arc<Placement>,
    },
    /// A link of `epoch` failed: answer [`Event::PauseOver`] after so long. No new epoch begins before, unless one of
    /// the two ends comes or goes.
    Pause {
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
    Dismiss {
        /// Who.
        agent: AgentId,
        /// Why, in one sentence.
        reason: String,
    },
    /// Turns begin: every link of the epoch is up.
    Running,
    /// A step is committed on some shard. Told once, in order; a coordinator that takes over tells the newest again,
    /// since its forerunner may not have come to it.
    Step(CommitRecord),
    /// The run goes on with this source, which is evaluated next.
    Next(Source),
    /// An evaluation begins; perhaps again, after a change of membership.
    Evaluating,
    /// A batch of evaluation is done; the running loss so far.
    EvalBatch(Evaluation),
    /// An evaluation is done.
    Evaluated(Evaluation),
    /// The run is over; agents have been told.
    End(Outcome),
}
