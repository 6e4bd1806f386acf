//! How a run ends: the reasons, and everything that follows from a reason, in one table.
//!
//! ```text
//!  agent fails ── FailureCause ──► coordinator ── OutcomeReason ──► journal, status, condition of the job
//!                                                      │
//!                                                      ├─ Exit ──► exit code of the process
//!                                                      └─ Remedy ──► another attempt, or the final state of the job
//! ```
//!
//! * [`OutcomeReason::properties`] is the table: a new reason does not compile without a row.
//! * Names and exit codes are stable: the journal, the status of jobs, and scripts contain them.
//! * `docs/reference/journal.md` has the same table for users; `agents/tests/documents.rs` compares both.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod exit;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::exit::Exit;

/// The reason why an attempt ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutcomeReason {
    /// The job has finished.
    Succeeded,
    /// The run was interrupted; the committed steps are saved.
    Interrupted,
    /// The params, the launch document, the data or the initial checkpoint can't be used, or the job does not fit.
    BadParams,
    /// A sample of the data can't be used. A run that reads the sample again ends the same way.
    BadData,
    /// Another run is writing into model_dir.
    ModelDirInUse,
    /// A later attempt of the job has taken over model_dir.
    Superseded,
    /// A loss or a gradient is not finite. A run from the same checkpoint ends the same way.
    NonFiniteLoss,
    /// A loss or a gradient norm is far above those before it. A run from the same checkpoint ends the same way.
    LossSpike,
    /// The disk of model_dir, or the quota on it, is full.
    OutOfSpace,
    /// A MemoryX shard was lost, and with it the parameters since the last checkpoint.
    ShardLost,
    /// Any other reason, and reasons that later versions add.
    #[default]
    Failed,
}

/// What an agent reports to the coordinator when it fails. The order of the variants is part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCause {
    /// The user's input.
    BadInput,
    /// A loss or a gradient that is not finite.
    NotFinite,
    /// A shard has lost its parameters.
    ShardLost,
    /// A full disk.
    NoSpace,
    /// Anything else.
    Other,
    /// A sample of the user's data.
    BadData,
    /// A loss or a gradient norm that is far above those before it.
    LossSpike,
}

/// Who or what can fix the cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing has to be fixed.
    Nothing,
    /// Another attempt, which may succeed without a change.
    Retry,
    /// An administrator; until then, another attempt may fail in the same way.
    Administrator,
    /// The user who submitted the job: every attempt ends in the same way, so the job ends in the state of this name.
    User,
}

impl Remedy {
    /// Returns the words for users.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing to fix",
            Self::Retry => "another attempt",
            Self::Administrator => "an administrator",
            Self::User => "the user",
        }
    }
}

/// What follows from a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeProperties {
    /// Name in the journal and in the status of a job, and the reason of the condition of a job that ends with it.
    pub name: &'static str,
    /// What an agent that fails for this reason reports to the coordinator.
    pub cause: FailureCause,
    /// Who or what can fix it.
    pub remedy: Remedy,
    /// How the process of the run ends.
    pub exit: Exit,
    /// Status with which the REST server rejects a request for the same reason, before a job exists.
    pub http_status: Option<u16>,
}

const fn row(
    name: &'static str,
    cause: FailureCause,
    remedy: Remedy,
    exit: Exit,
    http_status: Option<u16>,
) -> OutcomeProperties {
    OutcomeProperties { name, cause, remedy, exit, http_status }
}

impl OutcomeReason {
    /// All reasons.
    pub const ALL: [Self; 11] = [
        Self::Succeeded,
        Self::Interrupted,
        Self::BadParams,
        Self::BadData,
        Self::ModelDirInUse,
        Self::Superseded,
        Self::NonFiniteLoss,
        Self::LossSpike,
        Self::OutOfSpace,
        Self::ShardLost,
        Self::Failed,
    ];

