//! Copies the journal of a coordinator into the database. The entries keep their numbers, so copying can stop and
//! continue at any time: nothing is lost, and nothing is copied twice.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use millrace_protocol::error_chain;
use millrace_protocol::journal::{self, JournalEndpoint, JournalError};
use millrace_protocol::proto::journal_client::JournalClient;
use millrace_protocol::proto::{self, FollowRequest};
use millrace_store::{EntryKind, JournalRecord, MetricMode, Store};
use millrace_telemetry::journal::JournalEvent;
use millrace_telemetry::logs::Level;
use millrace_telemetry::metrics_log::MetricPoint;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Channel;

use crate::journal_files::{self, JournalFileError};
use crate::metrics::JOURNAL_METRICS;

/// Maximum number of entries in one transaction, and how long the first of them waits for the others.
const WRITE_BATCH_ENTRIES: usize = 256;
const MAX_BATCH_DELAY: Duration = Duration::from_millis(100);
/// Interval of retries.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive failed tries after which the coordinator counts as lost. The next attempt sends what is
/// missing.
const MAX_CONSECUTIVE_TRIES: u32 = 5;

/// Why a journal can't be copied at present. Entries that were copied before are kept.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The database failed.
    #[error(transparent)]
    Store(#[from] millrace_store::Error),
    /// The coordinator can't be reached.
    #[error(transparent)]
    Connect(#[from] JournalError),
    /// The stream ended with an error.
    #[error(transparent)]
    Stream(#[from] tonic::Status),
    /// A file of the journal can't be read.
    #[error(transparent)]
    File(#[from] JournalFileError),
}

/// Copies the entries of the coordinator of `journal`, until the attempt has ended or the coordinator is lost.
pub async fn copy(store: &Store, uid: &str, journal: &JournalEndpoint) {
    let mut failures = 0;
    while failures < MAX_CONSECUTIVE_TRIES {
        match dial(store, uid, journal).await {
            Ok(true) => return,
            Ok(false) => failures = 0,
            Err(error) => tracing::debug!(%uid, "can't copy the journal, retrying: {}", error_chain(&error)),
        }
        failures += 1;
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Logs that copying a journal from its files failed. It is repeated when the server starts.
pub fn log_catch_up_failure(caught_up: Result<(), impl Error>, uid: &str) {
    if let Err(error) = caught_up {
        let error = error_chain(&error);
        tracing::warn!(%uid, "could not copy the rest of the job's journal from its files: {error}");
    }
}

/// Copies the entries in the journal's files that are not in the database, because the coordinator or the server died
/// before they were sent.
///
/// # Errors
/// The files can't be read, or the database fails.
pub async fn catch_up(store: &Store, uid: &str, model_dir: &Path) -> Result<(), CopyError> {
    let from = store.newest_entry(uid).await? + 1;
    let uncopied = journal_files::entries(model_dir.to_owned(), uid.to_owned(), from);
    write_entries(store, uid, ReceiverStream::new(uncopied), |_| {}).await.map(drop)
}

async fn dial(store: &Store, uid: &str, journal: &JournalEndpoint) -> Result<bool, CopyError> {
    follow(store, uid, journal.connect().await?).await
}

/// Copies entries from the first missing one until the stream ends; returns whether the last one was the outcome of an
/// attempt.
///
/// # Errors
/// The stream broke, or the database failed. Entries copied before that are kept.
pub async fn follow(store: &Store, uid: &str, mut client: JournalClient<Channel>) -> Result<bool, CopyError> {
    let from = store.newest_entry(uid).await? + 1;
    let stream = client.follow(FollowRequest { from, from_current_state: false }).await?;
    let _counted = JOURNAL_METRICS.count_followed();
    write_entries(store, uid, stream.into_inner(), record_lag).await
}

/// Records the time between writing the oldest of these entries at the coordinator and here. A coordinator whose clock
/// is ahead counts as zero.
fn record_lag(entries: &[JournalRecord]) {
    let now = Timestamp::now().as_millisecond();
    if let Some(oldest) = entries.first() {
        JOURNAL_METRICS.record_lag(Duration::from_millis(u64::try_from(now - oldest.at_ms).unwrap_or(0)));
    }
}

/// Writes entries in batches as they arrive, and calls `written` after each transaction; returns whether the last entry
/// was an outcome.
///
/// # Errors
/// The stream or the database failed.
async fn write_entries<E: Into<CopyError>>(
    store: &Store,
    uid: &str,
    entries: impl Stream<Item = Result<proto::Entry, E>>,
    written: impl Fn(&[JournalRecord]),
) -> Result<bool, CopyError> {
    let batches = entries.chunks_timeout(WRITE_BATCH_ENTRIES, MAX_BATCH_DELAY);
    tokio::pin!(batches);
    let mut over = false;
    while let Some(batch) = batches.next().await {
        let (mut entries, mut broken) = (Vec::with_capacity(batch.len()), None);
        for entry in batch {
            match entry {
                // Entries of unknown kinds, from a later version, are skipped.
                Ok(entry) => entries.extend(journal_entry(&entry)),
                Err(error) => broken = Some(error.into()),
            }
        }
        over = entries.last().map_or(over, |entry| entry.kind == EntryKind::Outcome);
        store.append(uid, &entries).await?;
        written(&entries);
        if let Some(broken) = broken {
            return Err(broken);
        }
    }
    Ok(over)
}

/// Converts an entry for the database; `None` for entries that are not stored.
fn journal_entry(packed: &proto::Entry) -> Option<JournalRecord> {
    let entry = journal::from_proto(packed).ok()?;
    let (mut mode, mut step, mut agent, mut level) = (None, None, None, None);
    let kind = match &entry.event {
        JournalEvent::Metric(point) => {
            mode = Some(if matches!(point, MetricPoint::Train(_)) { MetricMode::Train } else { MetricMode::Eval });
            step = Some(point.step());
            EntryKind::Metric
        }
        JournalEvent::Log(record) => {
            agent = Some(record.agent.to_string());
            level = Some(severity(record.level));
            EntryKind::Log
        }
        JournalEvent::State(state) => {
            step = Some(state.step);
            EntryKind::State
        }
        JournalEvent::Checkpoint { step: at, .. } => {
            step = Some(*at);
            EntryKind::Checkpoint
        }
        // Their messages are also in the log.
        JournalEvent::CheckpointFailed { .. } | JournalEvent::Dropped(_) => return None,
        JournalEvent::Outcome(outcome) => {
            step = Some(outcome.step);
            EntryKind::Outcome
        }
    };
    Some(JournalRecord {
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

/// Returns the number of a level in the database: the more severe, the higher.
pub fn severity(level: Level) -> u8 {
    match level {
        Level::Debug => 0,
        Level::Verbose => 1,
        Level::Info => 2,
        Level::Warning => 3,
        Level::Error => 4,
    }
}
