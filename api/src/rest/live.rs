//! Server-sent events: what is there beyond a number, then what comes. The numbers are those that the database keeps, so a
//! client that lost its connection goes on where it was, without loss and without a repeat.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use k8s_openapi::jiff::Timestamp;
use millrace_store::{Change, Job, Kind, Query};
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

/// Tells of `job` until it is over and all is told, or until `who` may not do `act` with it any more.
pub fn stream(api: Arc<Api>, job: Job, wanted: Wanted, who: Who, act: Act) -> Response {
    let (out, told) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let (changes, asked) = (api.store.changes(), Instant::now());
        let teller = Teller { changes, version: 0, api, uid: job.uid, wanted, out, who, act, asked };
        if let Err(error) = teller.run().await {
            // The client begins again where it was.
            log::warn!("a live stream ends early: {error}");
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
        let attempt = shown(job)["status"]["attempt"].as_u64();
        let last = Query { kinds: vec![Kind::Outcome], attempt, limit: 1, ..Query::default() };
        Ok(job.deleted_ms.is_none() && !self.api.store.entries(&self.uid, &last).await?.is_empty())
    }

    /// Tells what is new; whether the client still listens.
    async fn tell(&mut self, job: &Job) -> Result<bool> {
        if self.wanted.job && job.version != self.version {
            self.version = job.version;
            if !self.send(Event::default().event("job").data(shown(job).to_string())).await {
                return Ok(false);
            }
        }
        while let Some(after) = self.wanted.events {
            let events = self.api.store.events(&self.uid, after, PAGE).await?;
            let Some(last) = events.last() else { break };
            self.wanted.events = Some(last.number);
            for event in &events {
                let mut told = Event::default().event("event").data(shown_event(event).to_string());
                if self.wanted.entries.is_none() {
                    told = told.id(event.number.to_string());
                }
                if !self.send(told).await {
                    return Ok(false);
                }
            }
        }
        while let Some(query) = &mut self.wanted.entries {
            query.limit = PAGE;
            let entries = self.api.store.entries(&self.uid, query).await?;
            let Some(last) = entries.last() else { break };
            query.after = last.number;
            for entry in &entries {
                let told = Event::default().event(entry.kind.as_str()).id(entry.number.to_string());
                if !self.send(told.data(shown_entry(entry).to_string())).await {
                    return Ok(false);
                }
            }
        }
        Ok(true)
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
