//! Sessions of browsers: a token is exchanged for a cookie that no script can read and no page of another site can use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use k8s_openapi::jiff::Timestamp;
use millrace_store::{Store, TokenRecord};
use schemars::JsonSchema;
use serde::Serialize;

use super::auth::{Caller, Permissions, bearer};
use super::tokens::{new_secret, secret_hash};
use super::{AppState, rfc3339};
use crate::error::{ApiError, ErrorReason, Result};

pub const SESSION_COOKIE: &str = "millrace_session";
/// Duration of a session; it ends earlier if its token expires.
pub const MAX_SESSION_HOURS: i64 = 12;

/// Returns the secret in the cookie, if there is one.
pub fn secret(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|value| value.split(';'))
        .find_map(|cookie| cookie.trim().strip_prefix(SESSION_COOKIE)?.strip_prefix('='))
}

/// Checks that a request with a cookie which changes something comes from a page of this server, to reject cross-site
/// request forgery.
///
/// # Errors
/// It comes from elsewhere, or the browser does not send its origin.
pub fn check_origin(method: &Method, headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    // The host alone does not tell apart a page of this host served over plain HTTP; browsers report that in this
    // header.
    let same = text(HeaderName::from_static("sec-fetch-site")).is_none_or(|site| site == "same-origin");
    if method.is_safe() || same && origin.is_some() && origin == text(header::HOST) {
        return Ok(());
    }
    Err(ApiError::new(ErrorReason::Forbidden, "a session may change things only from pages of this server"))
}

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

/// Returns the token that a session is created with.
///
/// # Errors
/// The header `Authorization` is missing or malformed.
pub fn required_bearer(headers: &HeaderMap) -> Result<&str> {
    bearer(headers)?.ok_or_else(|| {
        ApiError::new(
            ErrorReason::Unauthorized,
            "a session begins with a token in the header `Authorization: Bearer TOKEN`",
        )
    })
}

/// Creates a session of the caller's token and sets its cookie.
pub async fn create_session(
    State(api): State<Arc<AppState>>,
    Caller { principal, .. }: Caller,
    headers: HeaderMap,
) -> Result<([(HeaderName, HeaderValue); 1], Json<SessionStarted>)> {
    let given = required_bearer(&headers)?;
    let now = Timestamp::now().as_millisecond();
    let most = now + MAX_SESSION_HOURS * 3_600_000;
    let Permissions::Role { role, namespaces } = principal.rights else {
        // Only the cluster knows when its token expires: the cookie holds the token itself, which is validated with
        // each request.
        let told = SessionStarted { name: principal.name, expires_at: rfc3339(most) };
        return Ok((cookie(given, (most - now) / 1000)?, Json(told)));
    };
    let Some(token) = api.store.token_by_hash(&secret_hash(given)).await? else {
        return Err(ApiError::new(ErrorReason::Unauthorized, "the token no longer exists"));
    };
    let until = token.expires_ms.map_or(most, |until| until.min(most));
    let secret = new_secret();
    let session = TokenRecord {
        id: session_id(&token.id),
        hash: secret_hash(&secret),
        name: principal.name.clone(),
        role: role.as_str().to_owned(),
        namespaces,
        created_ms: now,
        expires_ms: Some(until),
        revoked_ms: None,
        last_used_ms: None,
    };
    api.store.add_token(&session).await?;
    Ok((
        cookie(&secret, (until - now) / 1000)?,
        Json(SessionStarted { name: principal.name, expires_at: rfc3339(until) }),
    ))
}

/// Separator in the id of every session; other tokens have none.
pub const SESSION_SEPARATOR: &str = ".";

/// Returns a new id for a session of the token `id`, which is revoked together with it.
fn session_id(id: &str) -> String {
    format!("{id}{SESSION_SEPARATOR}{}", uuid::Uuid::new_v4())
}

/// Returns the id of the token that the session `id` belongs to, or `id` itself if it is a token's.
pub fn token_of(id: &str) -> &str {
    id.split_once(SESSION_SEPARATOR).map_or(id, |(token, _)| token)
}

/// Whether this is the id of a session.
pub fn is_session(id: &str) -> bool {
    id.contains(SESSION_SEPARATOR)
}

/// Whether `session` is a session of the token `id`.
pub fn belongs_to_token(session: &str, id: &str) -> bool {
    session.strip_prefix(id).is_some_and(|rest| rest.starts_with(SESSION_SEPARATOR))
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
pub async fn delete_session(
    State(api): State<Arc<AppState>>,
    headers: HeaderMap,
) -> Result<([(HeaderName, HeaderValue); 1], Json<SessionEnded>)> {
    if let Some(secret) = secret(&headers)
        && let Some(session) = api.store.token_by_hash(&secret_hash(secret)).await?
    {
        api.store.revoke_token(&session.id, Timestamp::now().as_millisecond()).await?;
    }
    Ok((cookie("", 0)?, Json(SessionEnded { ended: true })))
}

fn cookie(secret: &str, seconds: i64) -> Result<[(HeaderName, HeaderValue); 1]> {
    let value = format!("{SESSION_COOKIE}={secret}; Path=/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Strict");
    let value = HeaderValue::try_from(value).map_err(|error| ApiError::internal("make a cookie", &error))?;
    Ok([(header::SET_COOKIE, value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_read_and_cross_site_changes_are_rejected() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; millrace_session=s3cret; millrace_sessions=x"));
        assert_eq!(secret(&headers), Some("s3cret"));
        headers.insert(header::HOST, HeaderValue::from_static("appliance.example"));
        assert!(check_origin(&Method::GET, &headers).is_ok());
        assert!(check_origin(&Method::POST, &headers).is_err(), "a browser says where a change comes from");
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://evil.example"));
        assert!(check_origin(&Method::DELETE, &headers).is_err());
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://appliance.example"));
        assert!(check_origin(&Method::POST, &headers).is_ok());
    }
}
