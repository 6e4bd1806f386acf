//! Server-sent events of a job: first what is recorded after a number, then what is added. The numbers are those of the
//! database, so a client that reconnects with `Last-Event-ID` misses nothing and receives nothing twice.

use std::collections::VecDeque;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use k8s_openapi::jiff::Timestamp;
use millrace_crds::State;
use millrace_store::{Change, Entry, Job, Kind, Query};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::records::{shown_entry, shown_event};
use super::who::{Act, Who};
use super::{Api, shown};
use crate::refusal::{Reason, Result};

/// Interval of reads of the database without a notification: other servers write to it, too.
const LOOK: Duration = Duration::from_secs(2);
/// Interval of checks that the client is still authorized.
const ASKING: Duration = Duration::from_secs(10);
/// Interval of comments that keep proxies from closing a quiet stream.
const ALIVE: Duration = Duration::from_secs(15);
/// Entries that are read at once.
const PAGE: u32 = 256;
/// Events that are queued for a client; the stream waits for a slow one.
const AHEAD: usize = 64;
/// Milliseconds after the end of a job in which the last entries of its journal may still be copied.
const SETTLING_MS: i64 = 3_000;

/// What a stream sends.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Entries of the journal that match this query and have a higher number than its `after`.
    pub entries: Option<Query>,
    /// Events with a higher number than this.
    pub events: Option<u64>,
    /// The job itself, whenever it changes.
    pub job: bool,
}

impl Wanted {
    fn heard(&mut self, entry: u64) {
        if let Some(query) = &mut self.entries {
            query.after = entry;
        }
    }

    /// Returns the id of what was sent last.
    fn id(&self) -> String {
        match (&self.entries, self.events) {
            (Some(query), Some(event)) => Position { entry: query.after, event }.to_string(),
            (Some(query), None) => query.after.to_string(),
            (None, event) => event.unwrap_or_default().to_string(),
        }
    }
}

/// Position of a client in a stream: the id of an event, and the value of `Last-Event-ID`. A stream of either entries
/// or events has one number as its id, a stream of both `ENTRY.EVENT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Number of the last journal entry.
    pub entry: u64,
    /// Number of the last event.
    pub event: u64,
}

impl FromStr for Position {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (entry, event) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self { entry: entry.parse()?, event: event.parse()? })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.entry, self.event)
    }
}

/// Streams `job` until it is finished and everything is sent, or until `who` may no longer perform `act`.
pub fn stream(api: Arc<Api>, job: Job, wanted: Wanted, who: Who, act: Act) -> Response {
    let (out, told) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let _counted = api.traffic.stream();
        let (changes, asked) = (api.store.changes(), Instant::now());
        let teller = Teller { changes, version: 0, api, uid: job.uid, wanted, out, who, act, asked };
        if let Err(error) = teller.run().await {
            // The client reconnects and continues at its position.
            tracing::warn!("a live stream ends early: {error}");
        }
    });
    let told = ReceiverStream::new(told).map(Ok::<_, std::convert::Infallible>);
    Sse::new(told).keep_alive(KeepAlive::new().interval(ALIVE)).into_response()
}

struct Teller {
    api: Arc<Api>,
    uid: String,
    wanted: Wanted,
    out: mpsc::Sender<Event>,
    changes: broadcast::Receiver<Change>,
    /// Version of the job that was sent last.
    version: u64,
    who: Who,
    act: Act,
    /// Time of the last authorization check.
    asked: Instant,
}

impl Teller {
    async fn run(mut self) -> Result<()> {
        loop {
            // The job is read before its records: when it is seen as finished, the records that are read afterwards are
            // complete.
            let Some(job) = self.api.store.job(&self.uid).await? else { return Ok(()) };
            if !self.may_listen(&job).await {
                return Ok(());
            }
            let over = self.is_over(&job).await?;
            let heard = self.tell(&job).await?;
            if !heard {
                return Ok(());
            }
            if over {
                let _ = self.out.send(Event::default().event("end").data("{}")).await;
                return Ok(());
            }
            self.wait().await;
        }
    }

