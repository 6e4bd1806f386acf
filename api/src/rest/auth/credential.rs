//! Credentials of clients: the secrets of API tokens and sessions, and how a request carries them.
//!
//! * A token is sent in the header `Authorization`, a session in a cookie, and only the digest of a secret is stored.
//! * A session has a token's id, a separator and an id of its own, so that it is revoked together with the token.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use crate::error::{ApiError, ErrorReason, Result};

/// Stands for all namespaces in the namespaces of a token.
pub const ALL_NAMESPACES: &str = "*";

/// Prefix of secrets, by which scanners find leaked ones.
pub const TOKEN_PREFIX: &str = "mrt_";

pub const SESSION_COOKIE: &str = "millrace_session";
/// Separator in the id of every session; other tokens have none.
pub const SESSION_SEPARATOR: &str = ".";

/// Returns the digest of a secret that is stored. A secret has 244 random bits, so a fast digest is safe.
pub fn secret_hash(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

/// Whether a secret has the form of an API token of this server.
pub fn has_token_prefix(secret: &str) -> bool {
    secret.starts_with(TOKEN_PREFIX)
}

pub fn new_secret() -> String {
    format!("{TOKEN_PREFIX}{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

/// Returns the credential of a request, valid or not.
pub fn request_secret(headers: &HeaderMap) -> Option<&str> {
    bearer(headers).ok().flatten().or_else(|| session_cookie(headers))
}

/// Returns the token in the header `Authorization`, if there is one.
///
/// # Errors
/// [`ErrorReason::Unauthorized`]: the header is malformed.
pub fn bearer(headers: &HeaderMap) -> Result<Option<&str>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let secret = value.to_str().ok().and_then(|text| {
        let (scheme, secret) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
    });
    let secret = secret.filter(|secret| !secret.is_empty());
    secret
        .map(Some)
        .ok_or_else(|| ApiError::new(ErrorReason::Unauthorized, "the header Authorization is not `Bearer TOKEN`"))
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

/// Returns the secret in the cookie of a session, if there is one.
pub fn session_cookie(headers: &HeaderMap) -> Option<&str> {
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

/// Returns a new id for a session of the token `id`, which is revoked together with it.
pub fn session_id(id: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_read_and_cross_site_changes_are_rejected() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; millrace_session=s3cret; millrace_sessions=x"));
        assert_eq!(session_cookie(&headers), Some("s3cret"));
        headers.insert(header::HOST, HeaderValue::from_static("appliance.example"));
        assert!(check_origin(&Method::GET, &headers).is_ok());
        assert!(check_origin(&Method::POST, &headers).is_err(), "a browser says where a change comes from");
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://evil.example"));
        assert!(check_origin(&Method::DELETE, &headers).is_err());
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://appliance.example"));
        assert!(check_origin(&Method::POST, &headers).is_ok());
    }
}
