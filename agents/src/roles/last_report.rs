//! What a coordinator leaves behind for whoever was not there when it ended: its outcome, in a file.

use std::path::PathBuf;

use millrace_telemetry::journal::Outcome;

use crate::failure::Failure;

/// Where the last report goes, if anywhere.
#[derive(Clone, Debug, Default)]
pub struct LastReport(Option<PathBuf>);

impl LastReport {
    /// Into the file at `path`.
    pub const fn new(path: Option<PathBuf>) -> Self {
        Self(path)
    }

    /// Leaves `outcome` behind, in place of what the file holds: it may be one that somebody else has opened or
    /// mounted.
    pub fn write(&self, outcome: &Outcome) {
        let Some(path) = &self.0 else { return };
        let written = outcome.last_report().map_err(Into::into).and_then(|report| std::fs::write(path, report));
        if let Err(error) = written {
            tracing::error!("the last report could not be written to {}: {error}", path.display());
        }
    }
}

/// Of a run that ended before its job was under way.
impl From<&Failure> for Outcome {
    fn from(failure: &Failure) -> Self {
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
