//! API tokens. The secret is returned once, and only its digest is stored.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use millrace_store::TokenRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::auth::{ALL_NAMESPACES, TokenRole, credential};
use super::body::read_json;
use super::{AppState, ItemList, NAMESPACE_RULE, ValidPath, is_label, rfc3339};
use crate::error::{ApiError, ErrorReason, FieldError, Result};

/// Body of a request to create a token.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    /// Name of the owner, recorded as the submitter of jobs.
    pub name: String,
    /// Role of the token.
    #[schemars(extend("enum" = TokenRole::ALL.map(TokenRole::as_str)))]
    pub role: String,
    /// Namespaces in which the token is valid; `*` means all.
    #[schemars(length(min = 1))]
    pub namespaces: Vec<String>,
    /// Seconds until the token expires; never if omitted.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub expires_in_seconds: Option<u32>,
}

impl TokenRequest {
    /// Generates a token; returns its record and its secret.
    ///
    /// # Errors
    /// A field is invalid.
    pub fn generate(&self) -> Result<(TokenRecord, String)> {
        let fault = |field: &str, message: &str| {
            Err(ApiError::invalid(vec![FieldError { field: field.to_owned(), message: message.to_owned() }]))
        };
        if self.name.is_empty() || self.name.len() > 253 || self.name.chars().any(char::is_control) {
            return fault("name", "must have 1 to 253 characters");
        }
        if TokenRole::from_name(&self.role).is_none() {
            return fault("role", "must be viewer, editor or admin");
        }
        if self.namespaces.is_empty() {
            return fault("namespaces", "at least one; \"*\" means all");
        }
        if let Some(at) = self.namespaces.iter().position(|name| name != ALL_NAMESPACES && !is_label(name)) {
            return fault(&format!("namespaces[{at}]"), &format!("{NAMESPACE_RULE}; \"*\" means all"));
        }
        if self.expires_in_seconds == Some(0) {
            return fault("expiresInSeconds", "at least 1; leave it out for a token that never expires");
        }
        let secret = credential::new_secret();
        let now = Timestamp::now().as_millisecond();
        let token = TokenRecord {
            id: uuid::Uuid::new_v4().to_string(),
            hash: credential::secret_hash(&secret),
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

/// A token without its secret.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    /// Id of the token.
    id: String,
    /// Name of the owner.
    name: String,
    /// Role of the token.
    #[schemars(extend("enum" = TokenRole::ALL.map(TokenRole::as_str)))]
    role: String,
    /// Namespaces in which the token is valid; `*` means all.
    namespaces: Vec<String>,
    /// Time of creation, in the format of RFC 3339 like all times.
    created_at: String,
    /// Time at which it expires; null if never.
    expires_at: Option<String>,
    /// Time at which it was revoked; null if it was not.
    revoked_at: Option<String>,
    /// Time of the last use, accurate to about a minute.
    last_used_at: Option<String>,
}

/// A new token.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CreatedToken {
    #[serde(flatten)]
    shown: TokenView,
    /// The secret, which is only shown in this response.
    token: String,
}

/// Response to a revocation.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RevokedToken {
    /// Id of the token.
    id: String,
    /// Always true.
    revoked: bool,
}

fn token_view(token: &TokenRecord) -> TokenView {
    let TokenRecord { id, name, role, namespaces, .. } = token.clone();
    TokenView {
        id,
        name,
        role,
        namespaces,
        created_at: rfc3339(token.created_ms),
        expires_at: token.expires_ms.map(rfc3339),
        revoked_at: token.revoked_ms.map(rfc3339),
        last_used_at: token.last_used_ms.map(rfc3339),
    }
}

/// Lists all tokens, without their secrets.
///
/// # Errors
/// The database fails.
pub async fn list(State(api): State<Arc<AppState>>) -> Result<Json<ItemList<TokenView>>> {
    let tokens = api.store.tokens().await?;
    // Sessions are not listed: they end with their token.
    let tokens = tokens.iter().filter(|token| !credential::is_session(&token.id));
    Ok(Json(ItemList { items: tokens.map(token_view).collect() }))
}

/// Creates a token. This is the only response with its secret.
///
/// # Errors
/// The body can't be parsed, or has an invalid field. The database fails.
pub async fn create(State(api): State<Arc<AppState>>, request: Request) -> Result<(StatusCode, Json<CreatedToken>)> {
    let (token, secret) = read_json::<TokenRequest>(request).await?.generate()?;
    api.store.add_token(&token).await?;
    Ok((StatusCode::CREATED, Json(CreatedToken { shown: token_view(&token), token: secret })))
}

/// Revokes a token and its sessions immediately.
///
/// # Errors
/// [`ErrorReason::NotFound`]: there is no such token, or it is revoked. The database fails.
pub async fn revoke(State(api): State<Arc<AppState>>, ValidPath(id): ValidPath<String>) -> Result<Json<RevokedToken>> {
    let now = Timestamp::now().as_millisecond();
    if !api.store.revoke_token(&id, now).await? {
        return Err(ApiError::new(ErrorReason::NotFound, format!("no valid token {id} to revoke")));
    }
    for token in api.store.tokens().await?.iter().filter(|token| credential::belongs_to_token(&token.id, &id)) {
        api.store.revoke_token(&token.id, now).await?;
    }
    Ok(Json(RevokedToken { id, revoked: true }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_token_requests_are_rejected() {
        let request = |namespaces: &[&str], seconds| TokenRequest {
            name: "ci".to_owned(),
            role: "viewer".to_owned(),
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
            expires_in_seconds: seconds,
        };
        assert!(request(&["*"], None).generate().is_ok() && request(&["team-1", "a"], Some(1)).generate().is_ok());
        for (namespaces, seconds, field) in [
            (&[][..], None, "namespaces"),
            (&["a", ""], None, "namespaces[1]"),
            (&["Team"], None, "namespaces[0]"),
            (&["a"], Some(0), "expiresInSeconds"),
        ] {
            let error = request(namespaces, seconds).generate().unwrap_err();
            assert_eq!((error.reason, error.errors[0].field.as_str()), (ErrorReason::Invalid, field));
        }
    }
}
