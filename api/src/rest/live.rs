//! Server-sent events: what is there beyond a number, then what comes. The numbers are those that the database keeps, so a
//! client that lost its connection goes on where it was, without loss and without a repeat.

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

/// Between two looks where nothing is told: other servers write, too.
const LOOK: Duration = Duration::from_secs(2);
/// Between two questions whether the client may still listen.
const ASKING: Duration = Duration::from_secs(10);
/// Comments that keep proxies from closing a quiet stream.
const ALIVE: Duration = Duration::from_secs(15);
/// Entries read at a time.
const PAGE: u32 = 256;
/// Events on their way to a client; a slow one is waited for.
const AHEAD: usize = 64;
/// After the end of a job, for the last of its journal to be copied.
const SETTLING_MS: i64 = 3_000;

/// What a client wants to hear of.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Entries of the journal; what is asked for, and after which number.
    pub entries: Option<Query>,
    /// Events, after this number.
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

    /// The id of what was told last.
    fn id(&self) -> String {
        match (&self.entries, self.events) {
            (Some(query), Some(event)) => Position { entry: query.after, event }.to_string(),
            (Some(query), None) => query.after.to_string(),
            (None, event) => event.unwrap_or_default().to_string(),
        }
    }
}

/// How far a client has heard: what the id of an event says, and `Last-Event-ID` after it. One number where the stream tells of
/// one kind of thing; of everything, `ENTRY.EVENT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The number of the last entry of the journal.
    pub entry: u64,
    /// The number of the last event.
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

/// Tells of `job` until it is over and all is told, or until `who` may not do `act` with it any more.
pub fn stream(api: Arc<Api>, job: Job, wanted: Wanted, who: Who, act: Act) -> Response {
    let (out, told) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let _counted = api.traffic.stream();
        let (changes, asked) = (api.store.changes(), Instant::now());
        let teller = Teller { changes, version: 0, api, uid: job.uid, wanted, out, who, act, asked };
        if let Err(error) = teller.run().await {
            // The client begins again where it was.
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
    /// The newest of the job that was told.
    version: u64,
    who: Who,
    act: Act,
    /// When it was last asked whether they may.
    asked: Instant,
}

impl Teller {
    async fn run(mut self) -> Result<()> {
        loop {
            // Looked at before what lies under it: what it says has ended has written all it will.
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

    /// Whether whoever listens may: a token that is revoked ends what was begun with it.
    async fn may_listen(&mut self, job: &Job) -> bool {
        if self.asked.elapsed() < ASKING {
            return true;
        }
        self.asked = Instant::now();
        match self.who.still_may(&self.api, self.act, &job.namespace, &job.name).await {
            Ok(()) => true,
            // Where it can't be found out at present, it is asked again.
            Err(refusal) => !matches!(refusal.reason, Reason::Unauthorized | Reason::Forbidden),
        }
    }

    /// Whether nothing more will come.
    async fn is_over(&self, job: &Job) -> Result<bool> {
        let Some(finished) = job.deleted_ms.or(job.content.finished_ms) else { return Ok(false) };
        if Timestamp::now().as_millisecond() - finished > SETTLING_MS {
            return Ok(true);
        }
        if job.deleted_ms.is_some() {
            return Ok(false);
        }
        // The event that a job has finished is written after its status, and on a cluster comes by a watch of its own.
        if let Some(state) = job.content.state.as_deref().filter(|_| self.wanted.events.is_some())
            && !self.api.store.has_event(&self.uid, state).await?
        {
            return Ok(false);
        }
        let attempt = shown(job)["status"]["attempt"].as_u64();
        let last = Query { kinds: vec![Kind::Outcome], attempt, limit: 1, ..Query::default() };
        Ok(!self.api.store.entries(&self.uid, &last).await?.is_empty())
    }

    /// Tells what is new; whether the client still listens.
    async fn tell(&mut self, job: &Job) -> Result<bool> {
        // Whoever waits for a pause leaves when it is told: after all that came before it.
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

    /// Tells events and entries, each in the order of their numbers, and both in the order of their times.
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

    /// Waits until something may be new, or the client is gone.
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
