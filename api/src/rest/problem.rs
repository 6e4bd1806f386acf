//! A refusal on the wire: RFC 9457.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::refusal::{Reason, Refusal};

/// The answer with the path that was asked for, where it is a problem.
pub fn told(mut response: Response, path: &str) -> Response {
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        let mut told = refusal.response(Some(path));
        // What stands in its head besides, such as the length of a file.
        for (name, value) in response.headers() {
            if *name != header::CONTENT_LENGTH {
                told.headers_mut().insert(name.clone(), value.clone());
            }
        }
        return told;
    }
    // What was refused before a handler saw it.
    let refusal = match response.status() {
        _ if !path.starts_with("/v1/") => return response,
        StatusCode::SERVICE_UNAVAILABLE => (Reason::Unavailable, "the answer took too long: try again"),
        StatusCode::PAYLOAD_TOO_LARGE => {
            (Reason::PayloadTooLarge, "the body has more bytes than a request may have, 8 MiB")
        }
        StatusCode::BAD_REQUEST => (Reason::BadRequest, "the body broke off, or is not as HTTP has it"),
        _ => return response,
    };
    if response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM) {
        return response;
    }
    Refusal::new(refusal.0, refusal.1).response(Some(path))
}

const PROBLEM: &str = "application/problem+json";

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.response(None);
        response.extensions_mut().insert(self);
        response
    }
}

impl Refusal {
    fn response(&self, instance: Option<&str>) -> Response {
        let status = StatusCode::from_u16(self.reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut problem = json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "reason": self.reason.as_str(),
            "detail": self.detail,
        });
        if let Some(instance) = instance {
            problem["instance"] = instance.into();
        }
        if !self.errors.is_empty() {
            problem["errors"] = json!(self.errors);
        }
        let mut response = (status, problem.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        match self.reason {
            Reason::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Reason::TooManyRequests | Reason::Unavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
