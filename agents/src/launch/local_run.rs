//! A job that runs on this machine, and why it could not be started.

use std::path::PathBuf;

use super::LaunchDocument;

/// A job and the settings to run it on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalRun {
    pub launch: LaunchDocument,
    /// Compute threads of each system; `None` for the number of the appliance.
    pub threads: Option<usize>,
    /// First of the ports to listen on, three per process in the order in which they are started; `None` for free
    /// ports.
    pub base_port: Option<u16>,
    /// The file to which the coordinator writes its outcome when it ends, as a line of JSON; `None` to write none.
    pub last_report: Option<PathBuf>,
    /// The interpreter of Python datasets; `None` for the one that packed them.
    pub python: Option<PathBuf>,
    /// The directories to which the processes restrict their access to users' files. They must exist; if empty, access
    /// is not restricted.
    pub roots: Vec<PathBuf>,
}

impl LocalRun {
    /// Creates a run with the threads of the appliance, on free ports.
    pub const fn new(launch: LaunchDocument) -> Self {
        Self { launch, threads: None, base_port: None, last_report: None, python: None, roots: Vec::new() }
    }
}

/// Why a run could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The fixed ports exceed the highest port.
    #[error("too few ports from {base} on: three ports for each process would end above 65535")]
    Ports { base: u16 },
    /// A system would have more threads than a role accepts.
    #[error("{threads} threads for each system are too many: at most 65535")]
    Threads { threads: usize },
    /// An operation of the operating system failed.
    #[error("can't {action}: {cause}")]
    System {
        /// What the launcher tried to do.
        action: String,
        /// The error of the system.
        cause: std::io::Error,
    },
}

impl LaunchError {
    pub(super) fn system(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |cause| Self::System { action, cause }
    }
}
