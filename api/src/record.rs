//! Copying a coordinator's journal into the database, entry by entry under the numbers it has there: nothing is lost and
//! nothing doubled, whenever the copying ends and goes on.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use millrace_protocol::journal::{self, Journal};
use millrace_protocol::proto::journal_client::JournalClient;
use millrace_protocol::proto::{self, FollowRequest};
use millrace_store::{Entry, Kind, Mode, Store};
use millrace_telemetry::journal::Event;
use millrace_telemetry::logs::Level;
use millrace_telemetry::metrics::Point;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Channel;

use crate::metrics::JOURNALS;
use crate::unheard;

/// Entries written in one transaction, and how long the first of them waits for the others.
const BATCH: usize = 256;
const GATHER: Duration = Duration::from_millis(100);
/// Between two tries.
const RETRY: Duration = Duration::from_secs(1);
/// Tries in a row that lead nowhere before the coordinator counts as gone; its next attempt tells what is missing.
const TRIES: u32 = 5;

/// Copies what the coordinator of `journal` tells of the job, until it has told all or is gone.
pub async fn copy(store: &Store, uid: &str, journal: &Journal) {
    let mut failures = 0;
    while failures < TRIES {
        match dial(store, uid, journal).await {
            Ok(true) => return,
            Ok(false) => failures = 0,
            Err(error) => tracing::debug!(%uid, "the journal is not copied at present: {error}"),
        }
        failures += 1;
        tokio::time::sleep(RETRY).await;
    }
}

/// Logs that a journal could not be caught up with: it is tried again when the server starts.
pub fn tell(caught_up: Result<(), String>, uid: &str) {
    if let Err(error) = caught_up {
        tracing::warn!(%uid, "what the job's journal files have beyond the database could not be copied: {error}");
    }
}

/// Copies what stands in the journal's files and was never heard: the coordinator, or the server, died before it was told.
///
/// # Errors
/// The files or the database can't be read or written: a sentence.
pub async fn catch_up(store: &Store, uid: &str, model_dir: &Path) -> Result<(), String> {
    let from = store.newest_entry(uid).await.map_err(|error| error.to_string())? + 1;
    let unheard = unheard::entries(model_dir.to_owned(), uid.to_owned(), from);
    keep(store, uid, ReceiverStream::new(unheard), |_| {}).await.map(drop)
}

async fn dial(store: &Store, uid: &str, journal: &Journal) -> Result<bool, String> {
    follow(store, uid, journal.connect().await.map_err(|error| error.to_string())?).await
}

/// Copies from the first entry that is not there yet, as long as the stream goes on; whether it came to the end of an attempt.
///
/// # Errors
/// The stream broke, or the database can't be written: a sentence. What came before is kept.
pub async fn follow(store: &Store, uid: &str, mut client: JournalClient<Channel>) -> Result<bool, String> {
    let from = store.newest_entry(uid).await.map_err(|error| error.to_string())? + 1;
    let stream = client.follow(FollowRequest { from, newest: false }).await.map_err(|status| status.to_string())?;
    let _counted = JOURNALS.follow();
    keep(store, uid, stream.into_inner(), told_lag).await
}

/// Counts how long after their coordinator these entries were written here. A clock that is ahead counts as no time.
fn told_lag(entries: &[Entry]) {
    let now = Timestamp::now().as_millisecond();
    if let Some(oldest) = entries.first() {
        JOURNALS.copied(Duration::from_millis(u64::try_from(now - oldest.at_ms).unwrap_or(0)));
    }
}

/// Writes entries as they come, for as long as they do, and gives those of each transaction to `written`; whether an
/// outcome was the last.
///
/// # Errors
/// What ended them before their end, or the database: a sentence.
async fn keep<E: Display>(
    store: &Store,
    uid: &str,
    entries: impl Stream<Item = Result<proto::Entry, E>>,
    written: impl Fn(&[Entry]),
) -> Result<bool, String> {
    let batches = entries.chunks_timeout(BATCH, GATHER);
    tokio::pin!(batches);
    let mut over = false;
    while let Some(batch) = batches.next().await {
        let (mut entries, mut broken) = (Vec::with_capacity(batch.len()), None);
        for entry in batch {
            match entry {
                // What a later version tells is left out.
                Ok(entry) => entries.extend(journal_entry(&entry)),
                Err(error) => broken = Some(error.to_string()),
            }
        }
        over = entries.last().map_or(over, |entry| entry.kind == Kind::Outcome);
        store.append(uid, &entries).await.map_err(|error| error.to_string())?;
        written(&entries);
        if let Some(broken) = broken {
            return Err(broken);
        }
    }
    Ok(over)
}

/// An entry as the database keeps it.
fn journal_entry(packed: &proto::Entry) -> Option<Entry> {
    let entry = journal::unpack(packed).ok()?;
    let (mut mode, mut step, mut agent, mut level) = (None, None, None, None);
    let kind = match &entry.event {
        Event::Metric(point) => {
            mode = Some(if matches!(point, Point::Train(_)) { Mode::Train } else { Mode::Eval });
            step = Some(point.step());
            Kind::Metric
        }
        Event::Log(record) => {
            agent = Some(record.agent.to_string());
            level = Some(gravity(record.level));
            Kind::Log
        }
        Event::State(state) => {
            step = Some(state.step);
            Kind::State
        }
        Event::Checkpoint { step: at, .. } => {
            step = Some(*at);
            Kind::Checkpoint
        }
        // Their sentences are in the log, too.
        Event::CheckpointFailed { .. } | Event::Dropped(_) => return None,
        Event::Outcome(outcome) => {
            step = Some(outcome.step);
            Kind::Outcome
        }
    };
    Some(Entry {
        number: entry.seq,
        attempt: entry.attempt,
        at_ms: i64::try_from(entry.unix_ms).unwrap_or(i64::MAX),
        kind,
        mode,
        step,
        agent,
        level,
        body: packed.body.clone(),
    })
}

/// A level as the database orders it: the graver, the higher.
pub fn gravity(level: Level) -> u8 {
    match level {
        Level::Debug => 0,
        Level::Verbose => 1,
        Level::Info => 2,
        Level::Warning => 3,
        Level::Error => 4,
    }
}
