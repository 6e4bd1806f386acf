//! Live streams: server-sent events of a job. A stream sends the recorded entries after a number, then new ones as they
//! are added.
//!
//! * Ids are numbers of the database, so a client that reconnects with `Last-Event-ID` misses nothing and receives
//!   nothing twice.
//! * A stream ends when the job has finished and everything is sent, or when its client loses the permission (checked
//!   every [`REAUTHORIZE_INTERVAL`]).

use std::collections::VecDeque;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use k8s_openapi::jiff::Timestamp;
use millrace_crds::JobState;
use millrace_protocol::error_chain;
use millrace_store::{ChangeNotice, EntryKind, EntryQuery, JobRecord, JournalRecord};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::auth::Caller;
use super::record_views::{entry_json, event_json};
use super::{AppState, job_json};
use crate::error::{ErrorReason, Result};

/// Interval of reads of the database without a notification: other servers write to it, too.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of checks that the client is still authorized.
pub const REAUTHORIZE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of comments that keep proxies from closing a quiet stream.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Entries that are read at once.
const READ_BATCH_ENTRIES: u32 = 256;
/// Events that are queued for a client; the stream waits for a slow one.
const MAX_QUEUED_EVENTS: usize = 64;
/// Milliseconds after the end of a job in which the last entries of its journal may still be copied.
const JOURNAL_DRAIN_MS: i64 = 3_000;

/// Whether the client requests server-sent events.
pub fn wants_event_stream(headers: &HeaderMap) -> bool {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepts.contains("text/event-stream")
}

/// What a stream sends.
#[derive(Clone, Debug, Default)]
pub struct StreamFilter {
    /// Entries of the journal that match this query and have a higher number than its `after`.
    pub entries: Option<EntryQuery>,
    /// Events with a higher number than this.
    pub events: Option<u64>,
    /// The job itself, whenever it changes.
    pub job: bool,
}

impl StreamFilter {
    fn advance_entry(&mut self, entry: u64) {
        if let Some(query) = &mut self.entries {
            query.after = entry;
        }
    }

    /// Returns the id of what was sent last.
    fn id(&self) -> String {
        match (&self.entries, self.events) {
            (Some(query), Some(event)) => StreamPosition { entry: query.after, event }.to_string(),
            (Some(query), None) => query.after.to_string(),
            (None, event) => event.unwrap_or_default().to_string(),
        }
    }
}

/// Position of a client in a stream: the id of an event, and the value of `Last-Event-ID`. A stream of either entries
/// or events has one number as its id, a stream of both `ENTRY.EVENT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamPosition {
    /// Number of the last journal entry.
    pub entry: u64,
    /// Number of the last event.
    pub event: u64,
}

impl FromStr for StreamPosition {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (entry, event) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self { entry: entry.parse()?, event: event.parse()? })
    }
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.entry, self.event)
    }
}

/// Streams `job` until it is finished and everything is sent, or until `caller` loses the permission of its route.
pub fn stream(api: Arc<AppState>, job: JobRecord, filter: StreamFilter, caller: Caller) -> Response {
    let (out, events) = mpsc::channel(MAX_QUEUED_EVENTS);
    tokio::spawn(async move {
        let _counted = api.traffic.count_stream();
        let (changes, now) = (api.store.changes(), Instant::now());
        let live_stream =
            LiveStream { changes, version: 0, api, uid: job.uid, filter, out, caller, last_authorized: now };
        if let Err(error) = live_stream.run().await {
            // The client reconnects and continues at its position.
            tracing::warn!("a live stream ends early: {}", error_chain(&error));
        }
    });
    let events = ReceiverStream::new(events).map(Ok::<_, std::convert::Infallible>);
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)).into_response()
}

struct LiveStream {
    api: Arc<AppState>,
    uid: String,
    filter: StreamFilter,
    out: mpsc::Sender<Event>,
    changes: broadcast::Receiver<ChangeNotice>,
    /// Version of the job that was sent last.
    version: u64,
    caller: Caller,
    /// Time of the last authorization check.
    last_authorized: Instant,
}

impl LiveStream {
    async fn run(mut self) -> Result<()> {
        loop {
            // The job is read before its records: if this read returns a finished job, the records read after it are
            // complete.
            let Some(job) = self.api.store.job(&self.uid).await? else { return Ok(()) };
            if !self.is_still_authorized().await {
                return Ok(());
            }
            let is_finished = self.is_finished(&job).await?;
            let is_connected = self.send_new(&job).await?;
            if !is_connected {
                return Ok(());
            }
            if is_finished {
                let _ = self.out.send(Event::default().event("end").data("{}")).await;
                return Ok(());
            }
            self.wait().await;
        }
    }

