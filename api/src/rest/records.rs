//! Handlers for events, metrics and logs of a job, as pages or live streams.

use std::str::FromStr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use millrace_store::{Entry, Event, Job, Kind, Mode, Query};
use millrace_telemetry::logs::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::live::{self, Position, Wanted};
use super::who::{Act, Who};
use super::{Api, Asked, JobPath, Named, page, time, wrong};
use crate::record::gravity;
use crate::refusal::{Reason, Refusal, Result};

/// Limit and default of the items of a page.
const MOST: u32 = 10_000;
const USUAL: u32 = 1000;

/// Which events.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WhichEvents {
    /// The UID of an older job of the name.
    uid: Option<String>,
    /// Only what has a higher number: the `next` of the page before.
    after: Option<u64>,
    /// Most events on a page, 1000 where it is left out and 10000 at most.
    limit: Option<u32>,
}

/// Which points of a job's curves.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WhichPoints {
    /// The UID of an older job of the name.
    uid: Option<String>,
    /// Only what has a higher number: the `next` of the page before.
    after: Option<u64>,
    /// Most points on a page, 1000 where it is left out and 10000 at most.
    limit: Option<u32>,
    /// Only those of training steps (train) or of evaluations (eval).
    #[schemars(extend("enum" = Mode::ALL.map(Mode::as_str)))]
    mode: Option<String>,
    /// A curve of about so many points, evenly thinned, first and last kept: training's where `mode` is left out. There are no
    /// pages then, and with it go neither `after` nor `attempt` nor a live stream.
    max_points: Option<u32>,
    /// Only what this attempt wrote.
    attempt: Option<u64>,
}

/// Which lines of the log.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WhichLines {
    /// The UID of an older job of the name.
    uid: Option<String>,
    /// Only what has a higher number: the `next` of the page before.
    after: Option<u64>,
    /// Most lines on a page, 1000 where it is left out and 10000 at most.
    limit: Option<u32>,
    /// Only what this attempt wrote.
    attempt: Option<u64>,
    /// Only what this agent said, as cs2-0.
    agent: Option<String>,
    /// Only what agents of this role said, as cs2.
    role: Option<String>,
    /// Only what is at least so grave.
    #[schemars(extend("enum" = Level::ALL.map(Level::as_str)))]
    level: Option<String>,
}

/// What of a job's journal is followed: all of it but some lines of the log.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Followed {
    /// The UID of an older job of the name.
    uid: Option<String>,
    /// Only what has a higher number.
    after: Option<u64>,
    /// Of the log only what this agent said, as cs2-0.
    agent: Option<String>,
    /// Of the log only what agents of this role said, as cs2.
    role: Option<String>,
    /// Of the log only what is at least so grave.
    #[schemars(extend("enum" = Level::ALL.map(Level::as_str)))]
    level: Option<String>,
}

impl WhichPoints {
    fn mode(&self) -> Result<Option<Mode>> {
        let known = |name| Mode::ALL.into_iter().find(|mode| mode.as_str() == name);
        let mode = self.mode.as_deref().map(|name| known(name).ok_or_else(|| wrong("mode", "train or eval")));
        mode.transpose()
    }

    /// Returns the number of points that the whole curve is thinned to; `None` if `maxPoints` is not set.
    fn thinned(&self, live: bool) -> Result<Option<u32>> {
        if self.max_points.is_some() && (live || self.after.unwrap_or(0) > 0 || self.attempt.is_some()) {
            return Err(wrong(
                "maxPoints",
                "for whole curves: leave it out of a live stream, and with after and attempt",
            ));
        }
        Ok(self.max_points.map(|most| most.clamp(2, MOST)))
    }
}

impl WhichLines {
    fn query(self) -> Result<Query> {
        Ok(Query {
            after: self.after.unwrap_or(0),
            kinds: vec![Kind::Log],
            attempt: self.attempt,
            level: gravest(self.level.as_deref())?,
            agent: self.agent,
            role: self.role,
            limit: on_a_page(self.limit),
            ..Query::default()
        })
    }
}

fn on_a_page(limit: Option<u32>) -> u32 {
    limit.unwrap_or(USUAL).clamp(1, MOST)
}

/// Returns the number of a level, as the database orders them.
fn gravest(name: Option<&str>) -> Result<Option<u8>> {
    let known = |name: &str| Level::ALL.into_iter().find(|level| level.as_str().eq_ignore_ascii_case(name));
    let wrong = || wrong("level", "DEBUG, VERBOSE, INFO, WARNING or ERROR");
    name.map(|name| known(name).map(gravity).ok_or_else(wrong)).transpose()
}

/// Whether the client requests a live stream.
fn is_live(headers: &HeaderMap) -> bool {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepts.contains("text/event-stream")
}

/// Returns the position in `Last-Event-ID`, which a client sends when it reconnects.
fn last_heard<T: FromStr>(headers: &HeaderMap) -> Result<Option<T>> {
    let Some(value) = headers.get("last-event-id").filter(|value| !value.is_empty()) else { return Ok(None) };
    let read = value.to_str().ok().and_then(|text| text.parse().ok());
    let wrong =
        || Refusal::new(Reason::BadRequest, "Last-Event-ID is no id of this stream: leave it out to begin anew");
    read.map(Some).ok_or_else(wrong)
}

