//! Decides the next status of a job and the commands that implement it, from an observation. Pure functions.
//!
//! An [`JobObservation`] contains agents, however they are run, and the time: pods, clocks and clients are unknown
//! here. [`decide`] is called again whenever something has changed. It decides from the observation only, never from
//! the events before it, so a missed or repeated reconcile changes nothing.
//!
//! The states of a job are those of [`JobState`](crate::JobState):
//!
//! ```text
//!   Queued -> Starting -> Training <-> Evaluating -> Succeeded
//!     ^  <------+            |                             (a failed start is queued again after a backoff: `retry`)
//!     |      Suspending, Resizing, Restarting        (the state is saved before the agents stop)
//!     +-- Suspended <--------+--------------> BadParams, NonFiniteLoss, OutOfMemory, DeadlineExceeded,
//!                                             RetriesExhausted
//! ```
//!
//! * A job that is not admitted has no agents: an attempt begins with a grant in the ledger and ends when its last
//!   agent no longer exists.
//! * `attempt` is raised, and that is recorded, before the first agent of the attempt exists.
//! * A job whose record can't be used, because another release wrote it, starts no agents. Its conditions say so; its
//!   state does not.
//! * A finished job stays finished, and its end is recorded before anything is cleaned up.

mod agent;
mod conditions;
pub mod ledger;
mod lifecycle;
mod retry;
mod scheduler;

pub use agent::{AgentState, OUT_OF_MEMORY, ObservedAgent, ProcessEnd, Role, describe_exit};
pub use lifecycle::{decide, decide_deleted};
pub use retry::backoff_place;
pub use scheduler::{QueueEntry, SchedulingDecision, SystemRequest, schedule, used_resources};

use k8s_openapi::jiff::Timestamp;

use crate::{MaxDeadlines, QueueStatus, ResolvedJob, TrainJobStatus};

/// The input of a decision, besides the job itself.
#[derive(Clone, Debug, PartialEq)]
pub struct JobObservation {
    /// Time of the observation.
    pub now: Timestamp,
    /// The agents that exist, of any attempt.
    pub agents: Vec<ObservedAgent>,
    /// The job's grant in the ledger.
    pub grant: Option<LedgerEntry>,
    /// The job's place in the queue, if it has no grant.
    pub queue_place: Option<QueueStatus>,
    /// The last report of the coordinator.
    pub report: Option<CoordinatorReport>,
    /// The record of the job: the one it has, or the one that its params resolve to. `None` while it is being computed;
    /// then only a queued job is decided on. `Err` has a sentence for the user: a new job can never run as it is, and a
    /// job that was resolved before can't be run by this program.
    pub resolution: Option<Result<ResolvedJob, String>>,
    /// Why no further attempt may begin with the agents of the job's record, although the record can be used: a
    /// sentence for the user. A running attempt continues.
    pub agents_refused: Option<String>,
    /// The error if an object that the current attempt needs to start could not be created.
    pub refusal: Option<CreationError>,
    /// The longest deadlines that the appliance allows.
    pub max_deadlines: MaxDeadlines,
    /// Largest number of systems that all have work, if it is known.
    pub largest_num_csx: Option<u32>,
    /// Number of agents of each role in the current attempt, or without one in an attempt on `spec.numCsx` systems;
    /// empty if `resolution` is an error or `None`.
    pub desired_agents: Vec<(Role, u32)>,
}

/// Why an object that an attempt needs to start could not be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreationError {
    /// What was tried, with the message of the rejecting server.
    pub message: String,
    /// Whether a retry may succeed.
    pub is_temporary: bool,
}

/// The job's grant in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The attempt of the grant.
    pub attempt: u32,
    /// Names of the systems.
    pub systems: Vec<String>,
}

/// The reports of an attempt's coordinator so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoordinatorReport {
    /// The attempt's number.
    pub attempt: u32,
    /// Whether the attempt evaluates at present; false while it trains.
    pub evaluating: bool,
    /// The step at which the attempt resumed, and the number of later steps that run again; `None` if nothing was
    /// trained before.
    pub resumed: Option<(u64, u64)>,
    /// Time of the last progress: a metric of a step or an evaluation, or a change of state after the start.
    pub advanced: Option<Timestamp>,
    /// Step and digest of the newest checkpoint.
    pub checkpoint: Option<(u64, String)>,
    /// Why the newest checkpoint could not be written, and the consequence; `None` once one is written.
    pub failed_checkpoint: Option<String>,
    /// Whether everything is saved after a stop command.
    pub saved: bool,
    /// How the attempt ended; `None` while it runs.
    pub outcome: Option<ReportedOutcome>,
}

/// The last report of a coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedOutcome {
    /// 0 complete, 1 failed, 2 invalid input, 130 stopped.
    pub exit_code: u8,
    /// The reason, in one word.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The agent that failed first, such as `cs2-1`.
    pub failed_agent: Option<String>,
}

/// The output of a decision: a status to record, then commands, in this order.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDecision {
    /// To be recorded before `commands` are applied.
    pub status: TrainJobStatus,
    /// Commands, in order.
    pub commands: Vec<JobCommand>,
    /// Events to publish once the status is recorded.
    pub events: Vec<JobEvent>,
    /// Seconds until the next reconcile at the latest, even without any change.
    pub look_again: Option<u64>,
}

/// A command of a decision. All commands are idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobCommand {
    /// Create the missing agents of the attempt, and the objects that they need.
    RunAgents {
        /// The attempt's number.
        attempt: u32,
        /// Number of its systems.
        num_csx: u32,
    },
    /// Follow the coordinator of the attempt, but create nothing.
    FollowCoordinator {
        /// The attempt's number.
        attempt: u32,
    },
    /// Request the coordinator to save its state and stop.
    StopAttempt {
        /// The attempt's number.
        attempt: u32,
        /// The reason, for the coordinator's log.
        reason: String,
    },
    /// End every agent, with this grace period.
    RemoveAgents {
        /// Grace period, in seconds.
        grace: u32,
    },
    /// Delete the job itself.
    DeleteJob,
}

/// An event to publish to the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobEvent {
    /// Whether it is a warning.
    pub warning: bool,
    /// The reason, in one word.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The attempt concerned. Events of different attempts are never aggregated.
    pub attempt: Option<u32>,
    /// The role concerned; `None` if the event concerns no single role.
    pub role: Option<String>,
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
