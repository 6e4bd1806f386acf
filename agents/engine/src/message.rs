//! Control messages: between the coordinator and each agent directly, never through the data tree.

use std::collections::BTreeMap;

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::ChunkId;
use serde::{Deserialize, Serialize};

use crate::types::{AgentId, CommitRecord, Epoch, Iteration, LeafResult};

/// What a shard holds, told on joining.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardState {
    /// Whether parameters are loaded at all.
    pub loaded: bool,
    /// Updates committed.
    pub committed: u64,
    /// The newest commit it recorded.
    pub record: Option<CommitRecord>,
    /// The step whose gradients it holds complete, not committed yet.
    pub prepared: Option<u64>,
}

/// Where a shard takes its parameters from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParameterSource {
    /// Initial values, a pure function of the job.
    Initial,
    /// A checkpoint directory.
    Checkpoint {
        /// Its path.
        path: String,
        /// Whether the optimizer's moments and step are restored; otherwise they start at zero.
        optimizer: bool,
        /// The step to continue from.
        step: u64,
    },
}

impl ParameterSource {
    /// Updates in the parameters it gives.
    pub const fn step(&self) -> u64 {
        match self {
            Self::Initial => 0,
            Self::Checkpoint { step, .. } => *step,
        }
    }
}

/// A checkpoint to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// Updates in it.
    pub step: u64,
    /// Directory to write into; published by the coordinator.
    pub path: String,
}

/// blake3 of a chunk: parameters first, then each moment.
pub type ChunkDigests = Vec<[u8; 32]>;

/// What kind of failure ends a run, for programs that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCause {
    /// The user's input.
    BadInput,
    /// A loss or a gradient that is not finite.
    NotFinite,
    /// A shard whose parameters are gone.
    ShardLost,
    /// A full disk.
    NoSpace,
    /// Anything else.
    Other,
}

/// From the coordinator to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentCommand {
    /// Fill the parameters (shards).
    Load(ParameterSource),
    /// Take your place in a new epoch; forget every iteration of older ones. Answer [`AgentReport::Linked`] when every
    /// link is up.
    Configure(Box<EpochConfig>),
    /// Do this iteration after those opened before (every role).
    Open {
        /// The epoch.
        epoch: Epoch,
        /// The iteration.
        iteration: Iteration,
    },
    /// Record this commit and make it the pending update (shards). Harmless when recorded already.
    Commit {
        /// The commit.
        record: CommitRecord,
    },
    /// Write your chunks as of `step`, while going on (shards). May be repeated when the control stream broke: the same
    /// one is not begun again but answered on the new stream, another one replaces it. A checkpoint that the new stream
    /// has not ordered is not spoken of there: its directory may be gone.
    Snapshot(SnapshotRequest),
    /// End gracefully.
    Finish,
}

/// A new epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochConfig {
    /// Its number.
    pub epoch: Epoch,
    /// Who does what.
    pub placement: Placement,
    /// Where to dial each agent's data port.
    pub addresses: BTreeMap<AgentId, String>,
}

/// From an agent to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AgentReport {
    /// Parameters are there (shards).
    Loaded {
        /// The state after loading.
        state: ShardState,
    },
    /// Every link of this epoch is up.
    Linked {
        /// The epoch.
        epoch: Epoch,
    },
    /// Losses of some leaves of an iteration (systems).
    Leaves {
        /// The epoch.
        epoch: Epoch,
        /// The iteration.
        iteration: u64,
        /// Each leaf once.
        results: Vec<LeafResult>,
    },
    /// Every gradient of `step` is held (shards).
    Prepared {
        /// The epoch.
        epoch: Epoch,
        /// The step.
        step: u64,
        /// Squared norm of each own chunk's gradient.
        norms: Vec<(ChunkId, f64)>,
    },
    /// The commit of `step` is recorded (shards).
    Committed {
        /// The step.
        step: u64,
    },
    /// The chunks of a checkpoint are on disk (shards).
    Written {
        /// As it was ordered.
        snapshot: SnapshotRequest,
        /// Digests of each own chunk.
        digests: Vec<(ChunkId, ChunkDigests)>,
    },
    /// The chunks of a checkpoint could not be written (shards).
    WriteFailed {
        /// As it was ordered.
        snapshot: SnapshotRequest,
        /// Why, in one sentence.
        reason: String,
        /// What kind of failure.
        cause: FailureCause,
    },
    /// A link to `peer` broke. The coordinator decides what it means.
    LinkLost {
        /// The epoch.
        epoch: Epoch,
        /// Who was at the other end, as far as it is known.
        peer: Option<AgentId>,
    },
    /// The agent can't go on; it is the cause, not a victim.
    Failed {
        /// Why, in one sentence.
        reason: String,
        /// What kind of failure.
        cause: FailureCause,
    },
}