    /// Returns what follows from the reason.
    pub const fn properties(self) -> OutcomeProperties {
        match self {
            Self::Succeeded => row("Succeeded", FailureCause::Other, Remedy::Nothing, Exit::Success, None),
            Self::Interrupted => row("Interrupted", FailureCause::Other, Remedy::Nothing, Exit::Interrupted, None),
            Self::BadParams => row("BadParams", FailureCause::BadInput, Remedy::User, Exit::BadInput, Some(422)),
            Self::BadData => row("BadData", FailureCause::BadData, Remedy::User, Exit::Failed, None),
            Self::ModelDirInUse => row("ModelDirInUse", FailureCause::Other, Remedy::Retry, Exit::BadInput, None),
            Self::Superseded => row("Superseded", FailureCause::Other, Remedy::Nothing, Exit::Failed, None),
            Self::NonFiniteLoss => row("NonFiniteLoss", FailureCause::NotFinite, Remedy::User, Exit::Failed, None),
            Self::LossSpike => row("LossSpike", FailureCause::LossSpike, Remedy::User, Exit::Failed, None),
            Self::OutOfSpace => row("OutOfSpace", FailureCause::NoSpace, Remedy::Administrator, Exit::Failed, None),
            Self::ShardLost => row("ShardLost", FailureCause::ShardLost, Remedy::Retry, Exit::Failed, None),
            Self::Failed => row("Failed", FailureCause::Other, Remedy::Retry, Exit::Failed, None),
        }
    }

    /// Returns the name of the reason.
    pub const fn as_str(self) -> &'static str {
        self.properties().name
    }

    /// Returns the reason with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

/// Returns what an agent that fails for this reason reports.
impl From<OutcomeReason> for FailureCause {
    fn from(reason: OutcomeReason) -> Self {
        reason.properties().cause
    }
}

/// Returns the reason of a run that ends because an agent failed for `cause`.
impl From<FailureCause> for OutcomeReason {
    fn from(cause: FailureCause) -> Self {
        if cause == FailureCause::Other {
            return Self::Failed;
        }
        Self::ALL.into_iter().find(|reason| reason.properties().cause == cause).unwrap_or_default()
    }
}

impl fmt::Display for OutcomeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for OutcomeReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Reads an unknown name as [`OutcomeReason::Failed`].
impl<'de> Deserialize<'de> for OutcomeReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Ok(Self::from_name(&name).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAUSES: [FailureCause; 7] = [
        FailureCause::BadInput,
        FailureCause::NotFinite,
        FailureCause::ShardLost,
        FailureCause::NoSpace,
        FailureCause::Other,
        FailureCause::BadData,
        FailureCause::LossSpike,
    ];

    #[test]
    fn every_cause_belongs_to_one_reason() {
        for cause in CAUSES {
            assert_eq!(FailureCause::from(OutcomeReason::from(cause)), cause);
            let reasons = OutcomeReason::ALL.into_iter().filter(|reason| reason.properties().cause == cause).count();
            assert!(reasons == 1 || cause == FailureCause::Other, "{cause:?} has {reasons} reasons");
        }
    }

    #[test]
    fn names_are_unique_words_and_unknown_ones_are_failures() {
        for (index, reason) in OutcomeReason::ALL.into_iter().enumerate() {
            assert!(reason.as_str().bytes().all(|letter| letter.is_ascii_alphabetic()), "{reason}");
            assert_eq!(OutcomeReason::ALL.iter().position(|known| known.as_str() == reason.as_str()), Some(index));
            let text = serde_json::to_string(&reason).unwrap();
            assert_eq!(serde_json::from_str::<OutcomeReason>(&text).unwrap(), reason);
        }
        assert_eq!(serde_json::from_str::<OutcomeReason>("\"Evaporated\"").unwrap(), OutcomeReason::Failed);
    }

    #[test]
    fn exit_codes_say_whether_something_failed() {
        for reason in OutcomeReason::ALL {
            let OutcomeProperties { remedy, exit, .. } = reason.properties();
            assert_ne!(exit, Exit::PeerLost, "{reason}: a peer's loss never ends a whole run");
            assert_eq!(exit == Exit::Success, reason == OutcomeReason::Succeeded, "{reason}");
            assert_eq!(exit == Exit::Interrupted, reason == OutcomeReason::Interrupted, "{reason}");
            assert!(remedy == Remedy::Nothing || matches!(exit, Exit::Failed | Exit::BadInput), "{reason}");
            assert_eq!(Exit::from_code(exit.code().into()), Some(exit));
        }
    }
}
