//! The Kubernetes backend: TrainJobs of an API server are the truth, an operator runs them; here they are made, changed and
//! seen, and their history is kept.
//!
//! ```text
//!   REST ──► Cluster (Backend) ──► API server ──► operator ──► pods
//!     │          │                    │ watches                 │ journals
//!     │          └─► Readers          ▼                         ▼
//!     └───────────────────────────► Mirror ──► SQL ◄── Followers
//! ```

mod access;
mod answer;
mod cluster;
mod events;
mod followers;
mod loops;
mod mirror;
mod namespaces;
mod readers;
mod texts;

pub use access::Reviews;
pub use cluster::{Cluster, Settings};
#[cfg(test)]
pub(crate) use readers::client_credentials;
