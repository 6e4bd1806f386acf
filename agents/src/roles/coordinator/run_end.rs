//! How a run ended, for the user and for programs.

use millrace_engine::coordinator::RunOutcome;
use millrace_engine::types::AgentId;
use millrace_params::Mode;
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
    /// Converts the outcome of the coordinator's state machine. `leaving_shard` is the shard that was requested to
    /// leave, if any.
    pub fn of(outcome: RunOutcome, mode: Mode, leaving_shard: Option<AgentId>) -> Self {
        match outcome {
            RunOutcome::Complete => {
                let activity = if mode.trains() { "Training" } else { "Evaluation" };
                let message = format!("{activity} completed successfully!");
                Self { reason: OutcomeReason::Succeeded, message, agent: None }
            }
            RunOutcome::Stopped => Self::stopped(leaving_shard),
            RunOutcome::Failed { reason: message, agent, cause } => Self { reason: cause.into(), message, agent },
        }
    }

    /// Returns the end of a run that the user stopped, or that `leaving_shard` left: a shard, without which the run
    /// can't continue.
    pub fn stopped(leaving_shard: Option<AgentId>) -> Self {
        let message = match leaving_shard {
            Some(shard) => format!("Stopped: {shard} is shutting down, and a run needs all its shards."),
            None => "Stopped by the user.".to_owned(),
        };
        Self { reason: OutcomeReason::Interrupted, message, agent: leaving_shard }
    }

    /// Returns the end of a run that failed in the coordinator.
    pub fn failed(failure: &AgentError) -> Self {
        Self { reason: failure.reason(), message: failure.to_string(), agent: None }
    }
}
