//! What a route requires of a client, and the middleware that checks it before the handler runs.
//!
//! ```text
//! request ──► authenticate ──► names in the path ──► authorize ──► handler(Caller, ...)
//!             401, 429         400, 404              403
//! ```
//!
//! * [`Route::mount`](super::super::routes::Route::mount) puts the middleware before every handler.
//! * A handler gets its [`Caller`] from the middleware; nothing else creates one.
//! * A client without permission gets 403 whether or not the object exists, before its query and body are read.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;

use super::super::{ALL_NAMESPACES, AppState, ApplianceQuery, ValidPath, ValidQuery};
use super::{Action, Principal, credential};
use crate::error::{ApiError, ErrorReason, Result};

/// What a route requires of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: everyone may use the route.
    Public,
    /// A valid token or session.
    Authenticated,
    /// A valid token; a session is not accepted.
    BearerToken,
    Permission(Permission),
}

/// The permission that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    pub action: Action,
    /// The object that the action is performed on.
    pub object: ObjectSource,
    /// Further actions on which the content of the response depends; the handler checks them by
    /// [`Caller::is_allowed`].
    pub optional: &'static [Action],
}

/// Where the object of an action is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectSource {
    /// In the path: a job by `{namespace}` and `{name}`, a namespace by `{namespace}`, else the whole server.
    Path,
    /// In the path, where the namespace `-` stands for all namespaces whose jobs the client may list.
    PathOrVisibleNamespaces,
    /// In the query: the name of an appliance.
    ApplianceQuery,
}

impl Access {
    /// Requires the permission to perform `action` on the object that the path names.
    pub const fn permission(action: Action) -> Self {
        Self::Permission(Permission { action, object: ObjectSource::Path, optional: &[] })
    }
}

/// An authenticated client that has the access that its route requires.
#[derive(Clone)]
pub struct Caller {
    pub principal: Principal,
    access: Access,
    namespace: String,
    name: String,
    visible_namespaces: Option<Vec<String>>,
}

impl Caller {
    /// Returns the namespaces whose jobs the request concerns; `None` means all. For routes of
    /// [`ObjectSource::PathOrVisibleNamespaces`].
    pub fn visible_namespaces(&self) -> Option<&[String]> {
        self.visible_namespaces.as_deref()
    }

    /// Whether the client may also perform `action`, one of [`Permission::optional`], on all objects of `namespace`.
    ///
    /// # Errors
    /// The cluster can't be asked, or the route does not declare the action.
    pub async fn is_allowed(&self, action: Action, namespace: &str) -> Result<bool> {
        let Access::Permission(Permission { optional, .. }) = self.access else { return Err(undeclared(action)) };
        if !optional.contains(&action) {
            return Err(undeclared(action));
        }
        match self.principal.authorize(action, namespace, "").await {
            Ok(()) => Ok(true),
            Err(error) if error.reason == ErrorReason::Forbidden => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Checks again, with the current state of the credential, that the client has the permission of its route. For
    /// long streams.
    ///
    /// # Errors
    /// The credential or the permission is no longer valid, or the check failed.
    pub async fn reauthorize(&self, api: &AppState) -> Result<()> {
        let Access::Permission(Permission { action, .. }) = self.access else { return Ok(()) };
        self.principal.reauthorize(api, action, &self.namespace, &self.name).await
    }
}

fn undeclared(action: Action) -> ApiError {
    ApiError::internal("authorize the request", format!("the route does not declare the action {action:?}"))
}

impl FromRequestParts<Arc<AppState>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<AppState>) -> Result<Self> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| ApiError::internal("authorize the request", "the route is public and has no caller"))
    }
}

/// Middleware of one route: rejects the request unless the client has the access, and passes the [`Caller`] on.
///
/// # Errors
/// [`Unauthorized`](crate::error::ErrorReason::Unauthorized) without a valid credential,
/// [`Forbidden`](crate::error::ErrorReason::Forbidden) without the permission,
/// [`BadRequest`](crate::error::ErrorReason::BadRequest) if path or query can't be parsed, or the check itself failed.
pub async fn require_access(
    State((api, access)): State<(Arc<AppState>, Access)>,
    request: Request,
    next: Next,
) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    if access != Access::Public {
        let caller = authorize(&api, access, &mut parts).await?;
        parts.extensions.insert(caller);
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

async fn authorize(api: &Arc<AppState>, access: Access, parts: &mut Parts) -> Result<Caller> {
    let principal = Principal::authenticate(parts, api).await?;
    if access == Access::BearerToken {
        credential::required_bearer(&parts.headers)?;
    }
    let ValidPath(mut path) = ValidPath::<HashMap<String, String>>::from_request_parts(parts, api).await?;
    let [mut namespace, mut name] = ["namespace", "name"].map(|key| path.remove(key).unwrap_or_default());
    let mut visible_namespaces = None;
    if let Access::Permission(Permission { action, object, .. }) = access {
        if object == ObjectSource::ApplianceQuery {
            let ValidQuery(query) = ValidQuery::<ApplianceQuery>::from_request_parts(parts, api).await?;
            (namespace, name) = (String::new(), query.name().to_owned());
        }
        if object == ObjectSource::PathOrVisibleNamespaces && namespace == ALL_NAMESPACES {
            visible_namespaces = principal.visible_namespaces().await?;
        } else {
            principal.authorize(action, &namespace, &name).await?;
            visible_namespaces = Some(vec![namespace.clone()]);
        }
    }
    Ok(Caller { principal, access, namespace, name, visible_namespaces })
}
