//! The Kubernetes backend. The TrainJobs of an API server are authoritative and an operator runs them; this module
//! creates, changes and observes them, and archives their history.
//!
//! ```text
//!   REST ──► Cluster (Backend) ──► API server ──► operator ──► pods
//!     │          │                    │ watches                 │ journals
//!     │          └─► Readers          ▼                         ▼
//!     └───────────────────────────► Mirror ──► SQL ◄── Followers
//! ```

mod api_errors;
mod archivers;
mod authorizer;
mod backend;
mod blobs;
mod events;
mod identity;
mod loops;
mod mirror;
mod namespaces;
mod readers;
mod uploads;

/// Field manager and `app.kubernetes.io/managed-by` of the objects that this server creates.
const API_MANAGER: &str = "millrace-api";

pub use authorizer::KubernetesAuthorizer;
pub use backend::{KubernetesBackend, KubernetesSettings};
pub use blobs::BlobSettings;
#[cfg(test)]
pub(crate) use readers::client_credentials;
