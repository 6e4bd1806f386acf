//! The states of a job, as shown in the column STATE.

/// The activity of a job, or how it ended: the reason of its condition `Succeeded`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// Waits for systems; `status.queue` has the place and the reason.
    Queued,
    /// Has its systems; its agents are starting.
    Starting,
    /// Commits steps.
    Training,
    /// Evaluates a checkpoint, or the weights between two steps.
    Evaluating,
    /// Saves its state before it is suspended.
    Suspending,
    /// Suspended: its state is saved, and it holds no systems.
    Suspended,
    /// An agent failed; the job starts again from its last committed step.
    Restarting,
    /// Saves its state before it restarts with another number of systems, because its agents are of release 0.1.0.
    Resizing,
    /// Deleted; its agents end, and the object is removed once its history is archived.
    Deleting,
    /// Completed.
    Succeeded,
    /// Failed: invalid params, or data or a checkpoint that can't be used. Never retried.
    BadParams,
    /// Failed: a sample of the data can't be used. Never retried.
    BadData,
    /// Failed: a loss or a gradient is not finite. Never retried, because the same checkpoint leads to the same bits.
    NonFiniteLoss,
    /// Failed: a loss or a gradient norm is far above those before it. Never retried.
    LossSpike,
    /// Failed: a role's pod exceeded its memory limit.
    OutOfMemory,
    /// Failed: one of its deadlines passed.
    DeadlineExceeded,
    /// Failed: agents failed more often than the failure policy allows.
    RetriesExhausted,
}

impl JobState {
    /// All states.
    pub const ALL: [Self; 17] = [
        Self::Queued,
        Self::Starting,
        Self::Training,
        Self::Evaluating,
        Self::Suspending,
        Self::Suspended,
        Self::Restarting,
        Self::Resizing,
        Self::Deleting,
        Self::Succeeded,
        Self::BadParams,
        Self::BadData,
        Self::NonFiniteLoss,
        Self::LossSpike,
        Self::OutOfMemory,
        Self::DeadlineExceeded,
        Self::RetriesExhausted,
    ];

    /// Returns the value of `conditions[].reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::Starting => "Starting",
            Self::Training => "Training",
            Self::Evaluating => "Evaluating",
            Self::Suspending => "Suspending",
            Self::Suspended => "Suspended",
            Self::Restarting => "Restarting",
            Self::Resizing => "Resizing",
            Self::Deleting => "Deleting",
            Self::Succeeded => "Succeeded",
            Self::BadParams => "BadParams",
            Self::BadData => "BadData",
            Self::NonFiniteLoss => "NonFiniteLoss",
            Self::LossSpike => "LossSpike",
            Self::OutOfMemory => "OutOfMemory",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::RetriesExhausted => "RetriesExhausted",
        }
    }

    /// Returns the state of that name; `None` for a state of another version.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Returns whether a job in this state has begun to train or evaluate and still has its agents, so that there is
    /// state to save.
    pub const fn has_steps(self) -> bool {
        matches!(self, Self::Training | Self::Evaluating | Self::Suspending | Self::Resizing)
    }

    /// Returns whether the job has finished.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded) || self.is_failure()
    }

    /// Returns whether the job has failed.
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::BadParams
                | Self::BadData
                | Self::NonFiniteLoss
                | Self::LossSpike
                | Self::OutOfMemory
                | Self::DeadlineExceeded
                | Self::RetriesExhausted
        )
    }
}
