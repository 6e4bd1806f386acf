//! Handlers that create, list, read and change jobs.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kube::ResourceExt;
use millrace_crds::{self as crds, TrainJob};
use millrace_store::{JobFilter, JobRecord, PageCursor};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::auth::{Action, Caller};
use super::blobs::check_uploads;
use super::body::read_json;
use super::submit::read_submission;
use super::{AppState, JobPath, JobSelector, ValidPath, ValidQuery, bad_query_parameter, job_json};
use crate::backend::{JobChange, JobTarget};
use crate::error::{ApiError, ErrorReason, FieldError, Result};
use crate::plan::JobPlan;
use crate::submission::SubmitResult;

/// Limit on the jobs of a page.
pub const MAX_PAGE_JOBS: u32 = 500;

/// Query parameters of a submission.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateQuery {
    /// `All` to check the request without creating the job.
    #[schemars(extend("enum" = ["All"]))]
    dry_run: Option<String>,
}

/// Creates a job, or returns the one that the same request created before.
pub async fn create(
    State(api): State<Arc<AppState>>,
    Caller { principal, .. }: Caller,
    ValidPath(ns): ValidPath<String>,
    ValidQuery(CreateQuery { dry_run }): ValidQuery<CreateQuery>,
    request: Request,
) -> Result<Response> {
    let mut submission = read_submission(&api, &ns, &principal, request).await?;
    check_uploads(&api, &submission, dry_run.is_none()).await?;
    submission.is_server_user = principal.is_server_user(&api).await;
    match dry_run.as_deref() {
        None => {}
        Some("All") => return Ok(Json(api.backend.dry_run(&submission).await?).into_response()),
        Some(_) => return Err(bad_query_parameter("dryRun", "the value must be All, if given")),
    }
    Ok(match api.backend.create(submission).await? {
        SubmitResult::New(job) => (StatusCode::CREATED, [location_header(&ns, &job)], Json(job)).into_response(),
        SubmitResult::Replayed(job) => {
            let replayed = (HeaderName::from_static("idempotent-replay"), HeaderValue::from_static("true"));
            ([location_header(&ns, &job), replayed], Json(job)).into_response()
        }
    })
}

fn location_header(ns: &str, job: &TrainJob) -> (HeaderName, HeaderValue) {
    let mut location = format!("/v1/namespaces/{ns}/trainjobs/{}", job.name_any());
    if let (Some(_), Some(uid)) = (&job.metadata.deletion_timestamp, job.uid()) {
        // The name alone means the newest job of that name.
        location = format!("{location}?uid={uid}");
    }
    let location = HeaderValue::try_from(location);
    // The API server or the admission check has accepted the name: it has only characters that a header may have.
    (header::LOCATION, location.unwrap_or_else(|_| HeaderValue::from_static("/")))
}

/// Plans a job, without creating it.
///
/// # Errors
/// The body can't be read as a submission. Those of [`Backend::plan`](crate::backend::Backend::plan).
pub async fn plan(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidPath(ns): ValidPath<String>,
    request: Request,
) -> Result<Json<JobPlan>> {
    let mut submission = read_submission(&api, &ns, &caller.principal, request).await?;
    check_uploads(&api, &submission, false).await?;
    submission.is_server_user = caller.principal.is_server_user(&api).await;
    submission.may_create = caller.is_allowed(Action::Create, &ns).await.unwrap_or(false);
    Ok(Json(api.backend.plan(&submission).await?))
}

/// Query parameters: filters of jobs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobListQuery {
    /// Maximum number of jobs in a page, at most 500; 50 if omitted.
    limit: Option<u32>,
    /// `next` of the previous page.
    cursor: Option<String>,
    /// Only jobs in this state.
    #[schemars(extend("enum" = crds::JobState::ALL.map(crds::JobState::as_str)))]
    state: Option<String>,
    /// Only jobs with this name.
    name: Option<String>,
    /// Only jobs that this user submitted.
    submitted_by: Option<String>,
    /// Only finished jobs, or only unfinished ones.
    finished: Option<bool>,
    /// Whether to include deleted jobs, whose history is still stored; get one of them with `?uid=`. Deleted jobs that
    /// still have finalizers are always included.
    deleted: Option<bool>,
}

