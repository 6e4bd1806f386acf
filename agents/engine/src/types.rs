//! Names and numbers every role shares.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Generation of a membership: (attempt, number), ordered. Raised at every change of membership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// The job's attempt.
    pub attempt: u32,
    /// Counts changes of membership within the attempt.
    pub number: u32,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.attempt, self.number)
    }
}

/// The five kinds of agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Directs the job.
    Coordinator,
    /// Holds parameters and optimizer state.
    MemoryX,
    /// Broadcasts weights, sums gradients.
    SwarmX,
    /// Supplies samples.
    Activation,
    /// A system.
    Cs2,
}

impl Role {
    /// Every role, in the order in which a job starts them.
    pub const ALL: [Role; 5] = [Role::Coordinator, Role::MemoryX, Role::SwarmX, Role::Activation, Role::Cs2];

    /// The name used in agent names, flags and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Coordinator => "coordinator",
            Role::MemoryX => "memoryx",
            Role::SwarmX => "swarmx",
            Role::Activation => "activation",
            Role::Cs2 => "cs2",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// One running instance of a role, such as `memoryx-0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AgentId {
    /// Its role.
    pub role: Role,
    /// Its number within the role.
    pub index: u32,
}

impl AgentId {
    /// `role-index`.
    pub const fn new(role: Role, index: u32) -> Self {
        Self { role, index }
    }

    /// The agent of that name.
    pub fn parse(name: &str) -> Option<Self> {
        let (role, index) = name.rsplit_once('-')?;
        Some(Self::new(Role::from_name(role)?, index.parse().ok()?))
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role.as_str(), self.index)
    }
}

/// What one trip of the weights through the systems is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IterationKind {
    /// The update that makes `step` updates in all: forward and backward.
    Train {
        /// Counts from 1.
        step: u64,
    },
    /// One batch of evaluation with the weights after `step` updates: forward only.
    Eval {
        /// Updates applied.
        step: u64,
        /// Batch number within this evaluation.
        batch: u64,
    },
}

impl IterationKind {
    /// Whether gradients are made.
    pub const fn is_training(self) -> bool {
        matches!(self, IterationKind::Train { .. })
    }

    /// The number of updates the streamed weights must have.
    pub const fn required_step(self) -> u64 {
        match self {
            IterationKind::Train { step } => step - 1,
            IterationKind::Eval { step, .. } => step,
        }
    }
}

/// A task the coordinator has opened. Iterations of an epoch are numbered without gaps, so that both ends of a link
/// count the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Iteration {
    /// Number within the epoch, from 0.
    pub number: u64,
    /// What is to be done.
    pub task: IterationKind,
}

/// What a system found out about one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeafResult {
    /// The leaf.
    pub leaf: u32,
    /// Sum of the token losses.
    pub loss: f64,
    /// Tokens that counted.
    pub tokens: u64,
    /// Tokens whose label was the most likely one; counted in evaluation only.
    pub correct: u64,
    /// Where the loss is not finite: the first layer with a non-finite output.
    pub bad_layer: Option<u32>,
}

/// The coordinator's commit, recorded by every shard.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// The step: number of updates once it is applied.
    pub step: u64,
    /// Factor on the summed gradient: loss scaling and clipping together.
    pub scale: f32,
    /// Learning rate.
    pub learning_rate: f32,
    /// The step's loss.
    pub loss: f32,
    /// Global norm of the scaled gradient, before clipping.
    pub norm: f32,
    /// Tokens of the step.
    pub tokens: u64,
}
