//! REST for user nodes: submitting jobs, watching them, fetching what they made.
//!
//! * [`rest`]: routes, bodies, live streams; knows a [`backend::Backend`] and the store, nothing else.
//! * [`process`]: the backend that runs jobs as processes of this machine.
//! * [`kubernetes`]: the backend that has jobs run as pods of a cluster. [`judge`]: the seam to its accounts and rights.
//! * [`definition`]: what an API server does with an object before it keeps it.
//! * [`compute`]: threads and budgets for what takes long to compute.
//! * [`plan`]: what would become of a job now. [`files`]: what jobs have written.
//! * [`reader`]: the program that serves them where they lie.
//! * [`unheard`]: journals as files have them.
//! * [`metrics`]: what is counted for Prometheus.
//! * [`own_certificate`]: the certificate that a server makes for itself.
//! * [`request`]: what the lines of one request in the log have in common.
//! * [`backup`]: what a server keeps, as one file.
//! * [`serve`](mod@serve): everything put together.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

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
