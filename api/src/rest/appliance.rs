//! Handlers for the appliance and for the server itself: identity, version, metrics and health.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use millrace_crds::{self as crds, ApplianceSpec, ApplianceStatus, QueueStatus, ResourceAmounts, TrainJob};
use millrace_store::JobFilter;
use millrace_telemetry::prometheus::CONTENT_TYPE;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::auth::{Action, Caller, Permissions};
use super::{AppState, ApplianceQuery, ItemList, ValidPath, ValidQuery};
use crate::admission::{object_schema, schemas};
use crate::backend::VolumeInfo;
use crate::document;
use crate::error::{ApiError, ErrorReason, Result};

/// The appliance, its jobs and its queue. Of jobs in namespaces that the caller may not read, only the resources are
/// shown.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ApplianceView {
    /// Name of the appliance.
    name: String,
    /// Spec of the appliance.
    #[schemars(schema_with = "spec")]
    spec: ApplianceSpec,
    /// Capacity and use; null until the appliance is reconciled for the first time.
    status: Option<ApplianceUsage>,
    /// Jobs that have systems.
    jobs: Vec<SystemHolder>,
    /// Jobs that wait for systems, in the order of the queue.
    queue: Vec<QueuedJob>,
}

fn spec(_: &mut SchemaGenerator) -> Schema {
    let [appliance, _] = schemas();
    let spec = object_schema(&appliance, false)["properties"]["spec"].take();
    Schema::try_from(spec).unwrap_or_default()
}

/// Capacity and use of an appliance.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ApplianceUsage {
    /// Total capacity.
    capacity: Option<ResourceAmounts>,
    /// Capacity in use.
    used: Option<ResourceAmounts>,
    /// Number of waiting jobs.
    waiting: Option<u32>,
    /// Conditions, such as whether the spec is valid.
    conditions: Vec<Condition>,
}

/// A job that has systems.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SystemHolder {
    /// Namespace of the job; null if the caller may not read it.
    namespace: Option<String>,
    /// Name of the job; null like the namespace.
    name: Option<String>,
    /// UID of the job; null like the namespace.
    uid: Option<String>,
    /// State of the job; null like the namespace.
    state: Option<String>,
    /// Names of its systems.
    systems: Vec<String>,
    /// Time at which it got the systems.
    since: Option<Time>,
}

/// A job that waits for systems.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct QueuedJob {
    /// Position in the queue, and why the job waits.
    #[serde(flatten)]
    place: QueuePosition,
    /// Namespace of the job; null if the caller may not read it.
    namespace: Option<String>,
    /// Name of the job; null like the namespace.
    name: Option<String>,
    /// UID of the job; null like the namespace.
    uid: Option<String>,
    /// Number of systems that it requests.
    systems: u32,
}

/// A position in the queue.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct QueuePosition {
    /// Position, counted from 1; null if the job does not wait for its turn.
    position: Option<u32>,
    /// Why the job waits, in one word.
    reason: Option<String>,
    /// The reason as a sentence.
    message: Option<String>,
}

/// Returns the appliance, the jobs that hold its systems, and its queue. Names of jobs are omitted in namespaces that
/// the client may not list.
///
/// # Errors
/// [`ErrorReason::NotFound`]: there is no such appliance. The database fails, or the authorizer that decides which
/// namespaces are visible.
pub async fn read(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidQuery(query): ValidQuery<ApplianceQuery>,
) -> Result<Json<ApplianceView>> {
    let name = query.name().to_owned();
    let appliance = api.backend.appliance(&name).await?;
    let appliance = appliance.ok_or_else(|| {
        ApiError::new(
            ErrorReason::NotFound,
            format!("appliance {name} not found: leave ?name= out for the default one"),
        )
    })?;
    let mut jobs = Vec::new();
    for grant in appliance.status.iter().flat_map(|status| &status.grants) {
        let is_visible = caller.is_allowed(Action::List, &grant.namespace).await?;
        let job = if is_visible { api.store.job(&grant.uid).await? } else { None };
        jobs.push(SystemHolder {
            namespace: is_visible.then(|| grant.namespace.clone()),
            name: is_visible.then(|| grant.name.clone()),
            uid: is_visible.then(|| grant.uid.clone()),
            state: job.and_then(|job| job.content.state),
            systems: grant.systems.clone(),
            since: grant.since.clone(),
        });
    }
    let queue = queue(&api, &name, &caller).await?;
    let status = appliance.status.map(|status| {
        let ApplianceStatus { capacity, used, waiting, conditions, .. } = status;
        ApplianceUsage { capacity, used, waiting, conditions }
    });
    Ok(Json(ApplianceView { name, spec: appliance.spec, status, jobs, queue }))
}

