//! The machine, and the server itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use millrace_store::Filter;
use millrace_telemetry::prometheus::CONTENT_TYPE;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::who::{Act, Rights, Who};
use super::{Api, Asked, Named};
use crate::refusal::{Reason, Refusal, Result};

/// Which appliance.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhichAppliance {
    /// Its name; `default` where it is left out.
    name: Option<String>,
}

/// Systems, who uses them, who waits for them. Of jobs in namespaces one may not look into only what they use is told.
pub async fn read(
    State(api): State<Arc<Api>>,
    who: Who,
    Asked(WhichAppliance { name }): Asked<WhichAppliance>,
) -> Result<Json<Value>> {
    let name = name.unwrap_or_else(|| "default".to_owned());
    who.may(Act::ReadAppliance, "", &name).await?;
    let appliance = api.backend.appliance(&name).await?;
    let appliance = appliance
        .ok_or_else(|| Refusal::new(Reason::NotFound, format!("there is no appliance {name}: leave ?name= out")))?;
    let mut jobs = Vec::new();
    for grant in appliance.status.iter().flat_map(|status| &status.grants) {
        let shown = who.sees(&grant.namespace).await?;
        let job = if shown { api.store.job(&grant.uid).await? } else { None };
        jobs.push(json!({
            "namespace": shown.then_some(&grant.namespace),
            "name": shown.then_some(&grant.name),
            "uid": shown.then_some(&grant.uid),
            "state": job.and_then(|job| job.content.state),
            "systems": grant.systems,
            "since": grant.since,
        }));
    }
    Ok(Json(json!({
        "name": name,
        "spec": appliance.spec,
        "status": appliance.status.as_ref().map(|status| json!({
            "capacity": status.capacity, "used": status.used, "waiting": status.waiting, "conditions": status.conditions,
        })),
        "jobs": jobs,
        "queue": queue(&api, &name, &who).await?,
    })))
}

/// Jobs that wait, in the order of the queue.
async fn queue(api: &Api, appliance: &str, who: &Who) -> Result<Vec<Value>> {
    let waiting = Filter { state: Some("Queued".to_owned()), ..Filter::default() };
    let rows = api.store.jobs(&waiting, None, 1000).await?.items;
    let mut queue: Vec<(u64, Value)> = Vec::new();
    for row in &rows {
        let job = super::shown(row);
        if job["spec"]["appliance"] != appliance {
            continue;
        }
        let place = &job["status"]["queue"];
        let shown = who.sees(&row.namespace).await?;
        let entry = json!({
            "position": place["position"],
            "namespace": shown.then_some(&row.namespace),
            "name": shown.then_some(&row.name),
            "uid": shown.then_some(&row.uid),
            "reason": place["reason"],
            "message": place["message"],
            "systems": job["spec"]["numCsx"],
        });
        queue.push((place["position"].as_u64().unwrap_or(u64::MAX), entry));
    }
    queue.sort_by_key(|(position, _)| *position);
    Ok(queue.into_iter().map(|(_, entry)| entry).collect())
}

/// What params can name.
pub async fn volumes(State(api): State<Arc<Api>>, who: Who, Named(ns): Named<String>) -> Result<Json<Value>> {
    who.may(Act::ListVolumes, &ns, "").await?;
    Ok(Json(json!({"items": api.backend.volumes(&ns).await?})))
}

/// Who asks. What an account of a cluster may, and where, is the cluster's to say.
pub async fn whoami(who: Who) -> Json<Value> {
    let (role, namespaces) = match &who.rights {
        Rights::Role { role, namespaces } => (role.as_str(), namespaces.as_slice()),
        Rights::Cluster(..) => ("kubernetes", &[][..]),
    };
    Json(json!({"name": who.name, "role": role, "namespaces": namespaces}))
}

/// Which program this is; for everybody.
pub async fn version(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "backend": api.backend.name()}))
}

/// Numbers for Prometheus; no label names a job or a user.
pub async fn metrics(State(api): State<Arc<Api>>) -> ([(header::HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], api.backend.metrics() + &api.traffic.render())
}

/// Whether the database answers.
pub async fn ready(State(api): State<Arc<Api>>) -> StatusCode {
    if api.store.ping().await.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
