//! Who is behind a token of somebody else's, and what they may there: the seam to a cluster's own accounts and rights.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::UserInfo;

use crate::refusal::Result;

/// What somebody wants to do, in the words of a cluster's rights. Our own kinds are of the group `millrace.dev`; besides what
/// is kept there, rights can be given on `trainjobs/logs`, `trainjobs/files` and `tokens`, which only this server asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// As `get`.
    pub verb: &'static str,
    /// As `millrace.dev`.
    pub group: &'static str,
    /// As `trainjobs`.
    pub resource: &'static str,
    /// As `logs`; empty for the whole.
    pub subresource: &'static str,
    /// Where; empty for everywhere.
    pub namespace: String,
    /// Of which object; empty for all.
    pub name: String,
}

/// See the module text.
#[async_trait]
pub trait Judge: Send + Sync {
    /// Whose token this is; `None` where it is nobody's, or nobody's any more. Where it was not found out a moment ago, nobody
    /// is asked unless `may_ask` lets it.
    async fn who(&self, token: &str, may_ask: &(dyn Fn() -> Result<()> + Sync)) -> Result<Option<UserInfo>>;

    /// Whether they may.
    async fn may(&self, user: &UserInfo, question: &Question) -> Result<bool>;
}
