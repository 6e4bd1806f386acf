//! Reads bodies of requests, completely and within a time limit; all routes return the same errors for invalid ones.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::multipart::Field;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures::{StreamExt as _, TryStreamExt as _};
use serde::de::DeserializeOwned;

use super::json::UniqueKeysJson;
use crate::blobs::ByteStream;
use crate::error::{ApiError, ErrorReason, FieldError, Result};

/// Time to receive the whole body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `reading` with the time limit for receiving a body.
///
/// # Errors
/// Those of [`reading`], and [`ErrorReason::RequestTimeout`].
pub async fn with_body_timeout<T>(reading: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| {
        let detail =
            format!("the request body was not received within {} s: send the request again", BODY_TIMEOUT.as_secs());
        Err(ApiError::new(ErrorReason::RequestTimeout, detail))
    })
}

/// Returns the body as it arrives, whatever its length. It ends with an error if nothing arrives for [`BODY_TIMEOUT`],
/// or if the connection is closed before its end.
pub fn body_stream(request: Request) -> ByteStream {
    let blocks = request.into_body().into_data_stream().map_err(|error| malformed_body("complete", &error));
    let blocks = tokio_stream::StreamExt::timeout(blocks, BODY_TIMEOUT);
    let blocks = blocks.map(|block| {
        block.unwrap_or_else(|_| {
            let detail = format!("nothing of the body arrived for {} s: continue the upload", BODY_TIMEOUT.as_secs());
            Err(ApiError::new(ErrorReason::RequestTimeout, detail))
        })
    });
    blocks.boxed()
}

/// Returns the length of a body, if the client states it.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body of JSON.
///
/// # Errors
/// The body is of another media type, is too slow or too long, or does not match the type.
pub async fn read_json<T: DeserializeOwned>(request: Request) -> Result<T> {
    match media_type(request.headers())?.as_str() {
        "application/json" | "" => parse_json("JSON", &with_body_timeout(read_all(request)).await?),
        other => Err(unsupported_media_type(other, "application/json")),
    }
}

/// Parses an object of JSON. `what` names the format in messages.
///
/// # Errors
/// The body is no JSON object or has a duplicate key ([`ErrorReason::BadRequest`]), or it does not match the type
/// ([`ErrorReason::Invalid`], with the path of the field).
pub fn parse_json<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T> {
    let UniqueKeysJson(value) = serde_json::from_slice(body).map_err(|error| malformed_body(what, &error))?;
    if !value.is_object() {
        return Err(malformed_body(what, &"expected a JSON object"));
    }
    let invalid = |field: String, message: String| ApiError::invalid(vec![FieldError { field, message }]);
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, message) = (error.path().to_string(), error.inner().to_string());
        let missing = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        match (path.as_str(), missing) {
            // The path of the document itself is a dot.
            (".", Some(name)) => invalid(name.to_owned(), "Required value".to_owned()),
            (".", None) => invalid(String::new(), message),
            _ => invalid(path, message),
        }
    })
}

/// Returns the media type of a body in lower case, without its parameters; empty if the request has none.
///
/// # Errors
/// The body has a content encoding.
pub fn media_type(headers: &HeaderMap) -> Result<String> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(ApiError::new(
            ErrorReason::UnsupportedMediaType,
            "this endpoint does not accept an encoded body: send it without Content-Encoding",
        ));
    }
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    Ok(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// Builds the error for a body of media type `kind`; `read` lists the supported ones.
pub fn unsupported_media_type(kind: &str, read: &str) -> ApiError {
    ApiError::new(ErrorReason::UnsupportedMediaType, format!("this endpoint does not accept {kind}: send {read}"))
}

/// Reads the whole body.
///
/// # Errors
/// It is too long, or the connection is closed before its end.
pub async fn read_all(request: Request) -> Result<Bytes> {
    let read = Bytes::from_request(request, &()).await;
    read.map_err(|error| too_long_or_broken(error.status().as_u16(), &error.body_text()))
}

/// Reads the whole content of one part of a form.
///
/// # Errors
/// Those of [`read_all`].
pub async fn read_part(part: Field<'_>) -> Result<Bytes> {
    part.bytes().await.map_err(|error| too_long_or_broken(error.status().as_u16(), &error.body_text()))
}

fn too_long_or_broken(status: u16, message: &str) -> ApiError {
    if status == ErrorReason::PayloadTooLarge.status() {
        return ApiError::new(
            ErrorReason::PayloadTooLarge,
            "the request is too long: put data into a volume of the appliance",
        );
    }
    ApiError::new(ErrorReason::BadRequest, format!("the body can't be read: {message}"))
}

/// Builds the error for a body that is not `what` it has to be.
pub fn malformed_body(name: &str, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorReason::BadRequest, format!("the body is not {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value};

    #[derive(Debug, serde::Deserialize)]
    struct ExpectedBody {
        #[serde(rename = "numCsx")]
        num_csx: u32,
    }

    #[test]
    fn duplicate_and_unknown_keys_are_rejected() {
        let read = |text: &str| parse_json::<ExpectedBody>("JSON", text.as_bytes());
        assert_eq!(read(r#"{"numCsx": 2}"#).unwrap().num_csx, 2);
        for (text, reason, field) in [
            ("{", ErrorReason::BadRequest, None),
            (r#"{"numCsx": 2} {}"#, ErrorReason::BadRequest, None),
            (r#"{"numCsx": 2, "numCsx": 3}"#, ErrorReason::BadRequest, None),
            ("[2]", ErrorReason::BadRequest, None),
            ("{}", ErrorReason::Invalid, Some("numCsx")),
            (r#"{"numCsx": "2"}"#, ErrorReason::Invalid, Some("numCsx")),
        ] {
            let error = read(text).unwrap_err();
            let error_field = error.errors.first().map(|fault| fault.field.as_str());
            assert_eq!((error.reason, error_field), (reason, field), "{text}");
        }
        let document = r#"{"a": [1, -2, 0.5, true, null, "b"], "c": {"d": {}}}"#;
        let read: Map<String, Value> = parse_json("JSON", document.as_bytes()).unwrap();
        assert_eq!(Value::Object(read), serde_json::from_str::<Value>(document).unwrap());
    }
}
