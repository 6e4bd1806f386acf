//! Bugs that a simulation plants into its agents. Each breaks an invariant of ARCHITECTURE.md, and must be found.

/// A bug of all agents of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// Systems send the gradients of a leaf twice: a leaf is never counted twice.
    DoubledGradient,
    /// SwarmX nodes round a sum: gradients are summed along the tree, with the same bits on any placement.
    RoundedSum,
    /// A shard does not apply a commit that it has recorded: what one shard has committed, all commit.
    SkippedCommit,
    /// A shard joins without the commit that it recorded last: a recorded commit decides the step.
    ForgottenCommit,
    /// A shard writes a chunk as it is now: a snapshot holds every chunk as of its step.
    NewerChunk,
    /// A shard accepts a frame of an older epoch: a message of an older epoch changes nothing.
    OldFrame,
    /// A shard keeps its parameters instead of loading others: all shards continue from the same checkpoint.
    IgnoredLoad,
    /// A replica keeps what it holds instead of copying another one: all replicas of a shard hold the same bits.
    SkippedCopy,
    /// A shard loads a checkpoint without verifying it: a damaged one is never used.
    UnverifiedLoad,
    /// A shard sends a frame without credit: a link never carries more than it has credits for.
    IgnoredCredit,
    /// The coordinator reports a step again: nothing is reported twice.
    RepeatedStep,
    /// A system reads a batch that was skipped: a skipped batch is used by no step, after any failure.
    UsedSkippedBatch,
    /// A system scales a loss by the factor of another step: a divisor is that of the batch.
    OldFactor,
}

impl PlantedBug {
    pub const ALL: [Self; 13] = [
        Self::DoubledGradient,
        Self::RoundedSum,
        Self::SkippedCommit,
        Self::ForgottenCommit,
        Self::NewerChunk,
        Self::OldFrame,
        Self::IgnoredLoad,
        Self::SkippedCopy,
        Self::UnverifiedLoad,
        Self::IgnoredCredit,
        Self::RepeatedStep,
        Self::UsedSkippedBatch,
        Self::OldFactor,
    ];
}
