//! The operator: turns a TrainJob into pods and tells the truth about them.
//!
//! "What happens when a pod dies": [`observe`] sees it as an agent that ended (and [`missing`] what keeps one from
//! beginning), `millrace_crds::decide` says what that means, and a visit of `millrace_control` records it and has it carried out.
//!
//! * [`cluster`]: the world that the control loop of `millrace_control` works in here; [`site`]: where its paths lie.
//! * [`apply`] makes an attempt's children, which [`children`] builds.
//! * [`agent_traces`]: how agents send traces to a collector.
//! * [`archive`]: what holds a deleted job until its history is kept.
//! * [`readers`]: the pods that serve the files of jobs, for the REST server.
//! * [`authority`]: the certificates that coordinators and whoever follows them show.
//! * [`seed`]: the appliance that the chart's values describe; [`protect`]: what keeps its ledger from being lost.
//! * [`leader`]: one operator at a time; [`term`]: it changes nothing after its time. [`watch`]: watches that no object
//!   can stop; [`leadership`]: everything a leader runs; [`run`](mod@run): candidate, leader, candidate again.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod agent_traces;
pub mod apply;
pub mod archive;
pub mod authority;
pub mod children;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod error;
pub mod events;
pub mod http;
pub mod leader;
pub mod leadership;
pub mod missing;
pub mod observe;
pub mod protect;
pub mod readers;
pub mod run;
pub mod seed;
pub mod serving;
pub mod site;
pub mod term;
pub mod watch;
