//! Exit codes of a run's processes, on which scripts and other processes act.

use std::fmt;
use std::process::ExitCode;

use crate::OutcomeReason;

/// How a process of a run ended. The exit codes are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: finished.
    Success,
    /// 1: the run failed.
    Failed,
    /// 2: invalid input; nothing was started.
    BadInput,
    /// 3: a role ended because it lost a peer or its parent. Never the exit code of a whole run, because the cause is
    /// in another process.
    PeerLost,
    /// 130: interrupted; the last committed step is in a checkpoint.
    Interrupted,
}

impl Exit {
    /// Returns the exit code.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failed => 1,
            Exit::BadInput => 2,
            Exit::PeerLost => 3,
            Exit::Interrupted => 130,
        }
    }

    /// Returns the exit with this code; `None` for a code that no process of a run chooses itself, such as 101 of a
    /// panic.
    pub fn from_code(code: i32) -> Option<Self> {
        [Exit::Success, Exit::Failed, Exit::BadInput, Exit::PeerLost, Exit::Interrupted]
            .into_iter()
            .find(|exit| i32::from(exit.code()) == code)
    }
}

/// Returns how a whole run ends for this reason.
impl From<OutcomeReason> for Exit {
    fn from(reason: OutcomeReason) -> Self {
        reason.properties().exit
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code())
    }
}
