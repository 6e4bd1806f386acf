//! Authenticated clients and their permissions.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::jiff::Timestamp;

use super::super::local_user::is_own_socket;
use super::super::proxies::{client_address, connection_socket};
use super::super::{AppState, ValidQuery};
use super::credential::{self, ALL_NAMESPACES, bearer};
use super::{Action, AuthMode, TokenRole};
use crate::authorizer::{Authorizer, ResourceAttributes};
use crate::error::{ApiError, ErrorReason, Result};
use crate::request_context;

#[derive(Clone)]
pub struct Principal {
    /// Name of the token or account; recorded as the submitter of its jobs.
    pub name: String,
    /// Account whose budget pays for the requests: the id of the API token, also for its sessions; `user:` and the name
    /// in the cluster; or `local` on a server without tokens.
    pub account: String,
    pub rights: Permissions,
    /// The credential, for later checks; `None` if the server requires none.
    proof: Option<BearerCredential>,
    /// The client's end of the connection, on a server that requires no token.
    local_socket: Option<SocketAddr>,
}

/// A token, and the address that sent it.
#[derive(Clone)]
struct BearerCredential {
    secret: String,
    from: IpAddr,
}

#[derive(Clone)]
pub enum Permissions {
    /// Those of an API token.
    Role {
        role: TokenRole,
        /// Namespaces; `*` is all.
        namespaces: Vec<String>,
    },
    /// Those of an account of the cluster, which is asked about each action.
    Cluster(Arc<dyn Authorizer>, Arc<UserInfo>),
}

impl Principal {
    /// Checks that the client may perform `action` on the object `name`. An empty `name` means all objects of
    /// `namespace`, an empty `namespace` all namespaces and cluster-scoped objects.
    pub(super) async fn authorize(&self, action: Action, namespace: &str, name: &str) -> Result<()> {
        let (role, namespaces) = match &self.rights {
            Permissions::Role { role, namespaces } => (role, namespaces),
            Permissions::Cluster(authorizer, user) => {
                let attributes = action.resource_attributes(namespace, name);
                return if authorizer.authorize(user, &attributes).await? {
                    Ok(())
                } else {
                    Err(self.forbidden(&attributes))
                };
            }
        };
        // The appliance is in no namespace: a token for any namespace may read it.
        let is_in_scope = action == Action::ReadAppliance
            || namespaces.iter().any(|name| name == ALL_NAMESPACES || name == namespace && !namespace.is_empty());
        if *role >= action.required_role() && is_in_scope {
            return Ok(());
        }
        let scope =
            if namespace.is_empty() { "in all namespaces".to_owned() } else { format!("in namespace {namespace}") };
        let detail = format!(
            "{} has the role {} in {}; this operation needs {} {scope}: ask an administrator for a token",
            self.name,
            role.as_str(),
            namespaces.join(", "),
            action.required_role().as_str()
        );
        Err(ApiError::new(ErrorReason::Forbidden, detail))
    }

    /// Checks again, with the current state of the credential, that the client may perform `action`. For long streams.
    pub(super) async fn reauthorize(&self, api: &AppState, action: Action, namespace: &str, name: &str) -> Result<()> {
        let Some(BearerCredential { secret, from }) = &self.proof else { return Ok(()) };
        authenticate_token(api, secret, *from).await?.1.authorize(action, namespace, name).await
    }

    /// Returns whether the user of this machine that runs the server has sent the request. False for every client with
    /// a token: its code would run with rights that the token does not have.
    pub(in crate::rest) async fn is_server_user(&self, api: &AppState) -> bool {
        let Some(socket) = self.local_socket else { return false };
        let port = api.port;
        tokio::task::spawn_blocking(move || is_own_socket(socket, port)).await.unwrap_or(false)
    }

    /// Returns the namespaces whose jobs the client may list; `None` means all.
    ///
    /// # Errors
    /// An account of a cluster may not list all namespaces, and has to name one.
    pub(super) async fn visible_namespaces(&self) -> Result<Option<Vec<String>>> {
        match &self.rights {
            Permissions::Role { namespaces, .. } if !namespaces.iter().any(|name| name == ALL_NAMESPACES) => {
                Ok(Some(namespaces.clone()))
            }
            _ => self.authorize(Action::List, "", "").await.map(|()| None),
        }
    }

