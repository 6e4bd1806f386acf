//! Handlers for events, metrics and logs of a job, as pages or live streams.

use std::str::FromStr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use millrace_store::{EntryKind, EntryQuery, JobRecord, MetricMode};
use millrace_telemetry::logs::Level;
use schemars::JsonSchema;
use serde::Deserialize;

use super::auth::Caller;
use super::live_stream::{self, StreamFilter, StreamPosition, wants_event_stream};
use super::record_views::{entry_json, event_json};
use super::{AppState, JobPath, ValidPath, ValidQuery, bad_query_parameter, page};
use crate::error::{ApiError, ErrorReason, Result};
use crate::journal_copy::severity;

/// Limit and default of the items of a page.
pub const MAX_PAGE_ITEMS: u32 = 10_000;
pub const DEFAULT_PAGE_ITEMS: u32 = 1000;

/// Query parameters: filters of events.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventsQuery {
    /// UID of an older job with this name.
    uid: Option<String>,
    /// Only items with a higher number: `next` of the previous page.
    after: Option<u64>,
    /// Maximum number of events in a page, at most 10000; 1000 if omitted.
    limit: Option<u32>,
}

/// Query parameters: filters of points.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricsQuery {
    /// UID of an older job with this name.
    uid: Option<String>,
    /// Only items with a higher number: `next` of the previous page.
    after: Option<u64>,
    /// Maximum number of points in a page, at most 10000; 1000 if omitted.
    limit: Option<u32>,
    /// Only points of training steps (train) or of evaluations (eval).
    #[schemars(extend("enum" = MetricMode::ALL.map(MetricMode::as_str)))]
    mode: Option<String>,
    /// Thin the whole curve evenly to about this number of points, with the first and the last; the curve of training
    /// if `mode` is omitted. The response has no pages. Not valid with `after`, `attempt` or a live stream.
    max_points: Option<u32>,
    /// Only records of this attempt.
    attempt: Option<u64>,
}

/// Query parameters: filters of log lines.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogsQuery {
    /// UID of an older job with this name.
    uid: Option<String>,
    /// Only items with a higher number: `next` of the previous page.
    after: Option<u64>,
    /// Maximum number of lines in a page, at most 10000; 1000 if omitted.
    limit: Option<u32>,
    /// Only records of this attempt.
    attempt: Option<u64>,
    /// Only lines of this agent, such as cs2-0.
    agent: Option<String>,
    /// Only lines of agents of this role, such as cs2.
    role: Option<String>,
    /// Only lines of at least this level.
    #[schemars(extend("enum" = Level::ALL.map(Level::as_str)))]
    level: Option<String>,
}

/// Query parameters of a live stream: filters of log lines. Other records are always sent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FollowQuery {
    /// UID of an older job with this name.
    uid: Option<String>,
    /// Only records with a higher number.
    after: Option<u64>,
    /// Only log lines of this agent, such as cs2-0.
    agent: Option<String>,
    /// Only log lines of agents of this role, such as cs2.
    role: Option<String>,
    /// Only log lines of at least this level.
    #[schemars(extend("enum" = Level::ALL.map(Level::as_str)))]
    level: Option<String>,
}

impl MetricsQuery {
    fn mode(&self) -> Result<Option<MetricMode>> {
        let known = |name| MetricMode::ALL.into_iter().find(|mode| mode.as_str() == name);
        let mode =
            self.mode.as_deref().map(|name| known(name).ok_or_else(|| bad_query_parameter("mode", "train or eval")));
        mode.transpose()
    }

    /// Returns the number of points that the whole curve is thinned to; `None` if `maxPoints` is not set.
    fn curve_points(&self, live: bool) -> Result<Option<u32>> {
        if self.max_points.is_some() && (live || self.after.unwrap_or(0) > 0 || self.attempt.is_some()) {
            return Err(bad_query_parameter(
                "maxPoints",
                "only for complete curves: leave it out of a live stream, and with after and attempt",
            ));
        }
        Ok(self.max_points.map(|points| points.clamp(2, MAX_PAGE_ITEMS)))
    }
}

impl LogsQuery {
    fn query(self) -> Result<EntryQuery> {
        Ok(EntryQuery {
            after: self.after.unwrap_or(0),
            kinds: vec![EntryKind::Log],
            attempt: self.attempt,
            level: parse_level(self.level.as_deref())?,
            agent: self.agent,
            role: self.role,
            limit: page_size(self.limit),
            ..EntryQuery::default()
        })
    }
}

fn page_size(limit: Option<u32>) -> u32 {
    limit.unwrap_or(DEFAULT_PAGE_ITEMS).clamp(1, MAX_PAGE_ITEMS)
}

/// Returns the number of a level, as the database orders them.
fn parse_level(name: Option<&str>) -> Result<Option<u8>> {
    let known = |name: &str| Level::ALL.into_iter().find(|level| level.as_str().eq_ignore_ascii_case(name));
    let invalid = || bad_query_parameter("level", "DEBUG, VERBOSE, INFO, WARNING or ERROR");
    name.map(|name| known(name).map(severity).ok_or_else(invalid)).transpose()
}

