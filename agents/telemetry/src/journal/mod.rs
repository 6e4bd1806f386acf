//! The journal: the numbered events that a client needs to follow a job, in `model_dir/journal/attempt-<n>.jsonl`.
//!
//! ```json
//! {"journal":{"version":2}}
//! {"seq":1,"attempt":1,"unix_ms":1700000000000,"event":{"state":{"state":"Training","step":0,"total_steps":300,"num_csx":2,"epoch":"1.1"}}}
//! {"seq":2,"attempt":1,"unix_ms":1700000000420,"event":{"metric":{"step":1,"loss":5.56,...}}}
//! ```
//!
//! The first line of a file names its version. A file without that line has version 1, of release 0.1.0. Readers ignore
//! unknown fields, use defaults for fields that were added later, and reject files of a later version than their own.
//!
//! Invariants:
//! * Numbers start at 1 and increase over all attempts. Within an attempt they are consecutive.
//! * A follower never sees two entries with the same number, not even after a power cut has removed the last lines.
//! * After an attempt without an outcome, [`MAX_UNSYNCED_ENTRIES`] numbers are skipped, because a power cut may have
//!   removed that many visible entries: no more are visible before they are on disk.
//! * A state, a checkpoint and an outcome are on disk (fsync) before they get their number and before any follower sees
//!   them, unless the disk is full. Metrics and log records have been passed to the operating system, so they survive
//!   the death of the process.
//! * While the storage does not respond to a write, [`JournalWriter::announce`] appends entries without waiting for it:
//!   they get their numbers, are visible to followers, and are written once it responds. The entry that is being
//!   written becomes visible before them.
//! * A full disk does not end the run. Entries that can't be written get their numbers, are visible to followers, and
//!   wait in memory until they can be written, in order and before all others. They count towards the
//!   [`MAX_UNSYNCED_ENTRIES`] entries that a power cut may remove. Beyond that number, or 2 MiB, events are dropped and
//!   get no number. When the file accepts lines again, the entry `dropped` says how many events were dropped.
//! * One attempt writes at a time; an older one is rejected ([`Error::StaleAttempt`]).
//! * Followers read what is visible without waiting for the storage, even while it does not respond to a write.
//! * Memory is bounded: the newest entries are kept for followers that keep up, others read the files.

mod entry;
mod follow;
mod header;
mod outcome;
mod reader;
mod visible;
mod waiting;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

pub use entry::{Dropped, JournalEntry, JournalEvent, ResumePoint, RunPhase, RunState, SlowAgent, StorageStall};
pub use follow::JournalFollower;
pub use header::VERSION;
pub use millrace_outcome::OutcomeReason;
pub use outcome::{AttemptOutcome, MAX_TERMINATION_REPORT_BYTES};
pub use reader::JournalReader;

use crate::atomic_file::sync_directory;
use crate::error::{Error, Result};
use crate::jsonl::{self, Appender};
use visible::VisibleEntries;
use waiting::Waiting;

/// Name of the directory in model_dir.
pub const JOURNAL_DIR: &str = "journal";

/// Maximum number of entries that a power cut may remove: the next one is always synced.
pub const MAX_UNSYNCED_ENTRIES: u64 = 1024;

/// Writes one attempt's part of the journal and serves followers. Clones share the journal.
#[derive(Clone, Debug)]
pub struct JournalWriter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    model_dir: PathBuf,
    /// The file of this attempt.
    path: PathBuf,
    attempt: u64,
    /// Locked during writes, which may take as long as the storage does not respond.
    file: Mutex<JournalFile>,
    /// Locked for moments only, so that nobody waits for the storage. Is locked after `file`.
    visible: Mutex<VisibleEntries>,
    appended: Condvar,
    subscribers: Subscribers,
}

/// What was written, and what has to be.
#[derive(Debug)]
struct JournalFile {
    file: Appender,
    /// Entries that are visible to followers but could not be written yet.
    waiting: Waiting,
}

impl JournalFile {
    fn append(&mut self, shared: &Shared, event: &JournalEvent) -> Result<u64> {
        let (flushed, seq, line) = loop {
            let flushed = self.flush(shared);
            let begun = shared.visible().begin(shared.attempt, event);
            if let Some((seq, line)) = begun.map_err(Error::io("append to", self.file.path()))? {
                break (flushed, seq, line);
            }
        };
        let sync = event.is_durable() || shared.visible().unsynced + 1 >= MAX_UNSYNCED_ENTRIES;
        if let Err(error) = flushed.and_then(|()| self.file.append(&line, sync)) {
            self.keep_unwritten(shared, event, line);
            return Err(error);
        }
        let mut visible = shared.visible();
        visible.show_in_progress();
        if sync {
            visible.on_synced();
        }
        Ok(seq)
    }

