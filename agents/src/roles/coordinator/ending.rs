//! How a run ends: what the user is told of it, and programs.

use millrace_engine::coordinator::RunOutcome;
use millrace_engine::message::FailureCause;
use millrace_engine::types::AgentId;
use millrace_params::Mode;
use millrace_telemetry::journal::Reason;

use crate::failure::Failure;

/// Why the run is over.
#[derive(Clone, Debug)]
pub struct Ending {
    /// In one word.
    pub reason: Reason,
    /// In a sentence.
    pub message: String,
    /// The agent that is the cause, where it is one.
    pub agent: Option<AgentId>,
}

impl Ending {
    /// The end that the coordinator's machine came to in `mode`.
    pub fn of(outcome: RunOutcome, mode: Mode, leaver: Option<AgentId>) -> Self {
        match outcome {
            RunOutcome::Complete => {
                let what = if mode.trains() { "Training" } else { "Evaluation" };
                let message = format!("{what} completed successfully!");
                Self { reason: Reason::Succeeded, message, agent: None }
            }
            RunOutcome::Stopped => Self::stopped(leaver),
            RunOutcome::Failed { reason: message, agent, cause } => {
                let reason = match cause {
                    FailureCause::BadInput => Reason::BadParams,
                    FailureCause::NotFinite => Reason::NonFiniteLoss,
                    FailureCause::ShardLost => Reason::ShardLost,
                    FailureCause::NoSpace => Reason::OutOfSpace,
                    FailureCause::Other => Reason::Failed,
                };
                Self { reason, message, agent }
            }
        }
    }

    /// The user wanted it, or `leaver` had to leave: a shard, without which it can't go on.
    pub fn stopped(leaver: Option<AgentId>) -> Self {
        let message = match leaver {
            Some(shard) => format!("Stopped: {shard} was asked to leave, and a run needs all its shards."),
            None => "Stopped by the user.".to_owned(),
        };
        Self { reason: Reason::Interrupted, message, agent: leaver }
    }

    /// The coordinator itself can't go on.
    pub fn failed(failure: &Failure) -> Self {
        Self { reason: failure.reason(), message: failure.to_string(), agent: None }
    }
}