    /// Whether the client is still authorized, checked every [`REAUTHORIZE_INTERVAL`]. A revoked token ends its
    /// streams.
    async fn is_still_authorized(&mut self) -> bool {
        if self.last_authorized.elapsed() < REAUTHORIZE_INTERVAL {
            return true;
        }
        self.last_authorized = Instant::now();
        match self.caller.reauthorize(&self.api).await {
            Ok(()) => true,
            // If the check fails for another reason, it is repeated later.
            Err(refusal) => !matches!(refusal.reason, ErrorReason::Unauthorized | ErrorReason::Forbidden),
        }
    }

    /// Whether nothing more will be recorded for the job.
    async fn is_finished(&self, job: &JobRecord) -> Result<bool> {
        let Some(finished) = job.deleted_ms.or(job.content.finished_ms) else { return Ok(false) };
        if Timestamp::now().as_millisecond() - finished > JOURNAL_DRAIN_MS {
            return Ok(true);
        }
        if job.deleted_ms.is_some() {
            return Ok(false);
        }
        // The event that a job has finished is written after its status; on a cluster it arrives by another watch.
        if let Some(state) = job.content.state.as_deref().filter(|_| self.filter.events.is_some())
            && !self.api.store.has_event(&self.uid, state).await?
        {
            return Ok(false);
        }
        let attempt = job_json(job)["status"]["attempt"].as_u64();
        let last = EntryQuery { kinds: vec![EntryKind::Outcome], attempt, limit: 1, ..EntryQuery::default() };
        Ok(!self.api.store.entries(&self.uid, &last).await?.is_empty())
    }

    /// Sends what is new; returns whether the client is still connected.
    async fn send_new(&mut self, job: &JobRecord) -> Result<bool> {
        // A client that waits for the suspension disconnects when it receives that state, so the earlier records are
        // sent first.
        let is_suspended = job.content.state.as_deref() == Some(JobState::Suspended.as_str());
        Ok((is_suspended || self.send_job(job).await)
            && self.send_records().await?
            && (!is_suspended || self.send_job(job).await))
    }

    async fn send_job(&mut self, job: &JobRecord) -> bool {
        if !self.filter.job || job.version == self.version {
            return true;
        }
        self.version = job.version;
        self.send(Event::default().event("job").data(job_json(job).to_string())).await
    }

    /// Sends events and entries, each in the order of their numbers and merged by their times.
    async fn send_records(&mut self) -> Result<bool> {
        let (mut events, mut entries) = (VecDeque::new(), VecDeque::new());
        let (mut more_events, mut more_entries) = (self.filter.events.is_some(), self.filter.entries.is_some());
        loop {
            if more_events && events.is_empty() {
                events =
                    self.api.store.events(&self.uid, self.filter.events.unwrap_or(0), READ_BATCH_ENTRIES).await?.into();
                more_events = events.len() == READ_BATCH_ENTRIES as usize;
            }
            if let Some(query) = self.filter.entries.as_ref().filter(|_| more_entries && entries.is_empty()) {
                let query = EntryQuery { limit: READ_BATCH_ENTRIES, ..query.clone() };
                entries = self.api.store.entries(&self.uid, &query).await?.into();
                more_entries = entries.len() == READ_BATCH_ENTRIES as usize;
            }
            let event_is_next = match (events.front(), entries.front()) {
                (Some(event), Some(entry)) => event.event.at_ms <= entry.at_ms,
                (event, _) => event.is_some(),
            };
            let next = if event_is_next {
                events.pop_front().map(|event: millrace_store::EventRecord| {
                    self.filter.events = Some(event.number);
                    Event::default().event("event").data(event_json(&event).to_string())
                })
            } else {
                entries.pop_front().map(|entry: JournalRecord| {
                    self.filter.advance_entry(entry.number);
                    Event::default().event(entry.kind.as_str()).data(entry_json(&entry).to_string())
                })
            };
            let Some(next) = next else { return Ok(true) };
            if !self.send(next.id(self.filter.id())).await {
                return Ok(false);
            }
        }
    }

    async fn send(&self, event: Event) -> bool {
        self.out.send(event).await.is_ok()
    }

    /// Waits until something may be new, or the client disconnects.
    async fn wait(&mut self) {
        let changed = async {
            loop {
                match self.changes.recv().await {
                    Ok(change) if change.uid != self.uid => {}
                    Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
                }
            }
        };
        tokio::select! {
            () = changed => {}
            () = self.out.closed() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}
