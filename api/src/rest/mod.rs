//! The REST API: its routes and the state of their handlers.
//!
//! * Handlers read from the store and act through the backend.
//! * Every error has one format, that of `problem`.

mod appliance;
mod auth;
mod blobs;
mod body;
mod files;
mod generate;
mod jobs;
mod json;
mod live_stream;
mod local_user;
mod middleware;
mod named_uploads;
pub mod openapi;
mod overrides;
mod problem;
mod proxies;
mod rate_limit;
mod record_views;
mod records;
#[cfg(test)]
mod reference;
mod routes;
mod schema;
mod session;
mod submit;
mod tokens;
mod unread_body;
mod uploads;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, RawPathParams};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use axum::routing::get;
use millrace_params::{LabelName, ObjectName};
use millrace_store::{JobRecord, Store};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

pub use auth::{AuthMode, TokenRole};
pub use proxies::TrustedProxies;
pub use rate_limit::RequestLimiter;
pub use session::delete_expired as delete_expired_sessions;
pub use submit::Submission;
pub use tokens::TokenRequest;

use crate::backend::Backend;
use crate::compute::ComputePool;
use crate::document::mark_unreadable;
use crate::error::{ApiError, ErrorReason, FieldError, Result};
use crate::metrics::ServerMetrics;
use routes::{RequestBodyKind, Route};

/// Limit on the body of a request, except of a part of an upload: a params document with its uploads.
const MAX_BODY_BYTES: usize = 8 << 20;
/// Time until a response must begin. Streams then last as long as the client reads.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// State shared by all handlers.
pub struct AppState {
    pub backend: Arc<dyn Backend>,
    /// Database of jobs, journals, events and tokens.
    pub store: Store,
    /// How clients are authenticated and authorized.
    pub access: AuthMode,
    /// Rate limits of requests.
    pub pace: RequestLimiter,
    /// Port on which the server listens.
    pub port: u16,
    /// Proxies whose forwarded addresses are trusted.
    pub proxies: TrustedProxies,
    /// Threads and budgets for expensive computations.
    pub compute: ComputePool,
    /// Metrics of the server.
    pub traffic: ServerMetrics,
}

/// Builds the router of all routes.
pub fn router(api: Arc<AppState>) -> Router {
    let mount = |routes: Vec<Route>| {
        let mounted = routes.into_iter().fold(Router::new(), |router, route| route.mount(router, &api));
        mounted.layer(axum::middleware::from_fn(middleware::complete_mutation))
    };
    // A body of bytes is stored as it arrives. Its handler ends it when nothing arrives.
    let (streamed, bounded) = routes::all().into_iter().partition(|route| route.body == RequestBodyKind::Bytes);
    mount(bounded)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        // Rejects a request by its `Content-Length` before its body is read.
        .layer(RequestBodyLimitLayer::new(MAX_BODY_BYTES))
        .layer(TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, RESPONSE_TIMEOUT))
        .merge(mount(streamed))
        .fallback(async || ApiError::new(ErrorReason::NotFound, "unknown path: GET /openapi.json lists the routes"))
        .method_not_allowed_fallback(async || {
            ApiError::new(ErrorReason::MethodNotAllowed, "method not allowed for this path")
        })
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            ApiError::internal("answer", "a handler panicked").into_response()
        }))
        .layer(axum::middleware::from_fn_with_state(api.clone(), middleware::record_request))
        .layer(axum::middleware::from_fn(unread_body::discard_unread_body))
        .with_state(api)
}

/// Builds the routes of the metrics listener. Metrics are for the operators of the server, so the router for clients
/// does not have them.
pub fn metrics_router(api: Arc<AppState>) -> Router {
    Router::new()
        .route("/metrics", get(appliance::metrics))
        .layer(TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, RESPONSE_TIMEOUT))
        .with_state(api)
}

/// Query parameters; a parse error is returned as a [`ApiError`].
pub struct ValidQuery<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for ValidQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let read = Query::try_from_uri(&parts.uri).map(|Query(read)| Self(read));
        read.map_err(|error| ApiError::new(ErrorReason::BadRequest, error.body_text()))
    }
}

