//! API tokens. The secret is returned once, and only its digest is stored.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use millrace_store::Token;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::body::sent;
use super::who::{Act, EVERYWHERE, Role, Who};
use super::{Api, Items, NAMESPACE, Named, is_label, session, time};
use crate::refusal::{Fault, Reason, Refusal, Result};

/// Prefix of secrets, by which scanners find leaked ones.
pub(super) const PREFIX: &str = "mrt_";

/// What is asked for.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewToken {
    /// Whose it is: stands on what they submit.
    pub name: String,
    /// What they may.
    #[schemars(extend("enum" = Role::ALL.map(Role::as_str)))]
    pub role: String,
    /// Where; `*` is everywhere.
    #[schemars(length(min = 1))]
    pub namespaces: Vec<String>,
    /// How long it is good; for ever where this is left out.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub expires_in_seconds: Option<u32>,
}

/// Returns the digest of a secret that is stored. A secret has 244 random bits, so a fast digest is safe.
pub fn secret_hash(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

/// Whether a secret has the form of an API token of this server.
pub(super) fn is_ours(secret: &str) -> bool {
    secret.starts_with(PREFIX)
}

/// Generates a secret.
pub(super) fn new_secret() -> String {
    format!("{PREFIX}{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

impl NewToken {
    /// Generates a token; returns its record and its secret.
    ///
    /// # Errors
    /// A field is invalid.
    pub fn make(&self) -> Result<(Token, String)> {
        let fault = |field: &str, message: &str| {
            Err(Refusal::invalid(vec![Fault { field: field.to_owned(), message: message.to_owned() }]))
        };
        if self.name.is_empty() || self.name.len() > 253 || self.name.chars().any(char::is_control) {
            return fault("name", "1 to 253 characters");
        }
        if Role::from_name(&self.role).is_none() {
            return fault("role", "one of viewer, editor and admin");
        }
        if self.namespaces.is_empty() {
            return fault("namespaces", "at least one; \"*\" is all of them");
        }
        if let Some(at) = self.namespaces.iter().position(|name| name != EVERYWHERE && !is_label(name)) {
            return fault(&format!("namespaces[{at}]"), &format!("{NAMESPACE}; \"*\" is all of them"));
        }
        if self.expires_in_seconds == Some(0) {
            return fault("expiresInSeconds", "at least 1; leave it out for a token that is good for ever");
        }
        let secret = new_secret();
        let now = Timestamp::now().as_millisecond();
        let token = Token {
            id: uuid::Uuid::new_v4().to_string(),
            hash: secret_hash(&secret),
            name: self.name.clone(),
            role: self.role.clone(),
            namespaces: self.namespaces.clone(),
            created_ms: now,
            expires_ms: self.expires_in_seconds.map(|seconds| now + i64::from(seconds) * 1000),
            revoked_ms: None,
            last_used_ms: None,
        };
        Ok((token, secret))
    }
}

/// A token as it is seen.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    /// What it is revoked by.
    id: String,
    /// Whose it is.
    name: String,
    /// What they may.
    #[schemars(extend("enum" = Role::ALL.map(Role::as_str)))]
    role: String,
    /// Where; `*` is everywhere.
    namespaces: Vec<String>,
    /// When it was made, by RFC 3339 as all times.
    created_at: String,
    /// When it ends to be good; null: never.
    expires_at: Option<String>,
    /// When it was revoked.
    revoked_at: Option<String>,
    /// When it was used, to a minute or so.
    last_used_at: Option<String>,
}

/// A new token.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Made {
    #[serde(flatten)]
    shown: Shown,
    /// The secret, seen this once.
    token: String,
}

/// What became of a token.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Revoked {
    /// Which.
    id: String,
    /// That it is good no more.
    revoked: bool,
}

fn shown(token: &Token) -> Shown {
    let Token { id, name, role, namespaces, .. } = token.clone();
    Shown {
        id,
        name,
        role,
        namespaces,
        created_at: time(token.created_ms),
        expires_at: token.expires_ms.map(time),
        revoked_at: token.revoked_ms.map(time),
        last_used_at: token.last_used_ms.map(time),
    }
}

/// Lists all tokens, without their secrets.
pub async fn list(State(api): State<Arc<Api>>, who: Who) -> Result<Json<Items<Shown>>> {
    who.may(Act::ListTokens, "", "").await?;
    let tokens = api.store.tokens().await?;
    // Sessions are not listed: they end with their token.
    let tokens = tokens.iter().filter(|token| !session::is_one(&token.id));
    Ok(Json(Items { items: tokens.map(shown).collect() }))
}

/// Creates a token. This is the only response with its secret.
pub async fn create(State(api): State<Arc<Api>>, who: Who, request: Request) -> Result<(StatusCode, Json<Made>)> {
    who.may(Act::CreateToken, "", "").await?;
    let (token, secret) = sent::<NewToken>(request).await?.make()?;
    api.store.add_token(&token).await?;
    Ok((StatusCode::CREATED, Json(Made { shown: shown(&token), token: secret })))
}

/// Revokes a token and its sessions immediately.
pub async fn revoke(State(api): State<Arc<Api>>, who: Who, Named(id): Named<String>) -> Result<Json<Revoked>> {
    who.may(Act::DeleteToken, "", "").await?;
    let now = Timestamp::now().as_millisecond();
    if !api.store.revoke_token(&id, now).await? {
        return Err(Refusal::new(Reason::NotFound, format!("there is no token {id} that could be revoked")));
    }
    for token in api.store.tokens().await?.iter().filter(|token| session::is_below(&token.id, &id)) {
        api.store.revoke_token(&token.id, now).await?;
    }
    Ok(Json(Revoked { id, revoked: true }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_could_never_be_used_is_not_made() {
        let asked = |namespaces: &[&str], seconds| NewToken {
            name: "ci".to_owned(),
            role: "viewer".to_owned(),
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
            expires_in_seconds: seconds,
        };
        assert!(asked(&["*"], None).make().is_ok() && asked(&["team-1", "a"], Some(1)).make().is_ok());
        for (namespaces, seconds, field) in [
            (&[][..], None, "namespaces"),
            (&["a", ""], None, "namespaces[1]"),
            (&["Team"], None, "namespaces[0]"),
            (&["a"], Some(0), "expiresInSeconds"),
        ] {
            let refusal = asked(namespaces, seconds).make().unwrap_err();
            assert_eq!((refusal.reason, refusal.errors[0].field.as_str()), (Reason::Invalid, field));
        }
    }
}