    /// Keeps the line of the entry in progress, which could not be written, in memory, or drops its event if there is
    /// no room.
    fn keep_unwritten(&mut self, shared: &Shared, event: &JournalEvent, line: Vec<u8>) {
        let is_synced = self.waiting.is_empty() && self.file.sync().is_ok();
        let mut visible = shared.visible();
        if is_synced {
            let is_shown = visible.in_progress.is_none();
            visible.on_synced();
            visible.unsynced += u64::from(is_shown);
        }
        let has_room = visible.unsynced + 1 < MAX_UNSYNCED_ENTRIES && self.waiting.has_room(line.len());
        if !has_room && visible.take_back() {
            self.waiting.drop_event(event);
        } else {
            visible.show_in_progress();
            self.waiting.push(line);
        }
    }

    /// Writes the waiting and the announced entries, then an entry with the number of dropped events.
    fn flush(&mut self, shared: &Shared) -> Result<()> {
        std::mem::take(&mut shared.visible().announced).into_iter().for_each(|line| self.waiting.push(line));
        if self.waiting.is_empty() {
            return Ok(());
        }
        while let Some(line) = self.waiting.front() {
            self.file.append(line, false)?;
            self.waiting.pop_front();
        }
        self.file.sync()?;
        shared.visible().on_synced();
        match self.waiting.newly_dropped() {
            Some(dropped) => self.write_dropped(shared, dropped),
            None => Ok(()),
        }
    }

    fn write_dropped(&mut self, shared: &Shared, dropped: Dropped) -> Result<()> {
        let begun = shared.visible().begin(shared.attempt, &JournalEvent::Dropped(dropped));
        let Some((_, line)) = begun.map_err(Error::io("append to", self.file.path()))? else { return Ok(()) };
        let appended = self.file.append(&line, true);
        let mut visible = shared.visible();
        if appended.is_ok() {
            visible.show_in_progress();
            visible.on_synced();
        } else if visible.take_back() {
            return appended;
        } else {
            self.waiting.push(line);
        }
        self.waiting.told_dropped();
        appended
    }
}

