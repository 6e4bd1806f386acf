//! Serves the files of a job, whole or by range.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use millrace_crds::TrainJob;
use millrace_protocol::error_chain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AppState, ItemList, JobPath, JobSelector, ValidPath, ValidQuery, bad_query_parameter};
use crate::document::job_of;
use crate::error::{ApiError, ErrorReason, Result};
use crate::files::{CheckpointFiles, FileInfo, FileSet, Files, OpenFile};

/// Suffix of a checkpoint's step that requests its export to another format.
const EXPORT_SUFFIX: &str = ":export";

/// Path parameters of a checkpoint.
#[derive(Clone, Debug, Deserialize)]
pub struct FileSetPath {
    namespace: String,
    name: String,
    checkpoint: String,
}

/// Path parameters of a file; without `checkpoint` it is an artifact.
#[derive(Clone, Debug, Deserialize)]
pub struct FilePath {
    namespace: String,
    name: String,
    checkpoint: Option<String>,
    path: String,
}

/// Query parameters: the job and the format.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileQuery {
    /// UID of an older job with this name.
    uid: Option<String>,
    /// Format: native for STEP, or hf for STEP:export, a directory that `transformers` loads.
    #[schemars(extend("enum" = ["native", "hf"]))]
    format: Option<String>,
}

/// Returns the files of a job: the newest of its name, or the one with this UID.
///
/// # Errors
/// Those of [`checkpoints`].
pub async fn files_of(api: &AppState, path: &JobPath, uid: Option<&str>) -> Result<Arc<dyn Files>> {
    let row = api.job(path, uid).await?;
    let job = job_of(&row)?;
    if uid.is_some()
        && let Some(newest) = api.store.newest_job(&path.namespace, &path.name).await?
        && newest.uid != row.uid
        && model_dir(&job_of(&newest)?) == model_dir(&job)
    {
        let detail = format!("job {} now uses this model_dir: omit ?uid= to get its files", row.name);
        return Err(ApiError::new(ErrorReason::Gone, detail));
    }
    api.backend.files(&job).await
}

/// Returns the directory that a job writes to.
fn model_dir(job: &TrainJob) -> Option<&str> {
    job.status.as_ref()?.resolved.as_ref()?.model_dir.as_deref()
}

/// The files of a checkpoint.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FileSetListing {
    /// The files.
    files: Vec<FileInfo>,
}

/// Lists the checkpoints of a job, the newest first.
///
/// # Errors
/// [`ErrorReason::NotFound`]: no such job, or it has no files yet. [`ErrorReason::Gone`]: its files were deleted,
/// belong to a newer job, or can't be read. The files or the database fail.
pub async fn checkpoints(
    State(api): State<Arc<AppState>>,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
) -> Result<Json<ItemList<CheckpointFiles>>> {
    let files = files_of(&api, &path, selector.uid.as_deref()).await?;
    Ok(Json(ItemList { items: files.checkpoints().await? }))
}

/// Lists the files of a job that are not part of a checkpoint.
///
/// # Errors
/// Those of [`checkpoints`].
pub async fn artifacts(
    State(api): State<Arc<AppState>>,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
) -> Result<Json<ItemList<FileInfo>>> {
    let files = files_of(&api, &path, selector.uid.as_deref()).await?;
    Ok(Json(ItemList { items: files.list(&FileSet::Artifacts).await? }))
}

/// Lists the files of one checkpoint, in a format.
///
/// # Errors
/// Those of [`checkpoints`]; [`ErrorReason::NotFound`] also without that checkpoint, [`ErrorReason::BadRequest`] for an
/// unknown format. An export may be [`ErrorReason::TooManyRequests`] or [`ErrorReason::PayloadTooLarge`].
pub async fn list_checkpoint_files(
    State(api): State<Arc<AppState>>,
    ValidPath(at): ValidPath<FileSetPath>,
    ValidQuery(query): ValidQuery<FileQuery>,
) -> Result<Json<FileSetListing>> {
    let file_set = parse_checkpoint(&at.checkpoint, query.format.as_deref())?;
    let path = JobPath { namespace: at.namespace, name: at.name };
    let files = files_of(&api, &path, query.uid.as_deref()).await?;
    let files = files.list(&file_set).await?;
    if files.is_empty() {
        return Err(ApiError::new(
            ErrorReason::NotFound,
            format!("checkpoint {} not found for this job", at.checkpoint),
        ));
    }
    Ok(Json(FileSetListing { files }))
}

/// Returns a file of a checkpoint.
///
/// # Errors
/// Those of [`list_checkpoint_files`]. A range that the file does not have is a response with status 416. An error
/// after the response has begun closes the connection.
pub async fn get_checkpoint_file(
    State(api): State<Arc<AppState>>,
    ValidPath(at): ValidPath<FilePath>,
    ValidQuery(query): ValidQuery<FileQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let file_set = parse_checkpoint(at.checkpoint.as_deref().unwrap_or_default(), query.format.as_deref())?;
    let path = JobPath { namespace: at.namespace, name: at.name };
    let files = files_of(&api, &path, query.uid.as_deref()).await?;
    file_response(files.open(&file_set, &at.path).await?, &headers).await
}