/// Lists jobs, the newest first. Namespace `-` means all that the client may list.
///
/// # Errors
/// [`ErrorReason::BadRequest`]: the cursor or the state is invalid. The database fails, or the cluster that knows the
/// current namespaces.
pub async fn list(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidQuery(query): ValidQuery<JobListQuery>,
) -> Result<Json<Value>> {
    let namespaces = caller.visible_namespaces().map(<[String]>::to_vec);
    let cursor: Option<PageCursor> = query.cursor.as_deref().map(str::parse).transpose()?;
    if query.state.as_deref().is_some_and(|state| crds::JobState::from_name(state).is_none()) {
        return Err(bad_query_parameter(
            "state",
            &format!("one of {}", crds::JobState::ALL.map(crds::JobState::as_str).join(", ")),
        ));
    }
    let mut incarnations = Vec::new();
    if query.deleted == Some(true) {
        for namespace in namespaces.iter().flatten() {
            incarnations.extend(api.backend.current_namespace(namespace).await?);
        }
    }
    let filter = JobFilter {
        incarnations,
        namespaces,
        name: query.name,
        state: query.state,
        submitted_by: query.submitted_by,
        finished: query.finished,
        include_deleted: query.deleted == Some(true),
        held_state: Some(crds::JobState::Deleting.as_str().to_owned()),
    };
    let page = api.store.jobs(&filter, cursor.as_ref(), query.limit.unwrap_or(50).clamp(1, MAX_PAGE_JOBS)).await?;
    let items: Vec<Value> = page.items.iter().map(job_json).collect();
    Ok(Json(json!({"items": items, "next": page.next.map(|next| next.to_string())})))
}

/// Returns a job: the newest of the name, or the one with `?uid=`.
///
/// # Errors
/// [`ErrorReason::NotFound`]: there is no such job, deleted jobs included. The database fails.
pub async fn read(
    State(api): State<Arc<AppState>>,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
) -> Result<Response> {
    let job = api.job(&path, selector.uid.as_deref()).await?;
    let tag = HeaderValue::try_from(format!("\"{}\"", job.version)).ok();
    let mut response = Json(job_json(&job)).into_response();
    response.headers_mut().extend(tag.map(|tag| (header::ETAG, tag)));
    Ok(response)
}

/// Deletes a job. Its history stays.
///
/// # Errors
/// [`ErrorReason::NotFound`]: there is no such job. [`ErrorReason::Gone`]: it is deleted already. Those of
/// [`Backend::delete`](crate::backend::Backend::delete).
pub async fn delete(
    State(api): State<Arc<AppState>>,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
) -> Result<Json<Value>> {
    let uid = find_live_job(&api, &path, &selector).await?.uid;
    api.backend.delete(&path.namespace, &path.name, &uid).await?;
    let job = api.job(&path, Some(&uid)).await?;
    Ok(Json(job_json(&job)))
}

/// Suspends a job: it saves its state and releases its systems.
///
/// # Errors
/// [`ErrorReason::NotFound`], [`ErrorReason::Gone`] as for [`delete`]; [`ErrorReason::Finished`]: the job has finished.
/// Those of [`Backend::change`](crate::backend::Backend::change).
pub async fn suspend(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
) -> Result<Json<TrainJob>> {
    change(&api, &caller, &path, &selector, JobChange::Suspend(true)).await
}

/// Resumes a suspended job.
///
/// # Errors
/// Those of [`suspend`].
pub async fn resume(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
) -> Result<Json<TrainJob>> {
    change(&api, &caller, &path, &selector, JobChange::Suspend(false)).await
}

/// Body of a request to scale a job.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScaleRequest {
    /// Number of systems.
    #[schemars(range(min = 1))]
    num_csx: u32,
}

/// Changes the number of systems of a job.
///
/// # Errors
/// Those of [`suspend`]; [`ErrorReason::BadParams`] if the job can never run on that number of systems,
/// [`ErrorReason::Invalid`] for zero. The body can't be parsed.
pub async fn scale(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(selector): ValidQuery<JobSelector>,
    request: Request,
) -> Result<Json<TrainJob>> {
    let ScaleRequest { num_csx } = read_json(request).await?;
    if num_csx == 0 {
        let message = "a job needs at least one system; to release all of them, suspend it".to_owned();
        return Err(ApiError::invalid(vec![FieldError { field: "numCsx".to_owned(), message }]));
    }
    change(&api, &caller, &path, &selector, JobChange::Scale(num_csx)).await
}

async fn change(
    api: &AppState,
    caller: &Caller,
    path: &JobPath,
    selector: &JobSelector,
    change: JobChange,
) -> Result<Json<TrainJob>> {
    let job = find_live_job(api, path, selector).await?;
    if let (Some(_), Some(state)) = (job.content.finished_ms, job.content.state) {
        let detail = format!("job {} has finished ({state}): submit another one", job.name);
        return Err(ApiError::new(ErrorReason::Finished, detail));
    }
    let target = JobTarget { namespace: &path.namespace, name: &path.name, uid: &job.uid };
    Ok(Json(api.backend.change(&caller.principal.account, target, change).await?))
}

/// Returns the job to be changed. A deleted job is an error.
async fn find_live_job(api: &AppState, path: &JobPath, selector: &JobSelector) -> Result<JobRecord> {
    let job = api.job(path, selector.uid.as_deref()).await?;
    if job.deleted_ms.is_some() {
        return Err(ApiError::new(
            ErrorReason::Gone,
            format!("job {} was deleted: only its history is available", job.name),
        ));
    }
    Ok(job)
}