impl Shared {
    /// Locks the file. It is consistent after every append, also after a failed one, so a poisoned lock is ignored.
    fn file(&self) -> MutexGuard<'_, JournalFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the visible entries. They are consistent between calls, so a poisoned lock is ignored.
    fn visible(&self) -> MutexGuard<'_, VisibleEntries> {
        self.visible.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JournalWriter {
    /// Opens the journal of `model_dir` for `attempt`, after removing a torn line that a killed attempt may have left.
    ///
    /// # Errors
    /// [`Error::StaleAttempt`] if a later attempt has begun; [`Error::Io`].
    pub fn open(model_dir: &Path, attempt: u64) -> Result<Self> {
        let directory = model_dir.join(JOURNAL_DIR);
        millrace_roots::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        let attempts = reader::attempts(&directory)?;
        if let Some(&newest) = attempts.last() {
            if newest > attempt {
                return Err(Error::StaleAttempt { attempt, newest });
            }
            jsonl::truncate_torn_line(&reader::path(&directory, newest))?;
        }
        let last = last_entry(&directory, &attempts)?;
        let mut file = Appender::open(reader::path(&directory, attempt))?;
        if file.is_empty() {
            file.append(&header::line(), false)?;
        }
        sync_directory(&directory).map_err(Error::io("sync", &directory))?;

        let last_seq = last.as_ref().map_or(0, |entry| entry.seq);
        let ended = match last {
            Some(entry) => matches!(entry.event, JournalEvent::Outcome(_)),
            None => attempts.is_empty(),
        };
        let skipped = if ended { 0 } else { MAX_UNSYNCED_ENTRIES };
        Ok(Self {
            shared: Arc::new(Shared {
                model_dir: model_dir.to_path_buf(),
                path: file.path().to_owned(),
                attempt,
                file: Mutex::new(JournalFile { file, waiting: Waiting::default() }),
                visible: Mutex::new(VisibleEntries::new(last_seq, last_seq + skipped + 1)),
                appended: Condvar::new(),
                subscribers: Subscribers::default(),
            }),
        })
    }

    /// Appends an event and returns its number. A state, checkpoint or outcome is on disk when this returns. Entries
    /// that could not be written before are written first.
    ///
    /// # Errors
    /// [`Error::Io`] if the event, or one before it, is not in the file. The event then waits in memory, or was
    /// dropped, see [`JournalWriter::waiting`] and [`JournalWriter::dropped`].
    pub fn append(&self, event: JournalEvent) -> Result<u64> {
        let appended = self.shared.file().append(&self.shared, &event);
        self.notify_followers();
        appended
    }

    /// Writes the entries that could not be written before.
    ///
    /// # Errors
    /// [`Error::Io`]; entries that are not written stay in memory.
    pub fn flush(&self) -> Result<()> {
        let flushed = self.shared.file().flush(&self.shared);
        self.notify_followers();
        flushed
    }

    /// Appends an event without waiting for the storage: followers see it now, and the next append or flush writes it
    /// to the file. For storage that does not respond, which the writer of other entries waits for. Returns whether
    /// there was room.
    ///
    /// # Errors
    /// [`Error::Io`] if the event can't be represented.
    pub fn announce(&self, event: JournalEvent) -> Result<bool> {
        let announced = self.shared.visible().announce(self.shared.attempt, event);
        self.notify_followers();
        announced.map_err(Error::io("append to", &self.shared.model_dir))
    }

    /// Counts events that were dropped before they could be appended. The next entry says how many.
    pub fn count_dropped(&self, dropped: Dropped) {
        self.shared.file().waiting.add_dropped(dropped);
    }

    fn notify_followers(&self) {
        self.shared.appended.notify_all();
        self.shared.subscribers.notify(self.last_seq());
    }

    /// Returns the number of entries that have a number but could not be written yet.
    pub fn waiting(&self) -> usize {
        self.shared.file().waiting.len()
    }

    /// Returns the number of events of this attempt that were dropped because they could not be written.
    pub fn dropped(&self) -> u64 {
        self.shared.file().waiting.dropped()
    }

    /// Returns the path of the file that is written.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the attempt that writes.
    pub fn attempt(&self) -> u64 {
        self.shared.attempt
    }

    /// Returns the newest entry's number; 0 if there is none.
    pub fn last_seq(&self) -> u64 {
        self.shared.visible().tail.last_seq()
    }

    /// Returns a follower that starts at number `from`, over all attempts. 0 and 1 are the beginning; a number beyond
    /// the newest entry is the next entry to come.
    pub fn follow(&self, from: u64) -> JournalFollower {
        JournalFollower::new(self.clone(), from.clamp(1, self.last_seq() + 1))
    }

    /// Returns the current state of this attempt and a follower for the entries that come after it. The state consists
    /// of the newest state, training step, evaluation, checkpoint and outcome, as far as they exist, ordered by number.
    pub fn follow_from_current_state(&self) -> (Vec<Arc<JournalEntry>>, JournalFollower) {
        let (mut newest, next) = {
            let visible = self.shared.visible();
            (visible.newest.values().cloned().collect::<Vec<_>>(), visible.tail.last_seq() + 1)
        };
        newest.sort_by_key(|entry| entry.seq);
        (newest, JournalFollower::new(self.clone(), next))
    }

    /// Calls `appended` with the newest number after every append, on the appending thread; it must not block. Together
    /// with [`JournalFollower::poll`] this is sufficient for an asynchronous reader.
    #[must_use = "the subscription ends when this is dropped"]
    pub fn subscribe(&self, appended: impl Fn(u64) + Send + Sync + 'static) -> Subscription {
        let id = self.shared.subscribers.add(Arc::new(appended));
        Subscription { shared: Arc::downgrade(&self.shared), id }
    }

    /// Waits until there is an entry numbered `seq` or later, or until `timeout` has elapsed.
    fn wait_for(&self, seq: u64, timeout: Duration) {
        let missing = |visible: &mut VisibleEntries| visible.tail.last_seq() < seq;
        // A poisoned lock only means that a follower panicked. The caller polls the journal afterwards in any case.
        let _ = self.shared.appended.wait_timeout_while(self.shared.visible(), timeout, missing);
    }
}

/// Returns the last readable entry of all attempts.
fn last_entry(directory: &Path, attempts: &[u64]) -> Result<Option<JournalEntry>> {
    for &attempt in attempts.iter().rev() {
        let mut last = None;
        let mut reader = JournalReader::of_attempt(directory, attempt)?;
        while let Some(entry) = reader.next_in_file()? {
            last = Some(entry);
        }
        if last.is_some() {
            return Ok(last);
        }
    }
    Ok(None)
}

type Callback = Arc<dyn Fn(u64) + Send + Sync>;

#[derive(Default)]
struct Subscribers {
    next_id: AtomicU64,
    callbacks: Mutex<BTreeMap<u64, Callback>>,
}

impl Subscribers {
    fn add(&self, callback: Callback) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.callbacks().insert(id, callback);
        id
    }

    /// Calls the callbacks without holding the lock, so that a callback may subscribe or unsubscribe.
    fn notify(&self, seq: u64) {
        let callbacks: Vec<_> = self.callbacks().values().cloned().collect();
        for callback in callbacks {
            callback(seq);
        }
    }

    fn callbacks(&self) -> MutexGuard<'_, BTreeMap<u64, Callback>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subscribers({})", self.callbacks().len())
    }
}

/// A subscription, which ends when this is dropped.
#[derive(Debug)]
pub struct Subscription {
    shared: Weak<Shared>,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.subscribers.callbacks().remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests;
