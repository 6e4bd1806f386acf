//! Failures that end a process, and whether the process itself or a peer caused them.

use std::fmt;

use millrace_emulator::compile::CompileError;
use millrace_engine::message;
use millrace_telemetry::journal::OutcomeReason;

use crate::launch::Exit;

/// The origin of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// This process or its user; the run ends for this reason.
    Local(OutcomeReason),
    /// A peer was lost.
    Peer,
    /// None: the process was asked to leave before it took part in the job.
    Shutdown,
}

/// A failure, described in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentError {
    /// The origin of the failure.
    pub cause: ErrorOrigin,
    pub message: String,
    /// A remedy, if one is known.
    pub hint: Option<String>,
}

impl AgentError {
    fn new(cause: ErrorOrigin, sentence: impl fmt::Display) -> Self {
        Self { cause, message: sentence.to_string(), hint: None }
    }

    /// Creates a failure that ends the run for `reason`.
    pub fn with_reason(reason: OutcomeReason, sentence: impl fmt::Display) -> Self {
        Self::new(ErrorOrigin::Local(reason), sentence)
    }

    /// Creates a failure of this process, with [`OutcomeReason::Failed`].
    pub fn local(sentence: impl fmt::Display) -> Self {
        Self::with_reason(OutcomeReason::Failed, sentence)
    }

    /// Creates a failure that the user's input caused.
    pub fn bad_input(sentence: impl fmt::Display) -> Self {
        Self::with_reason(OutcomeReason::BadParams, sentence)
    }

    /// Creates a failure for the loss of a peer.
    pub fn peer(sentence: impl fmt::Display) -> Self {
        Self::new(ErrorOrigin::Peer, sentence)
    }

    /// Creates a failure of a process that was asked to leave and has nothing to finish.
    pub fn shutdown(sentence: impl fmt::Display) -> Self {
        Self::new(ErrorOrigin::Shutdown, sentence)
    }

    /// Adds a remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Returns the exit of the process.
    pub fn exit(&self) -> Exit {
        match self.cause {
            ErrorOrigin::Local(reason) => reason.into(),
            ErrorOrigin::Peer => Exit::PeerLost,
            ErrorOrigin::Shutdown => Exit::Success,
        }
    }

    /// Returns the reason of a run that ends with this failure.
    pub const fn reason(&self) -> OutcomeReason {
        match self.cause {
            ErrorOrigin::Local(reason) => reason,
            ErrorOrigin::Peer => OutcomeReason::Failed,
            ErrorOrigin::Shutdown => OutcomeReason::Interrupted,
        }
    }

    /// Returns the report to the coordinator.
    pub fn report(&self) -> message::AgentReport {
        message::AgentReport::Failed { reason: self.to_string(), cause: self.failure_cause() }
    }

    /// Returns the cause that the coordinator receives.
    pub const fn failure_cause(&self) -> message::FailureCause {
        match self.reason() {
            OutcomeReason::BadParams => message::FailureCause::BadInput,
            OutcomeReason::NonFiniteLoss => message::FailureCause::NotFinite,
            OutcomeReason::ShardLost => message::FailureCause::ShardLost,
            OutcomeReason::OutOfSpace => message::FailureCause::NoSpace,
            OutcomeReason::Succeeded
            | OutcomeReason::Interrupted
            | OutcomeReason::ModelDirInUse
            | OutcomeReason::Superseded
            | OutcomeReason::Failed => message::FailureCause::Other,
        }
    }
}

impl From<CompileError> for AgentError {
    fn from(error: CompileError) -> Self {
        let failure = Self::bad_input(&error);
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for AgentError {}
