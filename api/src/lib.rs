//! The REST server for user nodes: submits jobs, follows them, and serves the files that they write.
//!
//! * [`rest`]: routes, bodies, live streams; depends only on a [`backend::Backend`] and the store.
//! * [`process`]: the backend that runs jobs as processes of this machine.
//! * [`kubernetes`]: the backend that runs jobs as pods of a cluster. [`authorizer`]: the interface to its accounts and
//!   permissions.
//! * [`admission`]: admission of objects, as an API server does it. [`document`]: objects as JSON in the database.
//! * [`compute`]: threads and budgets for expensive computations of requests.
//! * [`submission`]: a job that a client submits. [`plan`]: plans of jobs that are not created yet.
//! * [`blobs`]: uploads of users. [`files`]: the files that jobs have written. [`generation`]: texts that the models of
//!   checkpoints continue.
//! * [`reader`]: the program that serves the files of a job on the machine or volume that has them.
//! * [`journal_copy`]: copies journals into the database. [`journal_files`]: reads journals from files.
//! * [`metrics`]: the server's metrics for Prometheus.
//! * [`tls`]: HTTPS with a certificate in files. [`self_signed`]: the self-signed certificate of a server.
//! * [`error`]: the error type of the API. [`request_context`]: the context of the current request, for log lines.
//! * [`backup`]: the persistent state of a server as one file.
//! * [`serve`](mod@serve): starts and stops the server. [`cli`]: the command line.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

pub mod admission;
pub mod authorizer;
pub mod backend;
pub mod backup;
pub mod blobs;
pub mod cli;
pub mod compute;
mod database_args;
pub mod document;
pub mod error;
pub mod files;
pub mod generation;
pub mod journal_copy;
pub mod journal_files;
pub mod kubernetes;
pub mod metrics;
pub mod plan;
mod private_dirs;
pub mod process;
pub mod reader;
pub mod request_context;
pub mod rest;
pub mod self_signed;
pub mod serve;
pub mod submission;
pub mod tls;
