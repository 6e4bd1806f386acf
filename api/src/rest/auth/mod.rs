//! Authentication and authorization of clients.
//!
//! * [`action`]: the roles of API tokens, and the actions that require a permission.
//! * [`access`]: what a route requires, and the middleware that checks it before the handler runs.
//! * [`credential`]: the secrets of tokens and sessions, and how a request carries them.
//! * [`principal`]: who a client is, and what it may do.

mod access;
mod action;
pub mod credential;
mod principal;

use std::sync::Arc;

pub use self::access::{Access, Caller, ObjectSource, Permission, require_access};
pub use self::action::{Action, TokenRole};
pub use self::credential::ALL_NAMESPACES;
pub use self::principal::{Permissions, Principal};
use crate::authorizer::Authorizer;

/// How clients are authenticated.
#[derive(Clone)]
pub enum AuthMode {
    /// Everyone who reaches the server may do everything: it listens on this machine only.
    Open,
    /// By API tokens of this server.
    Tokens,
    /// By API tokens of this server or tokens of the cluster. The permissions of the latter are checked by the cluster.
    Cluster(Arc<dyn Authorizer>),
}
