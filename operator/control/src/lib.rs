//! The control loop: dereferences jobs, records the decisions of `millrace_lifecycle` and applies them, in any
//! [`World`].
//!
//! There are two worlds: the pods of a cluster, with an API server that stores the objects, and the processes of one
//! machine, with a database. A job has the same states, deadlines, retries, queue and condition messages in both.
//!
//! * [`reconcile`](mod@reconcile): reconciles a job, in five steps.
//! * [`ledger`]: reconciles an appliance: its grants and its queue.
//! * [`resolve`](mod@resolve): resolves the params of a job into a record that never changes; [`record`](mod@record):
//!   reads it; [`mod@requirements`]: what an attempt needs.
//! * [`attempt`](mod@attempt): one attempt, as agents are created from it; [`launch`](mod@launch): builds its launch
//!   document; [`report`](mod@report): how it ended.
//! * [`plan_cache`]: caches the plans of jobs; [`plan_compiler`]: computes plans, within limits; [`workers`]: the
//!   threads that compute them.
//! * [`journal_follower`]: follows the streams of the coordinators.
//! * [`debounce`]: combines several changes of an object into one reconcile, with a bounded delay.
//! * [`metrics`]: metrics for Prometheus; [`activity`]: queued and running reconciles of the controllers; [`watchdog`]:
//!   detects that they are stuck.
//! * [`shutdown`]: from a signal to every task that has to end.
//! * [`run`](mod@run): runs the two controllers over streams of changed objects.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

pub mod activity;
pub mod attempt;
pub mod context;
pub mod debounce;
mod job_graph;
pub mod journal_follower;
pub mod launch;
pub mod ledger;
mod lock;
pub mod metrics;
mod metrics_snapshot;
pub mod plan_cache;
pub mod plan_compiler;
pub mod reconcile;
pub mod record;
pub mod report;
pub mod requirements;
pub mod resolve;
pub mod resolve_error;
pub mod run;
pub mod shutdown;
pub mod watchdog;
pub mod workers;
pub mod world;

pub use attempt::AttemptContext;
pub use context::{ContextParts, ControllerContext};
pub use plan_cache::{PlanCache, PlanStatus, reject_heavy};
pub use plan_compiler::PlanCompiler;
pub use requirements::ResourceRequirements;
pub use resolve::{requirements, resolve};
pub use resolve_error::{OverBudget, ResolveError};
pub use run::{WatchStreams, run};
pub use workers::WorkerPool;
pub use world::{
    AgentsFound, DocumentError, JobSite, JournalEndpoint, ModelDirLocation, PriorityValues, SiteError, World,
};

/// Ends a reconcile early. The object is requeued.
#[derive(Debug, thiserror::Error)]
pub enum Error<E: std::error::Error> {
    /// The world rejected a request, or is unreachable.
    #[error(transparent)]
    World(#[from] E),
    /// An attempt is to begin, but the job has no record.
    #[error("the job was never resolved")]
    Unresolved,
    /// The job can't be run.
    #[error(transparent)]
    Resolve(ResolveError),
    /// A request that an attempt needs to start was rejected, and would be rejected again: what was tried, with the
    /// message of the rejecting server.
    #[error(transparent)]
    Refused(Box<dyn std::error::Error + Send + Sync>),
    /// An attempt can't start, because the job's uploads can't be read at present.
    #[error(transparent)]
    Uploads(Box<dyn std::error::Error + Send + Sync>),
    /// The reconcile exceeded its timeout.
    #[error("timed out after {} s", .0.as_secs())]
    TimedOut(std::time::Duration),
}
