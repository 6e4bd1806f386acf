//! How a run ended, for the user and for programs.

use millrace_engine::coordinator::RunOutcome;
use millrace_engine::types::AgentId;
use millrace_params::Mode;
use millrace_protocol::journal::USER_STOP_REASON;
use millrace_telemetry::journal::OutcomeReason;

use crate::error::AgentError;

#[derive(Clone, Debug)]
pub struct RunEnd {
    pub reason: OutcomeReason,
    /// The reason, in one sentence.
    pub message: String,
    /// The agent that caused the end, if any.
    pub agent: Option<AgentId>,
}

impl RunEnd {
    /// Converts the outcome of the coordinator's state machine. `stop_reason` is the reason in
    /// the first stop request, if there was one.
    pub fn of(outcome: RunOutcome, mode: Mode, stop_reason: Option<&str>) -> Self {
        match outcome {
            RunOutcome::Complete => {
                let activity = if mode.trains() { "Training" } else { "Evaluation" };
                let message = format!("{activity} completed successfully!");
                Self { reason: OutcomeReason::Succeeded, message, agent: None }
            }
            RunOutcome::Stopped => Self::stopped(stop_reason),
            RunOutcome::Failed { reason: message, agent, cause } => Self { reason: cause.into(), message, agent },
        }
    }

    /// Returns the end of a run that was stopped, for the reason in the first stop request, if there was one.
    pub fn stopped(reason: Option<&str>) -> Self {
        let message = match reason {
            None | Some("" | USER_STOP_REASON) => "Stopped by the user.".to_owned(),
            Some(reason) => format!("Stopped: {reason}."),
        };
        Self { reason: OutcomeReason::Interrupted, message, agent: None }
    }

    /// Returns the end of a run that failed in the coordinator.
    pub fn failed(failure: &AgentError) -> Self {
        Self { reason: failure.reason(), message: failure.to_string(), agent: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stop_of_the_user_is_attributed_to_the_user() {
        let message = |reason: Option<&str>| RunEnd::of(RunOutcome::Stopped, Mode::Train, reason).message;
        let requested = |reason: &str| message(Some(reason));
        assert_eq!(requested(USER_STOP_REASON), "Stopped by the user.");
        assert_eq!(message(None), "Stopped by the user.");
        assert_eq!(requested("cs2-1 was killed (signal 9)"), "Stopped: cs2-1 was killed (signal 9).");
    }
}
