//! API tokens: made once, shown once, kept as a digest.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use millrace_store::Token;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::who::{Act, Role, Who};
use super::{Api, Named, session, time};
use crate::refusal::{Fault, Reason, Refusal, Result};

/// How a secret begins, so that scanners of leaked secrets know it.
pub(super) const PREFIX: &str = "mrt_";

/// What is asked for.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewToken {
    /// Whose it is: stands on what they submit.
    pub name: String,
    /// viewer, editor or admin.
    pub role: String,
    /// Where; `*` is everywhere.
    pub namespaces: Vec<String>,
    /// How long it is good; for ever where this is left out.
    #[serde(default)]
    pub expires_in_seconds: Option<u32>,
}

/// The digest that is kept of a secret. A secret has 244 random bits, so that a fast digest is a safe one.
pub fn secret_hash(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

/// Whether a secret looks like one of this server's.
pub(super) fn is_ours(secret: &str) -> bool {
    secret.starts_with(PREFIX)
}

/// A secret that nobody has had before.
pub(super) fn new_secret() -> String {
    format!("{PREFIX}{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

impl NewToken {
    /// The token to keep, and its secret.
    ///
    /// # Errors
    /// A field is wrong.
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
        if self.namespaces.is_empty() || self.namespaces.iter().any(String::is_empty) {
            return fault("namespaces", "at least one; \"*\" is all of them");
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

fn shown(token: &Token) -> Value {
    json!({
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "namespaces": token.namespaces,
        "createdAt": time(token.created_ms),
        "expiresAt": token.expires_ms.map(time),
        "revokedAt": token.revoked_ms.map(time),
        "lastUsedAt": token.last_used_ms.map(time),
    })
}

/// All tokens, without their secrets.
pub async fn list(State(api): State<Arc<Api>>, who: Who) -> Result<Json<Value>> {
    who.may(Act::ListTokens, "", "").await?;
    let tokens = api.store.tokens().await?;
    // A browser's sessions go with their token.
    let tokens = tokens.iter().filter(|token| !session::is_one(&token.id));
    Ok(Json(json!({"items": tokens.map(shown).collect::<Vec<_>>()})))
}

/// Makes a token; the only time its secret is seen.
pub async fn create(State(api): State<Arc<Api>>, who: Who, body: Bytes) -> Result<(StatusCode, Json<Value>)> {
    who.may(Act::CreateToken, "", "").await?;
    let asked: NewToken = serde_json::from_slice(&body)
        .map_err(|error| Refusal::new(Reason::BadRequest, format!("the body is not a token's description: {error}")))?;
    let (token, secret) = asked.make()?;
    api.store.add_token(&token).await?;
    let mut made = shown(&token);
    made["token"] = secret.into();
    Ok((StatusCode::CREATED, Json(made)))
}

/// Revokes a token at once, and its sessions.
pub async fn revoke(State(api): State<Arc<Api>>, who: Who, Named(id): Named<String>) -> Result<Json<Value>> {
    who.may(Act::DeleteToken, "", "").await?;
    let now = Timestamp::now().as_millisecond();
    if !api.store.revoke_token(&id, now).await? {
        return Err(Refusal::new(Reason::NotFound, format!("there is no token {id} that could be revoked")));
    }
    for token in api.store.tokens().await?.iter().filter(|token| session::is_below(&token.id, &id)) {
        api.store.revoke_token(&token.id, now).await?;
    }
    Ok(Json(json!({"id": id, "revoked": true})))
}
