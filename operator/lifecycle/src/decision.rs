//! The output of a decision: a status, and the commands and events that follow from it.

use millrace_crds::TrainJobStatus;

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
    pub requeue_after: Option<u64>,
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
    /// End one agent, which is lost; `RunAgents` then creates it again.
    RemoveAgent {
        /// Identifies the instance, see [`ObservedAgent::instance`](crate::ObservedAgent::instance).
        instance: String,
        /// Grace period, in seconds; 0 if its node is lost.
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
    /// The number of systems to which the attempt is resized. Events of different numbers are never aggregated.
    pub num_csx: Option<u32>,
}
