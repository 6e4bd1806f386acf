//! Uploads of users: announced, sent in parts, and named by jobs.
//!
//! ```text
//! POST  …/blobs                    {"digest": "blake3:…", "bytes": N}   ► how much the server has: received
//! PATCH …/blobs/DIGEST?offset=R    the next bytes, from `received` on   ► received; complete when it is N
//! ```

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use futures::{StreamExt as _, TryStreamExt as _};
use millrace_params::{BlobDigest, LabelName};
use schemars::JsonSchema;
use serde::Deserialize;

use super::body::{body_stream, content_length, media_type, read_json, unsupported_media_type};
use super::{AppState, ValidPath, ValidQuery};
use crate::blobs::{BlobList, BlobPart, BlobStatus};
use crate::error::{ApiError, ErrorReason, FieldError, Result};
use crate::submission::SubmitRequest;

/// Field of a job with the digest of its graph document, without which the job can't be planned.
const GRAPH_FIELD: &str = "spec.model.graph";

/// Uploads of a job that are checked at the same time: a check in a bucket takes two requests.
const MAX_CHECKS_IN_FLIGHT: usize = 16;

/// Path parameters of a blob.
#[derive(Clone, Debug, Deserialize)]
pub struct BlobPath {
    namespace: String,
    digest: String,
}

/// Body of the announcement of an upload.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BlobAnnouncement {
    /// Address of the blob: `blake3:` and the digest of its content in lower-case hexadecimal digits.
    digest: BlobDigest,
    /// Length of the blob in bytes.
    #[schemars(range(min = 1))]
    bytes: u64,
}

/// Query parameters of a part.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartQuery {
    /// Position of the first byte of the part in the blob: `received` of the previous response.
    offset: u64,
}

/// Lists the uploads of a namespace.
///
/// # Errors
/// [`ErrorReason::NotFound`]: the server stores no uploads, or the namespace does not exist. An error of the file
/// system, or of the cluster.
pub async fn list(State(api): State<Arc<AppState>>, ValidPath(ns): ValidPath<String>) -> Result<Json<BlobList>> {
    let (blobs, namespace) = api.backend.blobs(namespace(&ns)?).await?;
    Ok(Json(blobs.list(namespace).await?))
}

/// Announces an upload, or finds how much of it the server has.
///
/// # Errors
/// Those of [`list`]; [`ErrorReason::PayloadTooLarge`]: a limit of the namespace is exceeded. [`ErrorReason::Invalid`]:
/// the blob is known with another length.
pub async fn announce(
    State(api): State<Arc<AppState>>,
    ValidPath(ns): ValidPath<String>,
    request: Request,
) -> Result<Json<BlobStatus>> {
    let (blobs, namespace) = api.backend.blobs(namespace(&ns)?).await?;
    let BlobAnnouncement { digest, bytes } = read_json(request).await?;
    Ok(Json(blobs.announce(namespace, digest, bytes).await?))
}

/// Appends a part to an announced upload as it arrives. What arrived of an interrupted part is kept.
///
/// # Errors
/// Those of [`list`]; [`ErrorReason::NotFound`]: it was not announced. [`ErrorReason::Conflict`]: the part begins after
/// the next byte, or another one is being received. [`ErrorReason::Invalid`]: the content has another digest or length.
/// [`ErrorReason::RequestTimeout`]: nothing arrives for some time.
pub async fn append(
    State(api): State<Arc<AppState>>,
    ValidPath(path): ValidPath<BlobPath>,
    ValidQuery(PartQuery { offset }): ValidQuery<PartQuery>,
    request: Request,
) -> Result<Json<BlobStatus>> {
    let (blobs, namespace) = api.backend.blobs(namespace(&path.namespace)?).await?;
    match media_type(request.headers())?.as_str() {
        "application/octet-stream" | "" => {}
        other => return Err(unsupported_media_type(other, "application/octet-stream")),
    }
    let part = BlobPart { offset, bytes: content_length(request.headers()), content: body_stream(request) };
    Ok(Json(blobs.append(namespace, digest(path.digest)?, part).await?))
}

/// Deletes an upload. Jobs that name it can't start any more.
///
/// # Errors
/// Those of [`list`]; [`ErrorReason::NotFound`].
pub async fn delete(State(api): State<Arc<AppState>>, ValidPath(path): ValidPath<BlobPath>) -> Result<StatusCode> {
    let (blobs, namespace) = api.backend.blobs(namespace(&path.namespace)?).await?;
    blobs.remove(namespace, digest(path.digest)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Checks that the uploads that a submitted job names are complete, and keeps them until the job exists. A job that is
/// only planned or checked needs no more than its graph document.
///
/// # Errors
/// [`ErrorReason::Invalid`]: one is missing, with its field.
pub async fn check_uploads(api: &AppState, request: &SubmitRequest, will_create: bool) -> Result<()> {
    let spec = &request.object["spec"];
    let of_model = ["graph", "weights"].map(|key| (format!("spec.model.{key}"), &spec["model"][key]));
    let files = spec["files"].as_array().into_iter().flatten().enumerate();
    let of_files = files.map(|(at, file)| (format!("spec.files[{at}].digest"), &file["digest"]));
    let is_needed = |field: &str| will_create || field == GRAPH_FIELD;
    let mut needed = Vec::new();
    for (field, digest) in of_model.into_iter().chain(of_files).filter(|(field, _)| is_needed(field)) {
        let Some(digest) = digest.as_str() else { continue };
        let digest = BlobDigest::new(digest).map_err(|error| {
            ApiError::invalid(vec![FieldError { field: field.clone(), message: error.to_string() }])
        })?;
        needed.push((field, digest));
    }
    if needed.is_empty() {
        return Ok(());
    }
    let (blobs, namespace) = api.backend.blobs(namespace(&request.namespace)?).await?;
    let checks = needed.into_iter().map(|(field, digest)| blobs.use_blob(namespace.clone(), digest, field));
    futures::stream::iter(checks).buffered(MAX_CHECKS_IN_FLIGHT).try_collect().await
}

/// Returns the namespace of a request. [`ValidPath`] accepts names, and `-` for all namespaces.
fn namespace(text: &str) -> Result<LabelName> {
    LabelName::new(text).map_err(|_| ApiError::new(ErrorReason::BadRequest, "uploads belong to one namespace: name it"))
}

fn digest(text: String) -> Result<BlobDigest> {
    BlobDigest::new(text).map_err(|error| ApiError::new(ErrorReason::NotFound, error.to_string()))
}
