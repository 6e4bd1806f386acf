//! The Helm chart. What needs helm, or an API server, is ignored by default: `charts/test` brings both and runs everything.

mod api;
mod cluster;
mod documents;
mod metrics;
mod rbac;
mod rendered;
mod routes;
mod tools;
