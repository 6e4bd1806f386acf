//! Control messages, exchanged directly between the coordinator and each agent, not through the data tree.

use std::collections::BTreeMap;
use std::ops::Range;

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::ChunkId;
pub use millrace_outcome::FailureCause;
use serde::{Deserialize, Serialize};

use crate::types::{AgentId, AgentWork, CommitRecord, ComputeWork, Epoch, Iteration, LeafResult, PreparedStep};

/// State of a shard, sent when it joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardState {
    /// Whether parameters are loaded.
    pub loaded: bool,
    /// Number of updates committed.
    pub committed: u64,
    /// The newest commit it recorded.
    pub record: Option<CommitRecord>,
    /// The step whose gradients are complete but not committed yet.
    pub prepared: Option<PreparedStep>,
}

impl ShardState {
    /// Returns whether parameters with exactly `step` updates are loaded.
    pub const fn is_at(&self, step: u64) -> bool {
        self.loaded && self.committed == step
    }

    /// Returns whether `record` is the next commit and its gradients are complete.
    pub fn can_commit(&self, record: &CommitRecord) -> bool {
        self.loaded && self.committed + 1 == record.step && self.prepared == Some(record.prepared_step())
    }
}

/// The source of a shard's parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ParameterSource {
    /// Initial values, a pure function of the job.
    Initial,
    /// A checkpoint directory.
    Checkpoint {
        /// Its path.
        path: String,
        /// Whether the optimizer's moments and step are restored; if not, they start at zero.
        optimizer: bool,
        /// The step to continue from.
        step: u64,
    },
    /// Another replica of the same shard, which has applied exactly `step` updates and gets no further one meanwhile.
    Replica {
        /// The replica.
        agent: AgentId,
        /// Address of its data port.
        address: String,
        /// Its number of updates.
        step: u64,
        /// The newest commit, if one was recorded since its parameters were loaded.
        record: Option<CommitRecord>,
    },
}

impl ParameterSource {
    /// Returns the number of updates in the parameters.
    pub const fn step(&self) -> u64 {
        match self {
            Self::Initial => 0,
            Self::Checkpoint { step, .. } | Self::Replica { step, .. } => *step,
        }
    }
}

/// A checkpoint to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// Number of updates in it.
    pub step: u64,
    /// Directory to write to; the coordinator publishes it.
    pub path: String,
}

/// A write that has not returned for long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalledWrite {
    /// The file, or the directory of a checkpoint.
    pub file: String,
    /// Seconds since it began.
    pub seconds: u64,
}

/// blake3 digests of a chunk: parameters first, then each moment.
pub type ChunkDigests = Vec<[u8; 32]>;

/// Commands from the coordinator to an agent.
#[allow(missing_docs, reason = "the variants describe their fields")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentCommand {
    /// Load the parameters (shards).
    Load(ParameterSource),
    /// Begin a new epoch and discard all iterations of older ones. Reply with [`AgentReport::Linked`] when every link
    /// is established.
    Configure(Box<EpochConfig>),
    /// Execute this iteration after the ones opened before (every role).
    Open { epoch: Epoch, iteration: Iteration },
    /// Record this commit and make it the pending update (shards). Idempotent.
    Commit { record: CommitRecord },
    /// Write your chunks as of `step` while continuing (shards). May be repeated after a loss of the control stream:
    /// the same snapshot is not begun again, and its result is reported on the new stream; another snapshot replaces
    /// it. The result of a snapshot that was not requested on the new stream is not reported there, because its
    /// directory may no longer exist.
    Snapshot(SnapshotRequest),
    /// Shut down gracefully.
    Finish,
    /// Sum the weights of losses over the samples of each of these leaves of a batch of the training, and report them
    /// (activation servers).
    WeighLosses { epoch: Epoch, batch: u64, leaves: Range<u32> },
    /// Multiply the losses that have a weight by these factors in an iteration, which is opened next (systems).
    ScaleLosses {
        epoch: Epoch,
        iteration: u64,
        /// One factor per loss.
        factors: Vec<f64>,
    },
}

/// Configuration of a new epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochConfig {
    /// The new epoch.
    pub epoch: Epoch,
    /// The assignment of work to agents.
    pub placement: Placement,
    /// Address of each agent's data port.
    pub addresses: BTreeMap<AgentId, String>,
}

/// Reports from an agent to the coordinator.
#[allow(missing_docs, reason = "the variants describe their fields")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentReport {
    /// Parameters are loaded (shards).
    Loaded {
        /// State after loading.
        state: ShardState,
    },
    /// The parameters of another replica could not be copied (shards).
    CopyFailed {
        /// The reason, in one sentence.
        reason: String,
    },
    /// Every link of this epoch is established.
    Linked { epoch: Epoch },
    /// Losses of some leaves of an iteration (systems).
    Leaves {
        epoch: Epoch,
        iteration: u64,
        /// One result per leaf.
        results: Vec<LeafResult>,
        /// What the system has computed so far.
        work: ComputeWork,
    },
    /// All gradients of `step` are complete (shards).
    Prepared {
        epoch: Epoch,
        step: u64,
        /// Squared norm of the gradient of each owned chunk.
        norms: Vec<(ChunkId, f64)>,
    },
    /// The commit of `step` is recorded (shards).
    Committed { step: u64 },
    /// The chunks of a checkpoint are on disk (shards).
    Written {
        snapshot: SnapshotRequest,
        /// Digests of each owned chunk.
        digests: Vec<(ChunkId, ChunkDigests)>,
    },
    /// The chunks of a checkpoint could not be written (shards).
    WriteFailed {
        snapshot: SnapshotRequest,
        /// The reason, in one sentence.
        reason: String,
        cause: FailureCause,
    },
    /// A write to the storage of model_dir has not returned for long, or the storage responds again (shards).
    StorageStalled { write: Option<StalledWrite> },
    /// What the agent has done so far (all but systems, whose leaves have it).
    Worked { work: AgentWork },
    /// A link to `peer` failed. The coordinator decides about the consequences.
    LinkLost {
        epoch: Epoch,
        /// The agent at the other end, if known.
        peer: Option<AgentId>,
    },
    /// The agent failed; it is the cause, not a consequence of another failure.
    Failed {
        /// The reason, in one sentence.
        reason: String,
        cause: FailureCause,
    },
    /// Weights of losses, after [`AgentCommand::WeighLosses`] (activation servers).
    LossWeights {
        epoch: Epoch,
        batch: u64,
        /// The first of consecutive leaves.
        first: u32,
        /// For each leaf, the sum of the weight of each loss.
        weights: Vec<Vec<f64>>,
    },
}
