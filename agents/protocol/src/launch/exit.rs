//! How a process of a run ends, as a number that scripts and other processes act on.

use std::fmt;
use std::process::ExitCode;

use millrace_telemetry::journal::Reason;

/// The exit codes of every process of a run; stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done,
    /// 1: the run failed.
    Failed,
    /// 2: bad input; nothing was started.
    BadInput,
    /// 3: a role that ended because a peer or its parent was lost. Never what a whole run ends with: the cause is
    /// another process's.
    PeerLost,
    /// 130: interrupted; the last committed step is in a checkpoint.
    Interrupted,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::BadInput => 2,
            Exit::PeerLost => 3,
            Exit::Interrupted => 130,
        }
    }

    /// The exit with that number; `None` for a number no process of a run chooses itself, such as a panic's 101.
    pub fn from_code(code: i32) -> Option<Self> {
        [Exit::Done, Exit::Failed, Exit::BadInput, Exit::PeerLost, Exit::Interrupted]
            .into_iter()
            .find(|exit| i32::from(exit.code()) == code)
    }
}

/// How a whole run ends for that reason.
impl From<Reason> for Exit {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Succeeded => Self::Done,
            Reason::Interrupted => Self::Interrupted,
            Reason::BadParams | Reason::ModelDirInUse => Self::BadInput,
            Reason::Superseded | Reason::NonFiniteLoss | Reason::OutOfSpace | Reason::ShardLost | Reason::Failed => {
                Self::Failed
            }
        }
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
