//! The last report of a coordinator: its outcome in a file, for programs that did not follow the run.

use std::path::PathBuf;

use millrace_telemetry::journal::AttemptOutcome;

use crate::error::AgentError;

/// The file for the last report, if there is one.
#[derive(Clone, Debug, Default)]
pub struct TerminationReport(Option<PathBuf>);

impl TerminationReport {
    /// Creates a last report in the file at `path`; with `None`, nothing is written.
    pub const fn new(path: Option<PathBuf>) -> Self {
        Self(path)
    }

    /// Writes `outcome`, overwriting the content of the file. The file is not replaced by another one, because another
    /// process may have opened or mounted it. A failure is logged.
    pub fn write(&self, outcome: &AttemptOutcome) {
        let Some(path) = &self.0 else { return };
        let written =
            outcome.to_termination_report().map_err(Into::into).and_then(|report| std::fs::write(path, report));
        if let Err(error) = written {
            tracing::error!("the last report could not be written to {}: {error}", path.display());
        }
    }
}

/// Returns the outcome of a run that ended before its job started.
impl From<&AgentError> for AttemptOutcome {
    fn from(failure: &AgentError) -> Self {
        let reason = failure.reason();
        Self {
            exit_code: failure.exit().code(),
            reason,
            message: failure.to_string(),
            step: 0,
            digest: None,
            failed_agent: None,
        }
    }
}
