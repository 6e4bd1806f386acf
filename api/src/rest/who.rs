//! Who asks, and what they may.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use k8s_openapi::jiff::Timestamp;

use super::tokens::secret_hash;
use super::{Api, Asked, session};
use crate::refusal::{Reason, Refusal, Result};

/// How the server finds out who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever reaches it may do everything: it listens on this machine only.
    Open,
    /// By a token.
    Tokens,
}

/// What somebody may do; each may what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look at jobs, events, metrics and logs.
    Viewer,
    /// Submit and change jobs, and fetch their files.
    Editor,
    /// Make tokens.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Editor, Self::Admin];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Editor => "editor",
            Self::Admin => "admin",
        }
    }

    /// The role of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Stands on what they submit.
    pub name: String,
    /// What they may.
    pub role: Role,
    /// Where; `*` is everywhere.
    pub namespaces: Vec<String>,
}

impl Who {
    /// Refuses who may less than `role` in `namespace`.
    pub fn may(&self, role: Role, namespace: &str) -> Result<()> {
        let here = namespace != "-" && self.namespaces.iter().any(|known| known == "*" || known == namespace);
        let everywhere = self.everywhere();
        if self.role >= role && (here || everywhere) {
            return Ok(());
        }
        let where_ =
            if namespace == "-" { "in all namespaces".to_owned() } else { format!("in namespace {namespace}") };
        let detail = format!(
            "{} is {} in {}, and this takes {} {where_}: ask an administrator for a token",
            self.name,
            self.role.as_str(),
            self.namespaces.join(", "),
            role.as_str()
        );
        Err(Refusal::new(Reason::Forbidden, detail))
    }

    /// Whether they may in all namespaces.
    pub fn everywhere(&self) -> bool {
        self.namespaces.iter().any(|known| known == "*")
    }
}

impl FromRequestParts<Arc<Api>> for Who {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self> {
        let found = find(parts, api).await;
        api.pace.count(found.as_ref().ok().map(|(id, _)| id.as_str()))?;
        found.map(|(_, who)| who)
    }
}

/// Who asks, and the id of their token.
async fn find(parts: &mut Parts, api: &Arc<Api>) -> Result<(String, Who)> {
    // A token never stands where logs and histories keep it.
    let Asked(asked) = Asked::<std::collections::HashMap<String, String>>::from_request_parts(parts, api).await?;
    if asked.keys().any(|key| key == "token" || key == "access_token") {
        let detail = "a token travels in the header Authorization, never in the address";
        return Err(Refusal::new(Reason::BadRequest, detail));
    }
    if let Some(secret) = bearer(&parts.headers)? {
        return by_token(api, secret).await;
    }
    if let Some(secret) = session::secret(&parts.headers) {
        session::check_origin(&parts.method, &parts.headers)?;
        return by_token(api, secret).await;
    }
    match api.access {
        Access::Open => {
            from_this_machine(&parts.headers)?;
            let who = Who { name: "local".to_owned(), role: Role::Admin, namespaces: vec!["*".to_owned()] };
            Ok((who.name.clone(), who))
        }
        Access::Tokens => Err(Refusal::new(
            Reason::Unauthorized,
            "send a token in the header `Authorization: Bearer TOKEN`; an administrator makes one with `millrace-api token`",
        )),
    }
}

/// The token in the header `Authorization`, if there is one.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<&str>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let secret = value.to_str().ok().and_then(|text| {
        let (scheme, secret) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
    });
    let secret = secret.filter(|secret| !secret.is_empty());
    secret.map(Some).ok_or_else(|| Refusal::new(Reason::Unauthorized, "the header Authorization is not `Bearer TOKEN`"))
}

async fn by_token(api: &Api, secret: &str) -> Result<(String, Who)> {
    let refused = || Refusal::new(Reason::Unauthorized, "the token is unknown, expired or revoked: ask for a new one");
    let token = api.store.token_by_hash(&secret_hash(secret)).await?.ok_or_else(refused)?;
    let now = Timestamp::now().as_millisecond();
    let over = token.revoked_ms.is_some() || token.expires_ms.is_some_and(|expires| expires <= now);
    let role = Role::from_name(&token.role).filter(|_| !over).ok_or_else(refused)?;
    api.store.touch_token(&token, now).await?;
    Ok((token.id, Who { name: token.name, role, namespaces: token.namespaces }))
}

/// An open server is this machine's, and not any web page's that a browser on it shows: neither one of another origin nor one
/// whose name was made to lead here.
fn from_this_machine(headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let local = |host: &str| {
        let name = if host.starts_with('[') { host.split(']').next() } else { host.split(':').next() };
        matches!(name, Some("localhost" | "127.0.0.1" | "[::1"))
    };
    let host = text(header::HOST).unwrap_or("localhost");
    let origin = text(header::ORIGIN).map(|origin| origin.split("://").nth(1).unwrap_or(origin));
    if local(host) && origin.is_none_or(|origin| origin == host) {
        return Ok(());
    }
    Err(Refusal::new(Reason::Forbidden, "without a token this server answers only programs and pages of this machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_server_answers_no_foreign_page() {
        let headers = |pairs: &[(header::HeaderName, &str)]| {
            pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        for good in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "localhost"] {
            from_this_machine(&headers(&[(header::HOST, good)])).unwrap();
        }
        let own = [(header::HOST, "localhost:8080"), (header::ORIGIN, "http://localhost:8080")];
        from_this_machine(&headers(&own)).unwrap();
        for (host, origin) in [
            ("evil.example:8080", None),
            ("localhost:8080", Some("https://evil.example")),
            ("localhost:8080", Some("null")),
        ] {
            let mut pairs = vec![(header::HOST, host)];
            pairs.extend(origin.map(|origin| (header::ORIGIN, origin)));
            assert!(from_this_machine(&headers(&pairs)).is_err(), "{host} {origin:?}");
        }
    }

    #[test]
    fn roles_and_namespaces_bound_what_somebody_may() {
        let who = |role, namespaces: &[&str]| Who {
            name: "ann".to_owned(),
            role,
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
        };
        let editor = who(Role::Editor, &["a", "b"]);
        assert!(editor.may(Role::Viewer, "a").is_ok() && editor.may(Role::Editor, "b").is_ok());
        for (role, namespace) in [(Role::Admin, "a"), (Role::Viewer, "c"), (Role::Viewer, "-"), (Role::Viewer, "*")] {
            assert!(editor.may(role, namespace).is_err(), "{role:?} {namespace}");
        }
        assert!(who(Role::Viewer, &["*"]).may(Role::Viewer, "-").is_ok());
    }
}