/// Path parameters; a parse error is returned as a [`ApiError`]. `namespace` and `name` are checked to be valid
/// names.
pub struct ValidPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for ValidPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let read = Path::from_request_parts(parts, state).await.map(|Path(read)| Self(read));
        let read = read.map_err(|error| ApiError::new(ErrorReason::BadRequest, error.body_text()))?;
        // They become parts of other paths, of file names and of requests to the API server of a cluster, so only valid
        // names are accepted.
        let raw = RawPathParams::from_request_parts(parts, state).await;
        let raw = raw.map_err(|error| ApiError::new(ErrorReason::BadRequest, error.body_text()))?;
        if let Some((_, name)) =
            raw.iter().find(|(key, value)| *key == "namespace" && *value != ALL_NAMESPACES && !is_label(value))
        {
            return Err(ApiError::new(
                ErrorReason::BadRequest,
                format!("{name:?} is not a valid namespace: {NAMESPACE_RULE}"),
            ));
        }
        if let Some((_, name)) = raw.iter().find(|(key, value)| *key == "name" && ObjectName::new(*value).is_err()) {
            return Err(ApiError::new(ErrorReason::NotFound, format!("{name:?} is not a valid job name")));
        }
        Ok(read)
    }
}

/// The rule that [`is_label`] checks, for messages.
const NAMESPACE_RULE: &str = "a namespace has at most 63 lower-case letters, digits and hyphens, and neither begins \
    nor ends with a hyphen";

/// Stands for all namespaces that the caller may read.
const ALL_NAMESPACES: &str = "-";

/// Whether `name` is a label of RFC 1123, as Kubernetes requires of a namespace.
fn is_label(name: &str) -> bool {
    LabelName::new(name).is_ok()
}

/// Namespace and name of a job in the path.
#[derive(Clone, Debug, Deserialize)]
pub struct JobPath {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Query parameters: the appliance.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplianceQuery {
    /// Name of the appliance; `default` if omitted.
    name: Option<String>,
}

impl ApplianceQuery {
    /// Returns the name of the requested appliance.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("default")
    }
}

/// Which job of a name.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSelector {
    /// The UID of an older job of the name.
    pub uid: Option<String>,
}

impl AppState {
    /// Returns the job with `uid`, or the newest one of this name without it.
    async fn job(&self, path: &JobPath, uid: Option<&str>) -> Result<JobRecord> {
        let job = match uid {
            Some(uid) => {
                self.store.job(uid).await?.filter(|job| job.namespace == path.namespace && job.name == path.name)
            }
            None => self.store.newest_job(&path.namespace, &path.name).await?,
        };
        let job = match job {
            // A namespace may have been deleted and created again: its users must not see the deleted jobs of its
            // predecessor.
            Some(job) if job.deleted_ms.is_some() => {
                let now = self.backend.current_namespace(&path.namespace).await?;
                Some(job).filter(|job| now.is_none_or(|namespace| namespace.contains(job)))
            }
            job => job,
        };
        job.ok_or_else(|| match uid {
            Some(uid) => {
                let JobPath { namespace, name } = path;
                let detail = format!(
                    "job {name} with uid {uid} not found in namespace {namespace}: list deleted jobs with ?deleted=true"
                );
                ApiError::new(ErrorReason::NotFound, detail)
            }
            None => ApiError::job_not_found(&path.namespace, &path.name),
        })
    }
}

/// Builds the error for the query parameter `name`, which has to be `is`.
fn bad_query_parameter(name: &str, is: &str) -> ApiError {
    ApiError::new(ErrorReason::BadRequest, format!("{name} is {is}"))
        .with_fields(vec![FieldError { field: name.to_owned(), message: is.to_owned() }])
}

/// Returns the JSON of a job for clients. A deleted job has a `deletionTimestamp`.
pub fn job_json(job: &JobRecord) -> Value {
    let mut object: Value = serde_json::from_str(&job.content.document).unwrap_or_else(|_| json!({}));
    if let Some(deleted) = job.deleted_ms {
        object["metadata"]["deletionTimestamp"] = rfc3339(deleted).into();
    } else {
        mark_unreadable(&mut object);
    }
    object
}

/// Formats milliseconds since 1970 by RFC 3339; empty if out of range.
pub fn rfc3339(ms: i64) -> String {
    k8s_openapi::jiff::Timestamp::from_millisecond(ms).map(|time| time.to_string()).unwrap_or_default()
}

/// A list without pages.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ItemList<T> {
    /// The items.
    items: Vec<T>,
}

/// Builds the JSON of a page of numbered items. `next` is the last number if the page is full, else null.
pub fn page(items: Vec<Value>, full: bool) -> Value {
    let last = items.last().and_then(|item| item["number"].as_u64());
    json!({"items": items, "next": last.filter(|_| full)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_is_a_single_path_component() {
        assert!(is_label("default") && is_label("team-1"));
        for bad in ["", ".", "..", "a/b", "../x", "-", "A", "a-", "é", "\u{b}", &"x".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }
}
