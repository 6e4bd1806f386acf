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
use serde::{Deserialize, Serialize};

use super::auth::{Action, Caller, Permissions};
use super::{AppState, ItemList, ValidPath, ValidQuery};
use crate::admission::{object_schema, schemas};
use crate::backend::VolumeInfo;
use crate::document;
use crate::error::{ApiError, ErrorReason, Result};

/// Which appliance.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplianceQuery {
    /// Its name; `default` where it is left out.
    name: Option<String>,
}

impl ApplianceQuery {
    /// Returns the name of the requested appliance.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("default")
    }
}

/// The machine as it is seen. Of jobs in namespaces one may not look into only what they use is told.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ApplianceView {
    /// Its name.
    name: String,
    /// What it is.
    #[schemars(schema_with = "spec")]
    spec: ApplianceSpec,
    /// What of it is used; null until it is seen to for the first time.
    status: Option<ApplianceUsage>,
    /// The jobs that have systems.
    jobs: Vec<SystemHolder>,
    /// The jobs that wait for systems, the next one first.
    queue: Vec<QueuedJob>,
}

fn spec(_: &mut SchemaGenerator) -> Schema {
    let [appliance, _] = schemas();
    let spec = object_schema(&appliance, false)["properties"]["spec"].take();
    Schema::try_from(spec).unwrap_or_default()
}

/// What of the machine is used.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ApplianceUsage {
    /// What there is.
    capacity: Option<ResourceAmounts>,
    /// What of it is in use.
    used: Option<ResourceAmounts>,
    /// How many jobs wait.
    waiting: Option<u32>,
    /// Whether its spec was understood.
    conditions: Vec<Condition>,
}

/// A job that has systems.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SystemHolder {
    /// Its namespace, where one may look into it.
    namespace: Option<String>,
    /// Its name, likewise.
    name: Option<String>,
    /// Its UID, likewise.
    uid: Option<String>,
    /// Its STATE, likewise.
    state: Option<String>,
    /// Which systems.
    systems: Vec<String>,
    /// Since when.
    since: Option<Time>,
}

/// A job that waits for systems.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct QueuedJob {
    /// Where and why.
    #[serde(flatten)]
    place: QueuePosition,
    /// Its namespace, where one may look into it.
    namespace: Option<String>,
    /// Its name, likewise.
    name: Option<String>,
    /// Its UID, likewise.
    uid: Option<String>,
    /// How many it asks for.
    systems: u32,
}

/// A place in the queue.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct QueuePosition {
    /// Counted from 1; null where it waits for something else than its turn.
    position: Option<u32>,
    /// Why it waits, in one word.
    reason: Option<String>,
    /// The same as a sentence.
    message: Option<String>,
}

/// Returns the appliance, the jobs that hold its systems, and its queue. Names of jobs are omitted in namespaces that
/// the client may not list.
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
            format!(
                "appliance {name} not found: leave ?name= out for the default \
            one"
            ),
        )
    })?;
    let mut jobs = Vec::new();
    for grant in appliance.status.iter().flat_map(|status| &status.grants) {
        let shown = caller.is_allowed(Action::List, &grant.namespace).await?;
        let job = if shown { api.store.job(&grant.uid).await? } else { None };
        jobs.push(SystemHolder {
            namespace: shown.then(|| grant.namespace.clone()),
            name: shown.then(|| grant.name.clone()),
            uid: shown.then(|| grant.uid.clone()),
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
        let shown = caller.is_allowed(Action::List, &row.namespace).await?;
        let place = job.status.and_then(|status| status.queue).map(|place| {
            let QueueStatus { position, reason, message } = place;
            QueuePosition { position, reason, message }
        });
        queue.push(QueuedJob {
            place: place.unwrap_or_default(),
            namespace: shown.then_some(row.namespace),
            name: shown.then_some(row.name),
            uid: shown.then_some(row.uid),
            systems: job.spec.num_csx,
        });
    }
    queue.sort_by_key(|waiter| waiter.place.position.unwrap_or(u32::MAX));
    Ok(queue)
}

/// Lists the volumes that a job in this namespace can mount.
pub async fn volumes(
    State(api): State<Arc<AppState>>,
    ValidPath(ns): ValidPath<String>,
) -> Result<Json<ItemList<VolumeInfo>>> {
    Ok(Json(ItemList { items: api.backend.volumes(&ns).await? }))
}

/// Who asks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallerIdentity {
    /// Whose token it is.
    name: String,
    /// What they may; with `kubernetes` the cluster is asked for each act.
    #[schemars(extend("enum" = ["viewer", "editor", "admin", CLUSTER_ACCOUNT_ROLE]))]
    role: &'static str,
    /// Where; `*` is everywhere.
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

/// A program.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ServerVersion {
    /// By semantic versioning.
    version: &'static str,
    /// What runs jobs.
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
