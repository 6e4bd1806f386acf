//! Why a process ends early, and how it tells its own failure from one caused by a peer.

use std::fmt;

use crate::launch::Exit;

/// Whose failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This process.
    Own,
    /// The user's input.
    BadInput,
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
    pub reason: String,
    /// What may help.
    pub hint: Option<String>,
}

impl Failure {
    /// This process can't go on.
    pub fn own(reason: impl fmt::Display) -> Self {
        Self { cause: Cause::Own, reason: reason.to_string(), hint: None }
    }

    /// The user's input is to blame.
    pub fn bad_input(reason: impl fmt::Display) -> Self {
        Self { cause: Cause::BadInput, reason: reason.to_string(), hint: None }
    }

    /// A peer is gone.
    pub fn peer(reason: impl fmt::Display) -> Self {
        Self { cause: Cause::Peer, reason: reason.to_string(), hint: None }
    }

    /// The process was asked to leave, and has nothing to finish.
    pub fn asked(reason: impl fmt::Display) -> Self {
        Self { cause: Cause::Asked, reason: reason.to_string(), hint: None }
    }

    /// Adds what may help.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// How the process ends for it.
    pub const fn exit(&self) -> Exit {
        match self.cause {
            Cause::Own => Exit::Failed,
            Cause::BadInput => Exit::BadInput,
            Cause::Peer => Exit::PeerLost,
            Cause::Asked => Exit::Done,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}
