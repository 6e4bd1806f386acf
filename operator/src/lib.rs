//! The operator: runs TrainJobs as pods of a Kubernetes cluster.
//!
//! When a pod fails, [`observe`] converts it to an agent that ended (and [`missing_config_maps`] reports missing
//! ConfigMaps), `millrace_lifecycle` decides the consequence, and a reconcile of `millrace_control` records and
//! applies it.
//!
//! What the operator shares with the REST server (names, addresses, the archive finalizer, the client) is in
//! `millrace_cluster`.
//!
//! * [`world`]: the [`World`](millrace_control::World) that the control loop works in.
//! * [`apply`]: creates the children of an attempt, which [`children`] builds.
//! * [`agent_traces`]: configures agents to send traces to a collector.
//! * [`readers`]: the pods that serve the files of jobs to the REST server.
//! * [`authority`]: issues the certificates of agents and of the services that follow them; [`serving_certificate`]:
//!   that of the REST server.
//! * [`graph_documents`]: reads the graph documents of jobs from the REST server.
//! * [`chart_appliance`]: applies the appliance of the chart's values; [`appliance_finalizer`]: protects its ledger
//!   from deletion.
//! * [`leader`]: elects one leader among the operators; [`term`]: prevents writes after a leader's term. [`watch`]:
//!   watches that unreadable objects don't stop; [`leadership`]: runs everything that a leader does; [`run`](mod@run):
//!   the life of an operator, candidate and leader by turns. [`events`]: publishes events across leaderships.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

pub mod agent_traces;
pub mod appliance_finalizer;
pub mod apply;
pub mod authority;
pub mod chart_appliance;
pub mod children;
pub mod cli;
pub mod error;
pub mod events;
pub mod graph_documents;
pub mod http;
pub mod leader;
pub mod leadership;
pub mod missing_config_maps;
pub mod observe;
pub mod readers;
pub mod run;
pub mod serving_certificate;
pub mod term;
pub mod watch;
pub mod world;
