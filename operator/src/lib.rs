//! The operator: turns a TrainJob into pods and tells the truth about them.
//!
//! "What happens when a pod dies": [`observe`] sees it as an agent that ended (and [`missing`] what keeps one from beginning), `millrace_crds::decide` says what that
//! means, [`reconcile`] records it and carries it out.
//!
//! * [`reconcile`]: a visit to a job, in five steps; [`apply`] makes an attempt's children, which [`children`] builds.
//! * [`ledger`]: who uses what of an appliance, and the queue.
//! * [`follow`]: the coordinators' streams; [`authority`]: the certificates both ends show.
//! * [`seed`]: the appliance that the chart's values describe.
//! * [`leader`]: one operator at a time; [`watch`]: watches that no object can stop; [`run`](mod@run): everything put together.

pub mod apply;
pub mod authority;
pub mod children;
pub mod cli;
pub mod context;
pub mod error;
pub mod events;
pub mod follow;
pub mod http;
pub mod leader;
pub mod ledger;
pub mod metrics;
pub mod missing;
pub mod observe;
pub mod reconcile;
pub mod resolve;
pub mod run;
pub mod seed;
pub mod watch;
