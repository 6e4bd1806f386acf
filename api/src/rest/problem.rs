//! Errors as HTTP responses: problem details of RFC 9457.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{ApiError, ErrorReason, FieldError};

/// Adds the requested path to a response with problem details, and passes its error to `log`. Errors of the middleware
/// are turned into problem details.
pub fn with_instance(mut response: Response, path: &str, log: impl FnOnce(&ApiError)) -> Response {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        log(&error);
        let mut problem = error.response(Some(path));
        // Other headers, such as the length of a file in `Content-Range`.
        for (name, value) in response.headers() {
            if *name != header::CONTENT_LENGTH {
                problem.headers_mut().insert(name.clone(), value.clone());
            }
        }
        return problem;
    }
    // Rejected before a handler was called.
    let error = match response.status() {
        _ if !path.starts_with("/v1/") => return response,
        StatusCode::SERVICE_UNAVAILABLE => (ErrorReason::Unavailable, "the request timed out: try again"),
        StatusCode::PAYLOAD_TOO_LARGE => (ErrorReason::PayloadTooLarge, "the request body exceeds the limit of 8 MiB"),
        StatusCode::BAD_REQUEST => (ErrorReason::BadRequest, "the request body was truncated or malformed"),
        _ => return response,
    };
    if response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_MEDIA_TYPE) {
        return response;
    }
    ApiError::new(error.0, error.1).response(Some(path))
}

/// An error response (RFC 9457).
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Problem<'a> {
    /// Always about:blank; see `reason`.
    #[serde(rename = "type")]
    kind: &'a str,
    /// The HTTP status in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    /// The HTTP status.
    status: u16,
    /// Cause in one word, for programs; equal to the reason of a condition if there is one.
    reason: &'a str,
    /// What happened and what to do, as a sentence.
    detail: &'a str,
    /// The requested path.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    /// The invalid fields, if any.
    #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
    errors: &'a [FieldError],
}

const PROBLEM_MEDIA_TYPE: &str = "application/problem+json";

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.response(None);
        response.extensions_mut().insert(self);
        response
    }
}

impl ApiError {
    fn response(&self, instance: Option<&str>) -> Response {
        let status = StatusCode::from_u16(self.reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let problem = Problem {
            kind: "about:blank",
            title: status.canonical_reason(),
            status: status.as_u16(),
            reason: self.reason.as_str(),
            detail: &self.client_detail(),
            instance,
            errors: &self.errors,
        };
        let mut response = (status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_MEDIA_TYPE));
        match self.reason {
            ErrorReason::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ErrorReason::TooManyRequests | ErrorReason::Unavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // The connection is closed because the rest of the body is not read.
            ErrorReason::RequestTimeout => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::error_chain;

    use super::*;

    #[tokio::test]
    async fn cause_of_an_error_is_logged_and_not_sent() {
        let location = "postgres://db.internal/millrace".to_owned();
        let unreachable = millrace_store::Error::Unreachable { location, cause: "connection refused".to_owned() };
        let mut logged = Vec::new();
        let response = ApiError::from(unreachable).into_response();
        let response = with_instance(response, "/v1/trainjobs", |error| logged.push(error_chain(error)));
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["detail"], "the database is not responding: try again in a moment");
        assert_eq!(problem["reason"], "Unavailable");
        let [line] = &logged[..] else { panic!("logged {} times", logged.len()) };
        assert!(line.starts_with("the database is not responding"), "{line}");
        assert!(line.contains("db.internal") && line.contains("connection refused"), "{line}");
    }
}
