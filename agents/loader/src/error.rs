//! Why workers can't be started, and how they ended.

use std::sync::Arc;
use std::time::Duration;

use crate::message::WorkerExit;

/// Time for a process to start and connect.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// The processes in errors.
pub(crate) const HOST: &str = "the host of the data loader";
pub(crate) const WORKER: &str = "a worker of the data loader";

/// Why workers can't be started.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoaderError {
    /// A file operation failed.
    #[error("can't {action}: {cause}")]
    System {
        /// What failed, as in "can't open a socket".
        action: String,
        /// The error of the system.
        cause: Arc<std::io::Error>,
    },
    /// The host does not run, or a worker has not connected.
    #[error("{process} has not connected within {} s", CONNECT_TIMEOUT.as_secs())]
    NotConnected {
        /// The process.
        process: &'static str,
    },
    /// The host or a worker has ended before it connected.
    #[error("{process} ended with {}", exit_description(.exit))]
    Ended {
        /// The process.
        process: &'static str,
        /// How it ended.
        exit: WorkerExit,
    },
}

impl LoaderError {
    /// Returns a function that adds what failed to an error of the system.
    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |cause| Self::System { action, cause: Arc::new(cause) }
    }
}

/// Returns how a worker ended, with the last line that it printed.
pub(crate) fn exit_description(exit: &WorkerExit) -> String {
    let cause = match exit.status {
        status if status < 0 => format!("signal {}", -status),
        status => format!("exit code {status}"),
    };
    match exit.lines.iter().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{cause} after printing {line:?}"),
        None => cause,
    }
}

/// Starts a thread.
///
/// # Errors
/// The system has no more threads.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), LoaderError> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(LoaderError::system("start a thread"))
}