/// Returns the number after which a live stream begins.
fn from(headers: &HeaderMap, after: Option<u64>) -> Result<u64> {
    Ok(last_heard(headers)?.or(after).unwrap_or(0))
}

async fn meant(api: &Api, who: &Who, act: Act, path: &JobPath, uid: Option<&str>) -> Result<Job> {
    who.may(act, &path.ns, &path.name).await?;
    api.job(path, uid).await
}

/// Returns the events of a job.
pub async fn events(
    State(api): State<Arc<Api>>,
    who: Who,
    Named(path): Named<JobPath>,
    Asked(asked): Asked<WhichEvents>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = meant(&api, &who, Act::Read, &path, asked.uid.as_deref()).await?;
    if is_live(&headers) {
        let after = from(&headers, asked.after)?;
        return Ok(live::stream(api, job, Wanted { events: Some(after), ..Wanted::default() }, who, Act::Read));
    }
    let limit = on_a_page(asked.limit);
    let events = api.store.events(&job.uid, asked.after.unwrap_or(0), limit).await?;
    let full = events.len() == limit as usize;
    Ok(Json(page(events.iter().map(shown_event).collect(), full)).into_response())
}

/// Returns the curves of a job, with one point for each step.
pub async fn metrics(
    State(api): State<Arc<Api>>,
    who: Who,
    Named(path): Named<JobPath>,
    Asked(asked): Asked<WhichPoints>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = meant(&api, &who, Act::Read, &path, asked.uid.as_deref()).await?;
    let (mode, live) = (asked.mode()?, is_live(&headers));
    if let Some(most) = asked.thinned(live)? {
        let points = api.store.metrics(&job.uid, mode.unwrap_or(Mode::Train), most).await?;
        return Ok(Json(page(points.iter().map(shown_entry).collect(), false)).into_response());
    }
    let kinds = vec![Kind::Metric];
    let after = asked.after.unwrap_or(0);
    // If a step ran twice, the point that counts; in a live stream, the newest so far.
    let query = Query { after, kinds, mode, attempt: asked.attempt, curve: true, ..Query::default() };
    if live {
        let query = Query { after: from(&headers, asked.after)?, ..query };
        return Ok(live::stream(api, job, Wanted { entries: Some(query), ..Wanted::default() }, who, Act::Read));
    }
    pages(&api, &job, Query { limit: on_a_page(asked.limit), ..query }).await
}

/// Returns the log lines of a job's agents.
pub async fn logs(
    State(api): State<Arc<Api>>,
    who: Who,
    Named(path): Named<JobPath>,
    Asked(asked): Asked<WhichLines>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = meant(&api, &who, Act::ReadLogs, &path, asked.uid.as_deref()).await?;
    let (live, after) = (is_live(&headers), asked.after);
    let query = asked.query()?;
    if live {
        let query = Query { after: from(&headers, after)?, ..query };
        return Ok(live::stream(api, job, Wanted { entries: Some(query), ..Wanted::default() }, who, Act::ReadLogs));
    }
    pages(&api, &job, query).await
}

/// Streams everything about a job.
pub async fn follow(
    State(api): State<Arc<Api>>,
    who: Who,
    Named(path): Named<JobPath>,
    Asked(asked): Asked<Followed>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = meant(&api, &who, Act::ReadLogs, &path, asked.uid.as_deref()).await?;
    let begin = Position { entry: asked.after.unwrap_or(0), event: 0 };
    let Position { entry: after, event } = last_heard(&headers)?.unwrap_or(begin);
    let level = gravest(asked.level.as_deref())?;
    let query = Query { after, agent: asked.agent, role: asked.role, level, lines_only: true, ..Query::default() };
    Ok(live::stream(api, job, Wanted { entries: Some(query), events: Some(event), job: true }, who, Act::ReadLogs))
}

async fn pages(api: &Api, job: &Job, query: Query) -> Result<Response> {
    let entries = api.store.entries(&job.uid, &query).await?;
    let full = entries.len() == query.limit as usize;
    Ok(Json(page(entries.iter().map(shown_entry).collect(), full)).into_response())
}

/// Returns the JSON of a journal entry for clients: number, time and attempt, and the fields of its body.
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
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Told {
    /// The higher, the later.
    number: u64,
    /// When, by RFC 3339.
    time: String,
    /// How grave.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["Normal", "Warning"]))]
    kind: &'static str,
    /// One word.
    reason: String,
    /// A sentence.
    message: String,
}

/// Returns the JSON of an event.
pub fn shown_event(event: &Event) -> Value {
    let told = &event.event;
    json!(Told {
        number: event.number,
        time: time(told.at_ms),
        kind: if told.warning { "Warning" } else { "Normal" },
        reason: told.reason.clone(),
        message: told.message.clone(),
    })
}
