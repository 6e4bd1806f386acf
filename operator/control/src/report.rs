//! Converts the outcome of an attempt, as its coordinator wrote it, to the report that decisions are made from.

use k8s_openapi::jiff::Timestamp;
use millrace_lifecycle::{CoordinatorReport, ReportedOutcome};
use millrace_telemetry::journal::AttemptOutcome;

pub(crate) fn reported_outcome(outcome: AttemptOutcome) -> ReportedOutcome {
    ReportedOutcome {
        exit_code: outcome.exit_code,
        reason: outcome.reason.to_string(),
        message: outcome.message,
        failed_agent: outcome.failed_agent,
    }
}

/// Returns the report of a coordinator that ended with `outcome`, at this time if it is known. It is for a loop that
/// did not receive the outcome from the coordinator's stream.
pub fn report_from_outcome(attempt: u32, outcome: AttemptOutcome, ended: Option<Timestamp>) -> CoordinatorReport {
    CoordinatorReport {
        attempt,
        checkpoint: outcome.digest.clone().map(|digest| (outcome.step, digest)),
        saved: outcome.digest.is_some(),
        outcome: Some(reported_outcome(outcome)),
        advanced: ended,
        ..CoordinatorReport::default()
    }
}