    /// Authenticates the client of a request, and counts the request against its rate limit.
    ///
    /// # Errors
    /// The credential is missing, malformed, unknown, expired or revoked; a token is in the URL; a page of another
    /// origin sent the request; or a rate limit is exceeded.
    pub(super) async fn authenticate(parts: &mut Parts, api: &Arc<AppState>) -> Result<Self> {
        let from = client_address(&parts.extensions);
        match authenticate(parts, api, from).await {
            Ok((id, principal)) => {
                request_context::set_principal(&principal.name);
                api.pace.check(&id).map(|()| principal)
            }
            Err(error) if error.reason == ErrorReason::Unauthorized => {
                let counted = match credential::request_secret(&parts.headers) {
                    Some(secret) => api.pace.check_bad_token(secret, from),
                    None => api.pace.check_unauthenticated(from),
                };
                counted.and(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    fn forbidden(&self, attributes: &ResourceAttributes) -> ApiError {
        let ResourceAttributes { verb, group, resource, subresource, namespace, .. } = attributes;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let dot = if group.is_empty() { "" } else { "." };
        let (scope, binding) = match namespace.as_str() {
            "" => ("the whole cluster", "ClusterRoleBinding"),
            one => (one, "RoleBinding"),
        };
        let detail = format!(
            "{} may not {verb} {resource}{dot}{group}{slash}{subresource} in {scope}: an administrator grants this by \
             a {binding} to one of the roles millrace-viewer, millrace-editor and millrace-admin",
            self.name
        );
        ApiError::new(ErrorReason::Forbidden, detail)
    }
}

/// Authenticates a request; also returns the id that its rate is counted by.
async fn authenticate(parts: &mut Parts, api: &Arc<AppState>, from: IpAddr) -> Result<(String, Principal)> {
    // A token in the address would be recorded in logs and browser histories.
    let ValidQuery(query) =
        ValidQuery::<std::collections::HashMap<String, String>>::from_request_parts(parts, api).await?;
    if query.keys().any(|key| key == "token" || key == "access_token") {
        let detail = "send the token in the header Authorization, not in the URL";
        return Err(ApiError::new(ErrorReason::BadRequest, detail));
    }
    if let Some(secret) = bearer(&parts.headers)? {
        return authenticate_token(api, secret, from).await;
    }
    if let Some(secret) = credential::session_cookie(&parts.headers) {
        credential::check_origin(&parts.method, &parts.headers)?;
        return authenticate_token(api, secret, from).await;
    }
    match &api.access {
        AuthMode::Open => {
            check_local_origin(&parts.headers)?;
            let rights = Permissions::Role { role: TokenRole::Admin, namespaces: vec![ALL_NAMESPACES.to_owned()] };
            let (name, account) = ("local".to_owned(), "local".to_owned());
            let local_socket = connection_socket(&parts.extensions);
            Ok(("local".to_owned(), Principal { name, account, rights, proof: None, local_socket }))
        }
        AuthMode::Tokens => Err(unauthorized("an administrator creates one with `millrace-api token`")),
        AuthMode::Cluster(_) => Err(unauthorized("`kubectl create token ACCOUNT` creates one")),
    }
}

fn unauthorized(remedy: &str) -> ApiError {
    let detail = format!("send a token in the header `Authorization: Bearer TOKEN`; {remedy}");
    ApiError::new(ErrorReason::Unauthorized, detail)
}

async fn authenticate_token(api: &AppState, secret: &str, from: IpAddr) -> Result<(String, Principal)> {
    let proof = Some(BearerCredential { secret: secret.to_owned(), from });
    let rejection =
        || ApiError::new(ErrorReason::Unauthorized, "the token is unknown, expired or revoked: ask for a new one");
    if let AuthMode::Cluster(authorizer) = &api.access
        && !credential::has_token_prefix(secret)
    {
        // The limit applies before the request to the API server of the cluster, which is a shared resource.
        let check_rate = || api.pace.check_bad_token(secret, from);
        let user = authorizer.authenticate(secret, &check_rate).await?.ok_or_else(rejection)?;
        let name = user.username.clone().unwrap_or_default();
        // The prefix can't collide with the id of an API token, which has no colon.
        let rights = Permissions::Cluster(authorizer.clone(), Arc::new(user));
        let id = format!("user:{name}");
        return Ok((id.clone(), Principal { name, account: id, rights, proof, local_socket: None }));
    }
    let token = api.store.token_by_hash(&credential::secret_hash(secret)).await?.ok_or_else(rejection)?;
    let now = Timestamp::now().as_millisecond();
    let is_invalid = token.revoked_ms.is_some() || token.expires_ms.is_some_and(|expires| expires <= now);
    let role = TokenRole::from_name(&token.role).filter(|_| !is_invalid).ok_or_else(rejection)?;
    api.store.touch_token(&token, now).await?;
    // All sessions of a token share one budget.
    let account = credential::token_of(&token.id).to_owned();
    let rights = Permissions::Role { role, namespaces: token.namespaces };
    Ok((token.id, Principal { name: token.name, account, rights, proof, local_socket: None }))
}

/// Checks that a request to a server without tokens was sent by a program of this machine. A web page in a browser of
/// this machine must not use the server: neither a page of another origin, nor one whose host name was made to resolve
/// to this machine (DNS rebinding).
fn check_local_origin(headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let local = |host: &str| {
        let name = match host.strip_prefix('[') {
            Some(address) => address.split(']').next(),
            None => host.split(':').next(),
        };
        let name = name.unwrap_or_default();
        name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    };
    let host = text(header::HOST).unwrap_or("localhost");
    let origin = text(header::ORIGIN).map(|origin| origin.split("://").nth(1).unwrap_or(origin));
    if local(host) && origin.is_none_or(|origin| origin == host) {
        return Ok(());
    }
    Err(ApiError::new(ErrorReason::Forbidden, "without tokens this server accepts requests from this machine only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_without_tokens_rejects_foreign_origins() {
        let headers = |pairs: &[(header::HeaderName, &str)]| {
            pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        for good in ["localhost:8080", "127.0.0.1:8080", "127.0.0.2:1", "[::1]:8080", "LocalHost"] {
            check_local_origin(&headers(&[(header::HOST, good)])).unwrap();
        }
        let own = [(header::HOST, "localhost:8080"), (header::ORIGIN, "http://localhost:8080")];
        check_local_origin(&headers(&own)).unwrap();
        for (host, origin) in [
            ("evil.example:8080", None),
            ("localhost:8080", Some("https://evil.example")),
            ("localhost:8080", Some("null")),
        ] {
            let mut pairs = vec![(header::HOST, host)];
            pairs.extend(origin.map(|origin| (header::ORIGIN, origin)));
            assert!(check_local_origin(&headers(&pairs)).is_err(), "{host} {origin:?}");
        }
    }

    #[tokio::test]
    async fn role_and_namespace_limit_a_token() {
        let principal = |role, namespaces: &[&str]| Principal {
            name: "ann".to_owned(),
            account: "ann".to_owned(),
            rights: Permissions::Role { role, namespaces: namespaces.iter().map(|&name| name.to_owned()).collect() },
            proof: None,
            local_socket: None,
        };
        let editor = principal(TokenRole::Editor, &["a", "b"]);
        for (action, namespace) in
            [(Action::Read, "a"), (Action::Delete, "b"), (Action::ReadFiles, "a"), (Action::ReadAppliance, "")]
        {
            assert!(editor.authorize(action, namespace, "job").await.is_ok(), "{action:?} {namespace}");
        }
        for (action, namespace) in
            [(Action::ListTokens, "a"), (Action::Read, "c"), (Action::List, ""), (Action::Read, "*")]
        {
            assert!(editor.authorize(action, namespace, "").await.is_err(), "{action:?} {namespace}");
        }
        assert_eq!(editor.visible_namespaces().await.unwrap().unwrap(), ["a", "b"]);
        let everywhere = principal(TokenRole::Viewer, &["*"]);
        assert!(
            everywhere.authorize(Action::List, "", "").await.is_ok()
                && everywhere.authorize(Action::Create, "a", "").await.is_err()
        );
        assert_eq!(everywhere.visible_namespaces().await.unwrap(), None);
    }
}
