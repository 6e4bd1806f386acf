//! The input of a decision: what is known about a job and its agents at one moment.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use millrace_crds::{MaxDeadlines, QueueStatus, ResolvedJob, Role};

use crate::ObservedAgent;

/// The input of a decision, besides the job itself.
#[derive(Clone, Debug, PartialEq)]
pub struct JobObservation {
    /// Time of the observation.
    pub now: Timestamp,
    /// The agents that exist, of any attempt.
    pub agents: Vec<ObservedAgent>,
    /// Whether a lost agent is replaced by [`JobCommand::RemoveAgent`](crate::JobCommand::RemoveAgent) and
    /// `RunAgents`. False if the world replaces agents itself, or if they are of a release that can't be replaced: an
    /// agent that has ended then ends the attempt.
    pub are_agents_replaceable: bool,
    /// The job's grant in the ledger.
    pub grant: Option<LedgerEntry>,
    /// The job's place in the queue, if it has no grant.
    pub queue_place: Option<QueueStatus>,
    /// The last report of the coordinator.
    pub report: Option<CoordinatorReport>,
    /// The record of the job: the one it has, or the one that its params resolve to. `None` while it is being computed;
    /// then only a queued job is decided on. `Err` means that a new job can never run as it is, that a job that was
    /// resolved before can't be run by this program, or that a job can't be planned at present.
    pub resolution: Option<Result<ResolvedJob, ResolutionError>>,
    /// Why no further attempt may begin with the agents of the job's record, although the record can be used: a
    /// sentence for the user. A running attempt continues.
    pub agents_refused: Option<String>,
    /// The error if an object that the current attempt needs to start could not be created.
    pub creation_error: Option<CreationError>,
    /// The longest deadlines that the appliance allows.
    pub max_deadlines: MaxDeadlines,
    /// Largest number of systems that all have work, if it is known.
    pub largest_num_csx: Option<u32>,
    /// Whether a running attempt can be resized. False if its agents are of a release that can't: a change of
    /// `spec.numCsx` then restarts the job.
    pub is_resizable: bool,
    /// The attempt on the number of systems that it is to have, see [`target_systems`](crate::target_systems). `Err` if
    /// it can't run on so many; `None` while that is being planned, or if no attempt runs.
    pub resized_attempt: Option<Result<ResizedAttempt, ResolutionError>>,
    /// Number of agents of each role in the current attempt, or without one in an attempt on `spec.numCsx` systems;
    /// empty if `resolution` is an error or `None`.
    pub desired_agents: Vec<(Role, u32)>,
    /// Number of MemoryX shards of the same plan; agent n holds shard n modulo this number.
    pub memoryx_shards: u32,
}

/// An attempt on another number of systems, or the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizedAttempt {
    /// Number of systems.
    pub num_csx: u32,
    /// Number of agents of each role.
    pub agents: Vec<(Role, u32)>,
}

/// Why a job has no usable record, as its conditions and events say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolutionError {
    /// One sentence for the user.
    pub message: String,
    /// Whether the record may be usable later, without a change of the job: its uploads can't be read at present.
    pub is_temporary: bool,
}

/// Why an object that an attempt needs to start could not be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreationError {
    /// What was tried, with the message of the rejecting server.
    pub message: String,
    /// Whether a retry may succeed.
    pub is_temporary: bool,
    /// Whether the agents could not be created because the job's uploads can't be read at present.
    pub is_of_uploads: bool,
}

/// The job's grant in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The attempt of the grant.
    pub attempt: u32,
    /// Names of the systems.
    pub systems: Vec<String>,
    /// How often the systems of the attempt had changed before.
    pub resizes: u32,
}

/// The reports of an attempt's coordinator so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoordinatorReport {
    /// The attempt's number.
    pub attempt: u32,
    /// Whether the attempt evaluates at present; false while it trains.
    pub evaluating: bool,
    /// Number of systems that work at present, if known.
    pub systems: Option<u32>,
    /// Number of systems that the attempt is to use, once no other one takes part; `None` if it can't be resized.
    pub requested_csx: Option<u32>,
    /// Agents that the coordinator counts as lost, such as `cs2-1`, and since when.
    pub unresponsive: BTreeMap<String, Timestamp>,
    /// Agents that work much more slowly than the others of their role, such as `cs2-1`.
    pub slow_agents: BTreeMap<String, SlowAgent>,
    /// Whether the storage of model_dir responds; `Err` has a write that it does not respond to. `None` before the
    /// first state has arrived.
    pub storage: Option<Result<(), StorageStall>>,
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

/// An agent that works much more slowly than the others of its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowAgent {
    /// Since when.
    pub since: Timestamp,
    /// Its speed in percent of that of the others.
    pub speed_percent: u32,
}

/// A write to the storage of model_dir that has not returned for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageStall {
    /// The file, or the directory of a checkpoint.
    pub file: String,
    /// Since when.
    pub since: Timestamp,
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
