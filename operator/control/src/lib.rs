//! The control loop: what happens to a job next is decided by `millrace_crds::decide`; this crate finds out what is there,
//! records what was decided and has it done, in whatever [`World`] the agents live.
//!
//! There are two worlds: pods of a cluster, with an API server that keeps the objects, and processes of one machine, with a
//! database. A job goes through the same states, deadlines, retries and queue in both, down to the words of its conditions.
//!
//! * [`visit`](mod@visit): a visit to a job, in five steps.
//! * [`ledger`]: who uses what of an appliance, and the queue.
//! * [`resolve`](mod@resolve): from what a user asks for to what will run; [`launch`](mod@launch): what its coordinator is started with.
//! * [`understand`]: what jobs come to, remembered; [`plans`]: their plans, within limits; [`workers`]: the threads
//!   that make them.
//! * [`follow`]: the coordinators' streams.
//! * [`gathering`]: several changes of an object are one visit, which is never put off.
//! * [`metrics`]: numbers for Prometheus; [`activity`]: what the controllers have to do and do; [`watchdog`]: whether they are stuck.
//! * [`program`]: what a program around the loop begins with.
//! * [`run`](mod@run): the two controllers, over streams of changed objects.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod activity;
pub mod control;
pub mod follow;
pub mod gathering;
pub mod launch;
pub mod ledger;
pub mod metrics;
mod metrics_snapshot;
pub mod plans;
pub mod program;
pub mod resolve;
pub mod run;
pub mod understand;
pub mod visit;
pub mod watchdog;
pub mod workers;
pub mod world;

pub use control::{Control, Parts};
pub use plans::Plans;
pub use resolve::{Needs, Unable, needs, resolve};
pub use run::{Streams, run};
pub use understand::{Understanding, Understood, only_light};
pub use workers::Workers;
pub use world::{Attempt, Found, Journal, ModelDir, Priorities, Site, World};

/// What ends a visit early. The object is visited again.
#[derive(Debug, thiserror::Error)]
pub enum Error<E: std::error::Error> {
    /// The world refused, or can't be reached.
    #[error(transparent)]
    World(#[from] E),
    /// The job can't be served: a sentence.
    #[error("{0}")]
    Job(String),
    /// Something that an attempt needs to start was refused, and would be refused again: what was tried, in the words
    /// of whoever refused.
    #[error("{0}")]
    Refused(String),
    /// It did not end in time.
    #[error("given up after {} s: something that it waited for did not answer", .0.as_secs())]
    TimedOut(std::time::Duration),
}