/// Returns a file that is not part of a checkpoint.
///
/// # Errors
/// Those of [`checkpoints`]; [`ErrorReason::NotFound`] also without that file. Otherwise as [`get_checkpoint_file`].
pub async fn get_artifact(
    State(api): State<Arc<AppState>>,
    ValidPath(at): ValidPath<FilePath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
    headers: HeaderMap,
) -> Result<Response> {
    let path = JobPath { namespace: at.namespace, name: at.name };
    let files = files_of(&api, &path, selector.uid.as_deref()).await?;
    file_response(files.open(&FileSet::Artifacts, &at.path).await?, &headers).await
}

/// Parses `100` or `100:export`, together with the query parameter `format`.
fn parse_checkpoint(text: &str, format: Option<&str>) -> Result<FileSet> {
    let (step, export) = text.strip_suffix(EXPORT_SUFFIX).map_or((text, false), |step| (step, true));
    let read = step.parse().ok().filter(|number: &u64| number.to_string() == step);
    let step = read.ok_or_else(|| ApiError::new(ErrorReason::NotFound, format!("{step:?} is not a step number")))?;
    match (export, format) {
        (false, None | Some("native")) => Ok(FileSet::Checkpoint(step)),
        (true, Some("hf")) => Ok(FileSet::HuggingFace(step)),
        (false, Some("hf")) => {
            Err(bad_query_parameter("format", &format!("hf only under checkpoints/{step}{EXPORT_SUFFIX}?format=hf")))
        }
        (true, None | Some("native")) => Err(bad_query_parameter(
            "format",
            &format!("hf under checkpoints/{step}{EXPORT_SUFFIX}: add ?format=hf, or request checkpoints/{step}"),
        )),
        _ => Err(bad_query_parameter("format", "native or hf")),
    }
}

/// Builds the response with a file or the requested range of it; 304 if the client has the current version.
async fn file_response(opened: OpenFile, headers: &HeaderMap) -> Result<Response> {
    let OpenFile { bytes, tag, content } = opened;
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let same = |etag: &str| etag == "*" || etag.strip_prefix("W/").unwrap_or(etag) == tag;
    if text(header::IF_NONE_MATCH).is_some_and(|etag| etag.split(',').any(|etag| same(etag.trim()))) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let unchanged = text(header::IF_RANGE).is_none_or(|etag| etag == tag);
    let range = match text(header::RANGE).filter(|_| unchanged) {
        Some(range) => match parse_range(range, bytes) {
            Ok(range) => range,
            Err(error) => return Ok(([(header::CONTENT_RANGE, format!("bytes */{bytes}"))], error).into_response()),
        },
        None => None,
    };
    let (first, last) = range.unwrap_or((0, bytes.saturating_sub(1)));
    let length = if bytes == 0 { 0 } else { last - first + 1 };
    // The status is sent by then, so an error closes the connection.
    let chunks = content.read_range(first, length).await?.inspect_err(|error| {
        tracing::error!("the response with a file ends early: {}", error_chain(error));
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let mut set = |name, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, "application/octet-stream".to_owned());
    set(header::CONTENT_LENGTH, length.to_string());
    set(header::ACCEPT_RANGES, "bytes".to_owned());
    set(header::ETAG, tag);
    if range.is_some() {
        set(header::CONTENT_RANGE, format!("bytes {first}-{last}/{bytes}"));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// Returns the first and last byte of a range of RFC 9110; `None` for a range that is not understood, because the whole
/// file is sent then.
fn parse_range(range: &str, bytes: u64) -> Result<Option<(u64, u64)>> {
    let in_bytes = range.split_once('=').filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = in_bytes.and_then(|(_, range)| range.split_once('-')) else { return Ok(None) };
    let (first, last) = (first.trim(), last.trim());
    // A number with too many digits for u64 lies beyond the end of every file.
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Some((first, last)),
        (Some(first), None) if last.is_empty() => Some((first, u64::MAX)),
        (None, Some(tail)) if first.is_empty() => {
            Some((bytes.saturating_sub(tail), if tail == 0 { 0 } else { u64::MAX }))
        }
        _ => return Ok(None),
    };
    match range {
        Some((first, last)) if first < bytes => Ok(Some((first, last.min(bytes - 1)))),
        _ => Err(ApiError::new(
            ErrorReason::RangeNotSatisfiable,
            format!("the range begins beyond the end of the file, which has {bytes} bytes"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_rfc() {
        let parsed = |range: &str| parse_range(range, 10).unwrap();
        assert_eq!(parsed("bytes=0-3"), Some((0, 3)));
        assert_eq!(parsed("bytes=7-"), Some((7, 9)));
        assert_eq!(parsed("bytes=-4"), Some((6, 9)));
        assert_eq!(parsed("bytes=-40"), Some((0, 9)));
        assert_eq!(parsed("bytes=3-99"), Some((3, 9)));
        assert_eq!(parsed("Bytes=3-99999999999999999999"), Some((3, 9)));
        for other in ["lines=1-2", "bytes=3-1", "bytes=a-b", "bytes=0-1,3-4", "bytes=-"] {
            assert_eq!(parsed(other), None, "{other}");
        }
        assert!(parse_range("bytes=99999999999999999999-", 10).is_err());
        assert!(
            parse_range("bytes=10-", 10).is_err()
                && parse_range("bytes=0-", 0).is_err()
                && parse_range("bytes=-0", 10).is_err()
        );
    }
}
