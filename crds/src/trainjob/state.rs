//! The states of a job: what the STATE column shows.

/// What a job is doing, or why it ended: the reason of its condition `Succeeded`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Waits for systems; `status.queue` says at which place and why.
    Queued,
    /// Has its systems; its agents are starting.
    Starting,
    /// Commits steps.
    Training,
    /// Evaluates a checkpoint, or the weights between two steps.
    Evaluating,
    /// Saves its state, to pause.
    Suspending,
    /// Paused, state saved, no systems held.
    Suspended,
    /// An agent failed; the job starts again from its last committed step.
    Restarting,
    /// Saves its state, to go on with another number of systems.
    Resizing,
    /// Was deleted; its agents end, and it goes once its history is kept.
    Deleting,
    /// Did what it was asked to do.
    Succeeded,
    /// Failed: params that say nothing that can be run, or data or a checkpoint that can't be used. Never tried again.
    BadParams,
    /// Failed: a loss or a gradient is not finite. Never tried again: the same checkpoint comes to the same bits.
    NonFiniteLoss,
    /// Failed: a role's pod needed more memory than it may use.
    OutOfMemory,
    /// Failed: one of its deadlines passed.
    DeadlineExceeded,
    /// Failed: agents failed more often than the failure policy allows.
    RetriesExhausted,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 15] = [
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
        Self::NonFiniteLoss,
        Self::OutOfMemory,
        Self::DeadlineExceeded,
        Self::RetriesExhausted,
    ];

    /// The word in `conditions[].reason`.
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
            Self::NonFiniteLoss => "NonFiniteLoss",
            Self::OutOfMemory => "OutOfMemory",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::RetriesExhausted => "RetriesExhausted",
        }
    }

    /// The state of that name; `None` for one of another version.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether a job in this state has begun to train or evaluate and still has its agents: there is something to save.
    pub const fn has_steps(self) -> bool {
        matches!(self, Self::Training | Self::Evaluating | Self::Suspending | Self::Resizing)
    }

    /// Whether the job is over.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded) || self.is_failure()
    }

    /// Whether the job is over and did not do what it was asked to do.
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::BadParams | Self::NonFiniteLoss | Self::OutOfMemory | Self::DeadlineExceeded | Self::RetriesExhausted
        )
    }
}