/// Returns the queued jobs of an appliance, by their position; jobs without one are last. At most 1000 are read.
async fn queue(api: &AppState, appliance: &str, caller: &Caller) -> Result<Vec<QueuedJob>> {
    let waiting = JobFilter { state: Some(crds::JobState::Queued.as_str().to_owned()), ..JobFilter::default() };
    let rows = api.store.jobs(&waiting, None, 1000).await?.items;
    let mut queue = Vec::new();
    for row in rows {
        let Some(job) = document::from_json_text::<TrainJob>(&row.name, &row.content.document) else { continue };
        if job.spec.appliance != appliance {
            continue;
        }
        let is_visible = caller.is_allowed(Action::List, &row.namespace).await?;
        let place = job.status.and_then(|status| status.queue).map(|place| {
            let QueueStatus { position, reason, message } = place;
            QueuePosition { position, reason, message }
        });
        queue.push(QueuedJob {
            place: place.unwrap_or_default(),
            namespace: is_visible.then_some(row.namespace),
            name: is_visible.then_some(row.name),
            uid: is_visible.then_some(row.uid),
            systems: job.spec.num_csx,
        });
    }
    queue.sort_by_key(|waiter| waiter.place.position.unwrap_or(u32::MAX));
    Ok(queue)
}

/// Lists the volumes that a job in this namespace can mount.
///
/// # Errors
/// Those of [`Backend::volumes`](crate::backend::Backend::volumes).
pub async fn volumes(
    State(api): State<Arc<AppState>>,
    ValidPath(ns): ValidPath<String>,
) -> Result<Json<ItemList<VolumeInfo>>> {
    Ok(Json(ItemList { items: api.backend.volumes(&ns).await? }))
}

/// The identity of the caller.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallerIdentity {
    /// Name of the token or account.
    name: String,
    /// Role of the caller; `kubernetes` if the cluster authorizes each action.
    #[schemars(extend("enum" = ["viewer", "editor", "admin", CLUSTER_ACCOUNT_ROLE]))]
    role: &'static str,
    /// Namespaces in which the role is valid; `*` means all.
    namespaces: Vec<String>,
}

/// The role shown for an account of a cluster.
const CLUSTER_ACCOUNT_ROLE: &str = "kubernetes";

/// Returns the identity of the client. An account of a cluster has the role `kubernetes` and no namespaces, because
/// only the cluster knows its permissions.
pub async fn whoami(Caller { principal, .. }: Caller) -> Json<CallerIdentity> {
    let (role, namespaces) = match principal.rights {
        Permissions::Role { role, namespaces } => (role.as_str(), namespaces),
        Permissions::Cluster(..) => (CLUSTER_ACCOUNT_ROLE, Vec::new()),
    };
    Json(CallerIdentity { name: principal.name, role, namespaces })
}

/// The program of the server.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ServerVersion {
    /// Version of the server (semantic versioning).
    version: &'static str,
    /// Backend that runs jobs.
    #[schemars(extend("enum" = ["process", "kubernetes"]))]
    backend: &'static str,
}

/// Returns the version of the server and the name of its backend; needs no token.
pub async fn version(State(api): State<Arc<AppState>>) -> Json<ServerVersion> {
    Json(ServerVersion { version: env!("CARGO_PKG_VERSION"), backend: api.backend.name() })
}

/// Returns the metrics in the text format of Prometheus; no label names a job or a user.
pub async fn metrics(State(api): State<Arc<AppState>>) -> ([(header::HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], api.backend.metrics() + &api.traffic.render(&api.store).await)
}

/// Liveness: returns 503 while a loop that runs jobs, or copies those of a cluster, is stuck, so that the server is
/// restarted.
///
/// # Errors
/// [`ErrorReason::Unavailable`]: a loop is stuck.
pub async fn healthz(State(api): State<Arc<AppState>>) -> Result<StatusCode> {
    match api.backend.stuck_loop() {
        None => Ok(StatusCode::OK),
        Some(stuck) => {
            tracing::error!("this server is stuck: {stuck}");
            Err(ApiError::new(ErrorReason::Unavailable, format!("the server is stuck and must be restarted: {stuck}")))
        }
    }
}

/// Readiness: whether the database answers.
pub async fn readyz(State(api): State<Arc<AppState>>) -> StatusCode {
    if api.store.ping().await.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
