//! What happens to a job next: what is observed goes in, what is to be done and to be said comes out.
//!
//! Nothing here knows pods, clocks or clients: an [`Observed`] speaks of agents, whoever runs them, and the time is one of
//! its fields. [`decide`] is called again whenever something changed; it decides by what is there, never by what happened
//! on the way, so a visit that was missed or made twice changes nothing.
//!
//! A job's way is that of its [`State`](crate::State):
//!
//! ```text
//!   Queued -> Starting -> Training <-> Evaluating -> Succeeded
//!     ^  <------+            |                             (what can't start queues again after a pause: `retry`)
//!     |      Suspending, Resizing, Restarting        (what must stop first saves its state)
//!     +-- Suspended <--------+--------------> BadParams, NonFiniteLoss, OutOfMemory, DeadlineExceeded,
//!                                             RetriesExhausted
//! ```
//!
//! Invariants:
//! * A job that is not admitted has no agents: an attempt begins with a grant in the ledger and ends when its last agent
//!   is gone.
//! * `attempt` is raised, and that is recorded, before the first agent of the attempt exists.
//! * A job whose record can't be used, because another release wrote it, starts no agents and is in no state that says so.
//! * What is finished stays so, and is told before anything is cleaned up.

mod agent;
mod conditions;
pub mod ledger;
mod life;
mod retry;
mod schedule;

pub use agent::{Agent, AgentState, End, OUT_OF_MEMORY, Role, describe_exit};
pub use life::{decide, decide_leaving};
pub use retry::backing_off;
pub use schedule::{Ask, Place, Schedule, schedule, used};

use k8s_openapi::jiff::Timestamp;

use crate::{MaxDeadlines, QueuePlace, Resolution, TrainJobStatus};

/// Everything a decision is made from, besides the job itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// When this was observed.
    pub now: Timestamp,
    /// The agents that exist, of whatever attempt.
    pub agents: Vec<Agent>,
    /// What the ledger has for the job.
    pub grant: Option<Granted>,
    /// The job's place in the queue, where it has no grant.
    pub place: Option<QueuePlace>,
    /// What the coordinator said last.
    pub report: Option<Report>,
    /// What the params come to; nothing while that is being found out, which only a waiting job is decided on with. `Err` holds
    /// a sentence for the user: a new job can never run as it is, and one that was resolved before can't be run by this program.
    pub resolution: Option<Result<Resolution, String>>,
    /// Why no further attempt may begin with the agents of the job's record, though the record can be used: a sentence
    /// for the user. The attempt that is under way goes on.
    pub agents_refused: Option<String>,
    /// What was said when something that the present attempt needs to start could not be created.
    pub refusal: Option<Refusal>,
    /// The longest deadlines that the appliance allows.
    pub max_deadlines: MaxDeadlines,
    /// The most systems that have something to do, where that is known.
    pub largest_num_csx: Option<u32>,
    /// How many agents of each role an attempt on `spec.numCsx` systems has; empty where `resolution` is an error.
    pub wanted: Vec<(Role, u32)>,
}

/// Why something that an attempt needs to start could not be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// What was tried, and the words of whoever refused.
    pub message: String,
    /// Whether the same may succeed in a moment.
    pub is_temporary: bool,
}

/// The job's entry in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The attempt it was given for.
    pub attempt: u32,
    /// The systems, by name.
    pub systems: Vec<String>,
}

/// What an attempt's coordinator has said so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The attempt.
    pub attempt: u32,
    /// Whether it evaluates at present, rather than train.
    pub evaluating: bool,
    /// Where it goes on from, if anything was trained before: the step, and how many steps after that are run again.
    pub resumed: Option<(u64, u64)>,
    /// When it last got further: a step, a batch of an evaluation, a checkpoint.
    pub advanced: Option<Timestamp>,
    /// The newest checkpoint: step and digest.
    pub checkpoint: Option<(u64, String)>,
    /// Why the newest checkpoint could not be written, and what follows; `None` once one is written.
    pub unsaved: Option<String>,
    /// Whether all there was to save is saved, on a command to stop.
    pub saved: bool,
    /// How it ended.
    pub outcome: Option<Outcome>,
}

/// The coordinator's last word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// 0 done, 1 failed, 2 bad input, 130 stopped.
    pub exit_code: u8,
    /// One word.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The agent that failed first, as `cs2-1`.
    pub failed_agent: Option<String>,
}

/// What is to be done, in this order, and to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// To be recorded before `commands` are carried out.
    pub status: TrainJobStatus,
    /// What to do.
    pub commands: Vec<Command>,
    /// What to tell, once it is recorded.
    pub events: Vec<Event>,
    /// When to look again, at the latest, though nothing is heard: seconds.
    pub look_again: Option<u64>,
}

/// Something to be done. Each is harmless to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// See to it that every agent of the attempt exists, and what they need.
    Run {
        /// The attempt.
        attempt: u32,
        /// Its systems.
        num_csx: u32,
    },
    /// See to it that the coordinator of the attempt is followed, and create nothing.
    Follow {
        /// The attempt.
        attempt: u32,
    },
    /// Ask the coordinator to save its state and stop.
    Stop {
        /// The attempt.
        attempt: u32,
        /// Why, for its log.
        reason: String,
    },
    /// End every agent, giving each this many seconds to end in good order.
    Remove {
        /// Seconds.
        grace: u32,
    },
    /// Delete the job itself.
    Forget,
}

/// Something to tell the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Whether it is bad news.
    pub warning: bool,
    /// One word.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The attempt that it is about: what happens to different attempts is never folded into one event.
    pub attempt: Option<u32>,
    /// The role that it is about, where it is about one.
    pub role: Option<String>,
}

#[cfg(test)]
mod tests;
