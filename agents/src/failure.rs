//! Why a process ends early, and how it tells its own failure from one caused by a peer.

use std::fmt;

use millrace_emulator::compile::CompileError;
use millrace_engine::message;
use millrace_telemetry::journal::Reason;

use crate::launch::Exit;

/// Whose failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This process's, or its user's: what the run ends for.
    Own(Reason),
    /// A peer is gone.
    Peer,
    /// Nobody's: the process was asked to leave before it had a part in anything.
    Asked,
}

/// A failure in one readable sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whose it is.
    pub cause: Cause,
    /// The sentence.
    pub sentence: String,
    /// What may help.
    pub hint: Option<String>,
}

impl Failure {
    fn new(cause: Cause, sentence: impl fmt::Display) -> Self {
        Self { cause, sentence: sentence.to_string(), hint: None }
    }

    /// The run ends for `reason`.
    pub fn of(reason: Reason, sentence: impl fmt::Display) -> Self {
        Self::new(Cause::Own(reason), sentence)
    }

    /// This process can't go on.
    pub fn own(sentence: impl fmt::Display) -> Self {
        Self::of(Reason::Failed, sentence)
    }

    /// The user's input is to blame.
    pub fn bad_input(sentence: impl fmt::Display) -> Self {
        Self::of(Reason::BadParams, sentence)
    }

    /// A peer is gone.
    pub fn peer(sentence: impl fmt::Display) -> Self {
        Self::new(Cause::Peer, sentence)
    }

    /// The process was asked to leave, and has nothing to finish.
    pub fn asked(sentence: impl fmt::Display) -> Self {
        Self::new(Cause::Asked, sentence)
    }

    /// Adds what may help.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// How the process ends for it.
    pub fn exit(&self) -> Exit {
        match self.cause {
            Cause::Own(reason) => reason.into(),
            Cause::Peer => Exit::PeerLost,
            Cause::Asked => Exit::Done,
        }
    }

    /// What a run ends for that ends with it.
    pub const fn reason(&self) -> Reason {
        match self.cause {
            Cause::Own(reason) => reason,
            Cause::Peer => Reason::Failed,
            Cause::Asked => Reason::Interrupted,
        }
    }

    /// The failure as an agent reports it to its coordinator.
    pub fn report(&self) -> message::AgentReport {
        message::AgentReport::Failed { reason: self.to_string(), cause: self.kind() }
    }

    /// What kind of failure it is to the coordinator that hears of it.
    pub const fn kind(&self) -> message::FailureCause {
        match self.reason() {
            Reason::BadParams => message::FailureCause::BadInput,
            Reason::NonFiniteLoss => message::FailureCause::NotFinite,
            Reason::ShardLost => message::FailureCause::ShardLost,
            Reason::OutOfSpace => message::FailureCause::NoSpace,
            Reason::Succeeded | Reason::Interrupted | Reason::ModelDirInUse | Reason::Superseded | Reason::Failed => {
                message::FailureCause::Other
            }
        }
    }
}

impl From<CompileError> for Failure {
    fn from(error: CompileError) -> Self {
        let failure = Self::bad_input(&error);
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sentence)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}
