//! Sessions of browsers: a token is exchanged for a cookie that no script can read and no page of another site can use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use k8s_openapi::jiff::Timestamp;
use millrace_store::{Store, TokenRecord};
use schemars::JsonSchema;
use serde::Serialize;

use super::auth::credential::{self, SESSION_COOKIE, SESSION_SEPARATOR};
use super::auth::{Caller, Permissions};
use super::{AppState, rfc3339};
use crate::error::{ApiError, ErrorReason, Result};

/// Duration of a session; it ends earlier if its token expires.
pub const MAX_SESSION_HOURS: i64 = 12;

/// A new session.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStarted {
    /// Identity of the session.
    name: String,
    /// Time at which it expires, in the format of RFC 3339.
    expires_at: String,
}

/// Response to the end of a session.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SessionEnded {
    /// Always true.
    ended: bool,
}

/// Creates a session of the caller's token and sets its cookie.
pub async fn create_session(
    State(api): State<Arc<AppState>>,
    Caller { principal, .. }: Caller,
    headers: HeaderMap,
) -> Result<([(HeaderName, HeaderValue); 1], Json<SessionStarted>)> {
    let token_secret = credential::required_bearer(&headers)?;
    let now = Timestamp::now().as_millisecond();
    let latest_expiry = now + MAX_SESSION_HOURS * 3_600_000;
    let Permissions::Role { role, namespaces } = principal.rights else {
        // Only the cluster knows when its token expires: the cookie holds the token itself, which is validated with
        // each request.
        let started = SessionStarted { name: principal.name, expires_at: rfc3339(latest_expiry) };
        return Ok((cookie(token_secret, (latest_expiry - now) / 1000)?, Json(started)));
    };
    let Some(token) = api.store.token_by_hash(&credential::secret_hash(token_secret)).await? else {
        return Err(ApiError::new(ErrorReason::Unauthorized, "the token no longer exists"));
    };
    let expiry = token.expires_ms.map_or(latest_expiry, |expiry| expiry.min(latest_expiry));
    let secret = credential::new_secret();
    let session = TokenRecord {
        id: credential::session_id(&token.id),
        hash: credential::secret_hash(&secret),
        name: principal.name.clone(),
        role: role.as_str().to_owned(),
        namespaces,
        created_ms: now,
        expires_ms: Some(expiry),
        revoked_ms: None,
        last_used_ms: None,
    };
    api.store.add_token(&session).await?;
    Ok((
        cookie(&secret, (expiry - now) / 1000)?,
        Json(SessionStarted { name: principal.name, expires_at: rfc3339(expiry) }),
    ))
}

/// Deletes expired sessions.
///
/// # Errors
/// The database fails.
pub async fn delete_expired(store: &Store) -> Result<()> {
    store.delete_expired_tokens(Some(SESSION_SEPARATOR), Timestamp::now().as_millisecond()).await?;
    Ok(())
}

/// Ends the session of the cookie and deletes the cookie. Idempotent.
///
/// # Errors
/// The database fails. A session that no longer exists is not an error.
pub async fn delete_session(
    State(api): State<Arc<AppState>>,
    headers: HeaderMap,
) -> Result<([(HeaderName, HeaderValue); 1], Json<SessionEnded>)> {
    if let Some(secret) = credential::session_cookie(&headers)
        && let Some(session) = api.store.token_by_hash(&credential::secret_hash(secret)).await?
    {
        api.store.revoke_token(&session.id, Timestamp::now().as_millisecond()).await?;
    }
    Ok((cookie("", 0)?, Json(SessionEnded { ended: true })))
}

fn cookie(secret: &str, seconds: i64) -> Result<[(HeaderName, HeaderValue); 1]> {
    let value = format!("{SESSION_COOKIE}={secret}; Path=/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Strict");
    let value = HeaderValue::try_from(value).map_err(|error| ApiError::internal("make a cookie", error))?;
    Ok([(header::SET_COOKIE, value)])
}
