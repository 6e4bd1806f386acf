//! A refusal on the wire: RFC 9457.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::refusal::{Reason, Refusal};

/// Header that names one answer, for who asks an administrator about it.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Gives every answer a name, and every problem the path that was asked for.
pub async fn named(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        let mut told = refusal.response(Some(&path));
        // What stands in its head besides, such as the length of a file.
        for (name, value) in response.headers() {
            if *name != header::CONTENT_LENGTH {
                told.headers_mut().insert(name.clone(), value.clone());
            }
        }
        response = told;
    } else if response.status() == StatusCode::SERVICE_UNAVAILABLE && path.starts_with("/v1/") {
        let late = Refusal::new(Reason::Unavailable, "the answer took too long: try again");
        response = late.response(Some(&path));
    }
    if let Ok(id) = HeaderValue::try_from(uuid::Uuid::new_v4().to_string()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

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
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
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
