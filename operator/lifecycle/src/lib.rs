//! What happens to a job next: its state machine, the queue, the ledger of systems, retries and conditions, as pure
//! functions.
//!
//! [`decide`] gets a [`TrainJob`](millrace_crds::TrainJob) and a [`JobObservation`] (its agents, its grant, the last
//! report of its coordinator, the time) and returns a [`JobDecision`]: the next status, and the commands that carry it
//! out. The control loop calls it again whenever something has changed, records the status, and only then applies the
//! commands. Agents are observed in the same form whether they are pods or processes.
//!
//! ```text
//!  Queued ── grant ──► Starting ── first step ──► Training ◄──► Evaluating ── complete ──► Succeeded
//! ```
//!
//! | while an attempt runs | state until its last agent is gone | then |
//! |---|---|---|
//! | `spec.suspend` is set | Suspending: the state is saved | Suspended; Queued once it is resumed |
//! | `spec.numCsx` changes, and the agents are of release 0.1.0 | Resizing: the state is saved | Queued |
//! | an agent is given up, or the coordinator fails | Restarting | Starting, on the same systems, after a backoff  |
//! | the agents can't start | Restarting | Queued, without systems, until the backoff is over |
//! | the job can't continue | a state of failure, such as BadParams or RetriesExhausted | no change |
//! | the object is deleted | Deleting ([`decide_deleted`]) | the object no longer exists |
//!
//! An agent that is lost while its attempt continues is replaced, without a change of state unless the others wait for
//! it. Then the state is Starting. A change of `spec.numCsx` adds and removes agents in the same way: the attempt and
//! its state stay the same.
//!
//! [`schedule`] grants systems to the jobs in the queue, and [`ledger`] computes which systems are held already.
//!
//! What is guaranteed; random histories in the tests check it:
//!
//! * A decision depends on its input only: not on a clock, and not on the calls before it. A missed or repeated
//!   reconcile changes nothing.
//! * A job that is not admitted has no agents: an attempt begins with a grant in the ledger and ends when its last
//!   agent no longer exists.
//! * `attempt` is raised, and that is recorded, before the first agent of the attempt exists.
//! * A job whose record can't be used, because another release wrote it, starts no agents. Its conditions say so; its
//!   state does not.
//! * A finished job stays finished, and its end is recorded before anything is cleaned up.
//! * No system is granted twice, and no job overtakes another in the queue.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod agent;
mod conditions;
mod decision;
pub mod ledger;
mod observation;
mod retry;
mod scheduler;
mod transitions;

pub use agent::{AgentState, OUT_OF_MEMORY, ObservedAgent, ProcessEnd, describe_exit};
pub use conditions::set_condition;
pub use decision::{JobCommand, JobDecision, JobEvent};
pub use observation::{
    CoordinatorReport, CreationError, JobObservation, LedgerEntry, ReportedOutcome, ResizedAttempt, ResolutionError,
    SlowAgent, StorageStall,
};
pub use retry::{backoff_place, seconds_until_next_attempt};
pub use scheduler::{QueueEntry, SchedulingDecision, SystemRequest, is_waiting, schedule, used_resources};
pub use transitions::{decide, decide_deleted, is_removal_overdue, target_systems};

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
