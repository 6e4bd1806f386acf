//! Identifiers and values that all roles share.

use std::fmt;

pub use millrace_params::Role;
use serde::{Deserialize, Serialize};

/// Version of the membership: (attempt, number), ordered. Increased by every change of membership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// The job's attempt.
    pub attempt: u32,
    /// Number of changes of membership within the attempt.
    pub number: u32,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.attempt, self.number)
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
    /// Creates the agent `role-index`.
    pub const fn new(role: Role, index: u32) -> Self {
        Self { role, index }
    }

    /// Parses the name of an agent.
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

/// The purpose of one stream of the weights through the systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IterationKind {
    /// Computes update number `step`: forward and backward pass.
    Train {
        /// Counts from 1.
        step: u64,
        /// Number of its batch in the training data, from 0: one less than `step`, plus the batches that were skipped.
        batch: u64,
    },
    /// Evaluates one batch with the weights after `step` updates: forward pass only.
    Eval {
        /// Updates applied.
        step: u64,
        /// Batch number within this evaluation.
        batch: u64,
    },
}

impl IterationKind {
    /// Returns whether gradients are computed.
    pub const fn is_training(self) -> bool {
        matches!(self, IterationKind::Train { .. })
    }

    /// Returns the step that is computed, or the number of updates in the evaluated weights.
    pub const fn step(self) -> u64 {
        match self {
            IterationKind::Train { step, .. } | IterationKind::Eval { step, .. } => step,
        }
    }

    /// Returns the number of updates that the streamed weights must have.
    pub const fn required_step(self) -> u64 {
        match self {
            IterationKind::Train { step, .. } => step - 1,
            IterationKind::Eval { step, .. } => step,
        }
    }
}

/// One training step or evaluation batch, opened by the coordinator. Iterations of an epoch are numbered without gaps,
/// so that both ends of a link count the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Iteration {
    /// Number within the epoch, from 0.
    pub number: u64,
    /// What to compute.
    pub task: IterationKind,
}

/// The result of a system for one leaf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeafResult {
    /// The leaf.
    pub leaf: u32,
    /// Sum of the token losses.
    pub loss: f64,
    /// Number of tokens with a label.
    pub tokens: u64,
    /// Number of tokens predicted correctly; only in evaluation.
    pub correct: u64,
    /// Sums of the losses beside the main one, which `loss` contains.
    pub other: OtherLosses,
    /// Sums of the metrics of the model's graph.
    pub metrics: Vec<f64>,
    /// The first layer with a non-finite output, if the loss is not finite.
    pub bad_layer: Option<u32>,
}

/// What a system has computed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComputeWork {
    /// Seconds of computing, without waiting.
    pub seconds: f64,
    /// Floating-point operations, in the current epoch.
    pub flops: u64,
}

/// What an agent has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentWork {
    /// The amount of work: floating-point operations of a system, elements of a shard or a SwarmX node, samples of an
    /// activation server.
    pub units: u64,
    /// Seconds of working, without waiting for others.
    pub seconds: f64,
    /// Seconds for which delays were measured; 0 for systems.
    pub observed: f64,
    /// Those of them in which the process was kept from running.
    pub delayed: f64,
}

impl From<ComputeWork> for AgentWork {
    fn from(ComputeWork { seconds, flops }: ComputeWork) -> Self {
        Self { units: flops, seconds, ..Self::default() }
    }
}

/// Sums of the losses beside the main one, such as that of the next sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OtherLosses {
    /// Sum of the losses, each times its factor.
    pub loss: f64,
    /// Number of labels.
    pub labels: u64,
    /// Number of labels predicted correctly.
    pub correct: u64,
}

impl std::ops::AddAssign for OtherLosses {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.labels += other.labels;
        self.correct += other.correct;
    }
}

/// Adds sums of metrics to others. The first sums are added to none.
pub fn add_metrics(all: &mut Vec<f64>, sums: &[f64]) {
    if all.len() < sums.len() {
        all.resize(sums.len(), 0.0);
    }
    all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
}

/// A commit, recorded by every shard.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// The step: number of updates after it is applied.
    pub step: u64,
    /// Factor on the summed gradient: loss scaling and clipping combined.
    pub scale: f32,
    /// Learning rate.
    pub learning_rate: f32,
    /// The step's loss.
    pub loss: f32,
    /// Global norm of the scaled gradient, before clipping.
    pub norm: f32,
    /// Number of tokens of the step.
    pub tokens: u64,
    /// Skipped batches and means up to this step.
    pub history: TrainingHistory,
}

impl CommitRecord {
    /// Returns the step and the batch whose gradients it decides about.
    pub const fn prepared_step(&self) -> PreparedStep {
        PreparedStep { step: self.step, batch: self.step.saturating_sub(1) + self.history.skipped_batches }
    }
}

/// A step whose gradients a shard has gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedStep {
    /// Counts from 1.
    pub step: u64,
    /// Number of its batch in the training data, from 0. A step that is repeated with another batch has other
    /// gradients.
    pub batch: u64,
}

/// Number of skipped batches, and means of loss and gradient norm, over the steps up to a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingHistory {
    /// Number of batches that were skipped.
    pub skipped_batches: u64,
    /// Number of steps that the means are over, at most the window of the policy; 0 without a policy.
    pub steps: u32,
    /// Mean of the losses.
    pub mean_loss: f32,
    /// Mean of the gradient norms before clipping.
    pub mean_norm: f32,
}