    /// Whether the client is still authorized, checked every [`ASKING`]. A revoked token ends its streams.
    async fn may_listen(&mut self, job: &Job) -> bool {
        if self.asked.elapsed() < ASKING {
            return true;
        }
        self.asked = Instant::now();
        match self.who.still_may(&self.api, self.act, &job.namespace, &job.name).await {
            Ok(()) => true,
            // If the check fails for another reason, it is repeated later.
            Err(refusal) => !matches!(refusal.reason, Reason::Unauthorized | Reason::Forbidden),
        }
    }

    /// Whether nothing more will be recorded for the job.
    async fn is_over(&self, job: &Job) -> Result<bool> {
        let Some(finished) = job.deleted_ms.or(job.content.finished_ms) else { return Ok(false) };
        if Timestamp::now().as_millisecond() - finished > SETTLING_MS {
            return Ok(true);
        }
        if job.deleted_ms.is_some() {
            return Ok(false);
        }
        // The event that a job has finished is written after its status; on a cluster it arrives by another watch.
        if let Some(state) = job.content.state.as_deref().filter(|_| self.wanted.events.is_some())
            && !self.api.store.has_event(&self.uid, state).await?
        {
            return Ok(false);
        }
        let attempt = shown(job)["status"]["attempt"].as_u64();
        let last = Query { kinds: vec![Kind::Outcome], attempt, limit: 1, ..Query::default() };
        Ok(!self.api.store.entries(&self.uid, &last).await?.is_empty())
    }

    /// Sends what is new; returns whether the client is still connected.
    async fn tell(&mut self, job: &Job) -> Result<bool> {
        // A client that waits for the suspension disconnects when it receives it, so it is sent after the records
        // before it.
        let rests = job.content.state.as_deref() == Some(State::Suspended.as_str());
        Ok((rests || self.tell_job(job).await) && self.tell_records().await? && (!rests || self.tell_job(job).await))
    }

    async fn tell_job(&mut self, job: &Job) -> bool {
        if !self.wanted.job || job.version == self.version {
            return true;
        }
        self.version = job.version;
        self.send(Event::default().event("job").data(shown(job).to_string())).await
    }

    /// Sends events and entries, each in the order of their numbers and merged by their times.
    async fn tell_records(&mut self) -> Result<bool> {
        let (mut events, mut entries) = (VecDeque::new(), VecDeque::new());
        let (mut more_events, mut more_entries) = (self.wanted.events.is_some(), self.wanted.entries.is_some());
        loop {
            if more_events && events.is_empty() {
                events = self.api.store.events(&self.uid, self.wanted.events.unwrap_or(0), PAGE).await?.into();
                more_events = events.len() == PAGE as usize;
            }
            if let Some(query) = self.wanted.entries.as_ref().filter(|_| more_entries && entries.is_empty()) {
                let query = Query { limit: PAGE, ..query.clone() };
                entries = self.api.store.entries(&self.uid, &query).await?.into();
                more_entries = entries.len() == PAGE as usize;
            }
            let event_is_next = match (events.front(), entries.front()) {
                (Some(event), Some(entry)) => event.event.at_ms <= entry.at_ms,
                (event, _) => event.is_some(),
            };
            let told = if event_is_next {
                events.pop_front().map(|event: millrace_store::Event| {
                    self.wanted.events = Some(event.number);
                    Event::default().event("event").data(shown_event(&event).to_string())
                })
            } else {
                entries.pop_front().map(|entry: Entry| {
                    self.wanted.heard(entry.number);
                    Event::default().event(entry.kind.as_str()).data(shown_entry(&entry).to_string())
                })
            };
            let Some(told) = told else { return Ok(true) };
            if !self.send(told.id(self.wanted.id())).await {
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
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}
