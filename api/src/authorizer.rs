//! Authentication and authorization by a cluster: the interface to its accounts and permissions.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::UserInfo;

use crate::error::Result;

/// The action that is to be authorized, in the terms of Kubernetes. Our own kinds are in the group `millrace.dev`.
/// Besides the resources that an API server stores there, permissions can be given on `trainjobs/logs`,
/// `trainjobs/files` and `tokens`, which only this server checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceAttributes {
    /// Verb, such as `get`.
    pub verb: &'static str,
    /// API group, such as `millrace.dev`; empty for the core group.
    pub group: &'static str,
    /// Resource, such as `trainjobs`.
    pub resource: &'static str,
    /// Subresource, such as `logs`; empty for the resource itself.
    pub subresource: &'static str,
    /// Namespace; empty for all namespaces and for cluster-scoped objects.
    pub namespace: String,
    /// Name of the object; empty for all.
    pub name: String,
}

/// Authenticates and authorizes the accounts of a cluster.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Returns the account of a token; `None` if the token is invalid or expired. `may_ask` is called before a request
    /// to the cluster about an unknown token; its error is returned instead of the request.
    async fn authenticate(&self, token: &str, may_ask: &(dyn Fn() -> Result<()> + Sync)) -> Result<Option<UserInfo>>;

    /// Whether the account may perform the action.
    async fn authorize(&self, user: &UserInfo, question: &ResourceAttributes) -> Result<bool>;
}
