//! The Kubernetes backend. The TrainJobs of an API server are authoritative and an operator runs them; this module
//! creates, changes and observes them, and archives their history.
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

pub use access::KubernetesAuthorizer;
pub use cluster::{KubernetesBackend, KubernetesSettings};
#[cfg(test)]
pub(crate) use readers::client_credentials;
