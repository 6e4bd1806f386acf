//! The REST server for user nodes: submits jobs, follows them, and serves the files that they write.
//!
//! * [`rest`]: routes, bodies, live streams; depends only on a [`backend::Backend`] and the store.
//! * [`process`]: the backend that runs jobs as processes of this machine.
//! * [`kubernetes`]: the backend that runs jobs as pods of a cluster. [`judge`]: the interface to its accounts and
//!   permissions.
//! * [`definition`]: admission of objects, as an API server does it. [`document`]: objects as JSON in the database.
//! * [`compute`]: threads and budgets for expensive computations of requests.
//! * [`plan`]: plans of jobs that are not created yet. [`files`]: the files that jobs have written.
//! * [`reader`]: the program that serves the files of a job on the machine or volume that has them.
//! * [`record`]: copies journals into the database. [`unheard`]: reads journals from files.
//! * [`metrics`]: the server's metrics for Prometheus.
//! * [`tls`]: HTTPS with a certificate in files. [`own_certificate`]: the self-signed certificate of a server.
//! * [`refusal`]: the error type of the API. [`request`]: the context of the current request, for log lines.
//! * [`backup`]: the persistent state of a server as one file.
//! * [`serve`](mod@serve): starts and stops the server. [`cli`]: the command line.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

pub mod backend;
pub mod backup;
pub mod cli;
pub mod compute;
pub mod definition;
pub mod document;
pub mod files;
pub mod judge;
pub mod kubernetes;
pub mod metrics;
pub mod own_certificate;
pub mod plan;
mod private;
pub mod process;
pub mod reader;
pub mod record;
pub mod refusal;
pub mod request;
pub mod rest;
pub mod serve;
pub mod tls;
pub mod unheard;
