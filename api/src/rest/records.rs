//! What happened under a job: events, metrics, logs; as pages or live.

use std::str::FromStr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use millrace_store::{Entry, Event, Job, Kind, Mode, Query};
use millrace_telemetry::logs::Level;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::live::{self, Position, Wanted};
use super::who::{Act, Who};
use super::{Api, Asked, JobPath, Named, page, time};
use crate::record::gravity;
use crate::refusal::{Fault, Reason, Refusal, Result};

/// Most things on a page.
const MOST: u32 = 10_000;
const USUAL: u32 = 1000;

/// Which of them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selection {
    /// The UID of an older job of the name.
    uid: Option<String>,
    /// Only what has a higher number: the `next` of the page before.
    after: Option<u64>,
    /// Most things on a page, 1000 where it is left out and 10000 at most.
    limit: Option<u32>,
    /// Of metrics: only those of training steps (train) or of evaluations (eval).
    mode: Option<String>,
    /// Of metrics: a curve of about so many points, evenly thinned, first and last kept; then there are no pages.
    max_points: Option<u32>,
    /// Only what this attempt wrote.
    attempt: Option<u64>,
    /// Of logs: only what this agent said, as cs2-0.
    agent: Option<String>,
    /// Of logs: only what agents of this role said, as cs2.
    role: Option<String>,
    /// Of logs: only what is at least so grave, as WARNING.
    level: Option<String>,
}

impl Selection {
    fn limit(&self) -> u32 {
        self.limit.unwrap_or(USUAL).clamp(1, MOST)
    }

    fn mode(&self) -> Result<Option<Mode>> {
        match self.mode.as_deref() {
            None => Ok(None),
            Some("train") => Ok(Some(Mode::Train)),
            Some("eval") => Ok(Some(Mode::Eval)),
            Some(_) => Err(wrong("mode", "train or eval")),
        }
    }

    /// The entries of these kinds that are meant.
    fn query(&self, kinds: &[Kind]) -> Result<Query> {
        let level = self.level.as_deref().map(|name| {
            let known = Level::ALL.into_iter().find(|level| level.as_str().eq_ignore_ascii_case(name));
            known.ok_or_else(|| wrong("level", "DEBUG, VERBOSE, INFO, WARNING or ERROR"))
        });
        Ok(Query {
            after: self.after.unwrap_or(0),
            kinds: kinds.to_vec(),
            attempt: self.attempt,
            agent: self.agent.clone(),
            role: self.role.clone(),
            level: level.transpose()?.map(gravity),
            mode: self.mode()?,
            limit: self.limit(),
            ..Query::default()
        })
    }
}

fn wrong(field: &str, message: &str) -> Refusal {
    Refusal {
        errors: vec![Fault { field: field.to_owned(), message: message.to_owned() }],
        ..Refusal::new(Reason::BadRequest, format!("{field} is {message}"))
    }
}

/// Whether the client wants what comes, too; and where it goes on.
fn live_from(headers: &HeaderMap, asked: &Selection) -> Option<u64> {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepts.contains("text/event-stream").then(|| last_heard(headers).or(asked.after).unwrap_or(0))
}

/// What the client heard last, on the connection it lost.
fn last_heard<T: FromStr>(headers: &HeaderMap) -> Option<T> {
    headers.get("last-event-id")?.to_str().ok()?.parse().ok()
}

async fn meant(api: &Api, who: &Who, act: Act, path: &JobPath, asked: &Selection) -> Result<Job> {
    who.may(act, &path.ns, &path.name).await?;
    api.job(path, asked.uid.as_deref()).await
}

/// What was told about a job.
pub async fn events(
    State(api): State<Arc<Api>>,
    who: Who,
    Named(path): Named<JobPath>,
    Asked(asked): Asked<Selection>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = meant(&api, &who, Act::Read, &path, &asked).await?;
    if let Some(after) = live_from(&headers, &asked) {
        return Ok(live::stream(api, job, Wanted { events: Some(after), ..Wanted::default() }, who, Act::Read));
    }
    let limit = asked.limit();
    let events = api.store.events(&job.uid, asked.after.unwrap_or(0), limit).await?;
    let full = events.len() == limit as usize;
    Ok(Json(page(events.iter().map(shown_event).collect(), full)).into_response())
}

/// The curves: each step once.
pub async fn metrics(
    State(api): State<Arc<Api>>,
    who: Who,
    Named(path): Named<JobPath>,
    Asked(asked): Asked<Selection>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = meant(&api, &who, Act::Read, &path, &asked).await?;
    if let Some(after) = live_from(&headers, &asked) {
        let query = Query { after, ..asked.query(&[Kind::Metric])? };
        return Ok(live::stream(api, job, Wanted { entries: Some(query), ..Wanted::default() }, who, Act::Read));
    }
    if let Some(most) = asked.max_points {
        let mode = asked.mode()?.unwrap_or(Mode::Train);
        let points = api.store.metrics(&job.uid, mode, most.clamp(2, MOST)).await?;
        return Ok(Json(page(points.iter().map(shown_entry).collect(), false)).into_response());
    }
    pages(&api, &job, Query { curve: true, ..asked.query(&[Kind::Metric])? }).await
}

/// What agents said.
pub async fn logs(
    State(api): State<Arc<Api>>,
    who: Who,
    Named(path): Named<JobPath>,
    Asked(asked): Asked<Selection>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = meant(&api, &who, Act::ReadLogs, &path, &asked).await?;
    let query = asked.query(&[Kind::Log])?;
    if let Some(after) = live_from(&headers, &asked) {
        let query = Query { after, ..query };
        return Ok(live::stream(api, job, Wanted { entries: Some(query), ..Wanted::default() }, who, Act::ReadLogs));
    }
    pages(&api, &job, query).await
}

/// Everything, live.
pub async fn follow(
    State(api): State<Arc<Api>>,
    who: Who,
    Named(path): Named<JobPath>,
    Asked(asked): Asked<Selection>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = meant(&api, &who, Act::ReadLogs, &path, &asked).await?;
    let Position { entry, event } =
        last_heard(&headers).unwrap_or(Position { entry: asked.after.unwrap_or(0), event: 0 });
    let query = Query { after: entry, ..asked.query(&[])? };
    Ok(live::stream(api, job, Wanted { entries: Some(query), events: Some(event), job: true }, who, Act::ReadLogs))
}

async fn pages(api: &Api, job: &Job, query: Query) -> Result<Response> {
    let entries = api.store.entries(&job.uid, &query).await?;
    let full = entries.len() == query.limit as usize;
    Ok(Json(page(entries.iter().map(shown_entry).collect(), full)).into_response())
}

/// An entry of the journal as clients see it: where it stands, and what it says.
pub fn shown_entry(entry: &Entry) -> Value {
    let mut shown = Map::new();
    shown.insert("number".to_owned(), entry.number.into());
    shown.insert("time".to_owned(), time(entry.at_ms).into());
    shown.insert("attempt".to_owned(), entry.attempt.into());
    if let Ok(Value::Object(body)) = serde_json::from_str(&entry.body) {
        shown.extend(body.into_iter().filter(|(key, _)| key != "unix_ms"));
    }
    Value::Object(shown)
}

/// An event as clients see it.
pub fn shown_event(event: &Event) -> Value {
    let told = &event.event;
    json!({
        "number": event.number,
        "time": time(told.at_ms),
        "type": if told.warning { "Warning" } else { "Normal" },
        "reason": told.reason,
        "message": told.message,
    })
}