/// Returns the position in `Last-Event-ID`, which a client sends when it reconnects.
fn last_event_id<T: FromStr>(headers: &HeaderMap) -> Result<Option<T>> {
    let Some(value) = headers.get("last-event-id").filter(|value| !value.is_empty()) else { return Ok(None) };
    let read = value.to_str().ok().and_then(|text| text.parse().ok());
    let invalid = || {
        ApiError::new(
            ErrorReason::BadRequest,
            "Last-Event-ID is not an id of this stream: leave it out to start from the beginning",
        )
    };
    read.map(Some).ok_or_else(invalid)
}

/// Returns the number after which a live stream begins.
fn start_after(headers: &HeaderMap, after: Option<u64>) -> Result<u64> {
    Ok(last_event_id(headers)?.or(after).unwrap_or(0))
}

/// Returns the events of a job, or streams them.
///
/// # Errors
/// [`ErrorReason::NotFound`]: there is no such job. [`ErrorReason::BadRequest`]: `Last-Event-ID` is invalid. The
/// database fails; a stream that has begun ends then.
pub async fn events(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(params): ValidQuery<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = api.job(&path, params.uid.as_deref()).await?;
    if wants_event_stream(&headers) {
        let after = start_after(&headers, params.after)?;
        return Ok(live_stream::stream(
            api,
            job,
            StreamFilter { events: Some(after), ..StreamFilter::default() },
            caller,
        ));
    }
    let limit = page_size(params.limit);
    let events = api.store.events(&job.uid, params.after.unwrap_or(0), limit).await?;
    let full = events.len() == limit as usize;
    Ok(Json(page(events.iter().map(event_json).collect(), full)).into_response())
}

/// Returns the curves of a job, with one point for each step.
///
/// # Errors
/// Those of [`events`]; [`ErrorReason::BadRequest`] also for invalid parameters of the curve.
pub async fn metrics(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(params): ValidQuery<MetricsQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = api.job(&path, params.uid.as_deref()).await?;
    let (mode, live) = (params.mode()?, wants_event_stream(&headers));
    if let Some(max_points) = params.curve_points(live)? {
        let points = api.store.metrics(&job.uid, mode.unwrap_or(MetricMode::Train), max_points).await?;
        return Ok(Json(page(points.iter().map(entry_json).collect(), false)).into_response());
    }
    let kinds = vec![EntryKind::Metric];
    let after = params.after.unwrap_or(0);
    // If a step ran twice, the point that counts; in a live stream, the newest so far.
    let query = EntryQuery { after, kinds, mode, attempt: params.attempt, curve: true, ..EntryQuery::default() };
    if live {
        let query = EntryQuery { after: start_after(&headers, params.after)?, ..query };
        return Ok(live_stream::stream(
            api,
            job,
            StreamFilter { entries: Some(query), ..StreamFilter::default() },
            caller,
        ));
    }
    pages(&api, &job, EntryQuery { limit: page_size(params.limit), ..query }).await
}

/// Returns the log lines of a job's agents.
///
/// # Errors
/// Those of [`events`]; [`ErrorReason::BadRequest`] also for an unknown level.
pub async fn logs(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(params): ValidQuery<LogsQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = api.job(&path, params.uid.as_deref()).await?;
    let (live, after) = (wants_event_stream(&headers), params.after);
    let query = params.query()?;
    if live {
        let query = EntryQuery { after: start_after(&headers, after)?, ..query };
        return Ok(live_stream::stream(
            api,
            job,
            StreamFilter { entries: Some(query), ..StreamFilter::default() },
            caller,
        ));
    }
    pages(&api, &job, query).await
}

/// Streams everything about a job.
///
/// # Errors
/// Those of [`logs`].
pub async fn follow(
    State(api): State<Arc<AppState>>,
    caller: Caller,
    ValidPath(path): ValidPath<JobPath>,
    ValidQuery(params): ValidQuery<FollowQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let job = api.job(&path, params.uid.as_deref()).await?;
    let begin = StreamPosition { entry: params.after.unwrap_or(0), event: 0 };
    let StreamPosition { entry: after, event } = last_event_id(&headers)?.unwrap_or(begin);
    let level = parse_level(params.level.as_deref())?;
    let query =
        EntryQuery { after, agent: params.agent, role: params.role, level, lines_only: true, ..EntryQuery::default() };
    Ok(live_stream::stream(api, job, StreamFilter { entries: Some(query), events: Some(event), job: true }, caller))
}

async fn pages(api: &AppState, job: &JobRecord, query: EntryQuery) -> Result<Response> {
    let entries = api.store.entries(&job.uid, &query).await?;
    let full = entries.len() == query.limit as usize;
    Ok(Json(page(entries.iter().map(entry_json).collect(), full)).into_response())
}
