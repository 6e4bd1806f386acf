//! Failures that end a process, and whether the process itself or a peer caused them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use millrace_emulator::compile::CompileError;
use millrace_engine::message;
use millrace_protocol::error_chain;
use millrace_telemetry::journal::OutcomeReason;

use crate::launch::Exit;

/// The origin of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// This process or its user; the run ends for this reason.
    Local(OutcomeReason),
    Peer,
    /// None: the process was asked to leave before it took part in the job.
    Shutdown,
}

/// A failure, described in one sentence.
#[derive(Clone, Debug)]
pub struct AgentError {
    /// The origin of the failure.
    pub cause: ErrorOrigin,
    /// The sentence, if it is not that of `source`.
    context: Option<String>,
    source: Arc<BoxError>,
    /// A remedy, if one is known.
    pub hint: Option<String>,
}

/// Any error. A sentence is an error without a source.
type BoxError = Box<dyn Error + Send + Sync>;

impl AgentError {
    fn new(cause: ErrorOrigin, error: impl Into<BoxError>) -> Self {
        Self { cause, context: None, source: Arc::new(error.into()), hint: None }
    }

    /// Returns the sentence with its causes, without the remedy.
    pub fn message(&self) -> String {
        match &self.context {
            Some(context) => format!("{context}: {}", error_chain(&**self.source.as_ref())),
            None => error_chain(&**self.source.as_ref()),
        }
    }

    /// Puts `context` and a colon before the sentence.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Creates a failure that ends the run for `reason`.
    pub fn with_reason(reason: OutcomeReason, error: impl Into<BoxError>) -> Self {
        Self::new(ErrorOrigin::Local(reason), error)
    }

    /// Creates a failure of this process, with [`OutcomeReason::Failed`].
    pub fn local(error: impl Into<BoxError>) -> Self {
        Self::with_reason(OutcomeReason::Failed, error)
    }

    /// Creates a failure that the user's input caused.
    pub fn bad_input(error: impl Into<BoxError>) -> Self {
        Self::with_reason(OutcomeReason::BadParams, error)
    }

    /// Creates a failure for the loss of a peer.
    pub fn peer(error: impl Into<BoxError>) -> Self {
        Self::new(ErrorOrigin::Peer, error)
    }

    /// Creates a failure of a process that was asked to leave and has nothing to finish.
    pub fn shutdown(error: impl Into<BoxError>) -> Self {
        Self::new(ErrorOrigin::Shutdown, error)
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
    pub fn failure_cause(&self) -> message::FailureCause {
        self.reason().into()
    }
}

impl From<CompileError> for AgentError {
    fn from(error: CompileError) -> Self {
        let hint = error.hint().map(str::to_owned);
        Self { hint, ..Self::bad_input(error) }
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Has no source: the sentence contains the messages of all causes.
impl Error for AgentError {}
