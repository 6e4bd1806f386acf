//! The journal: everything a follower of a job needs, numbered, in `model_dir/journal/attempt-<n>.jsonl`.
//!
//! ```json
//! {"journal":{"version":2}}
//! {"seq":1,"attempt":1,"unix_ms":1700000000000,"event":{"state":{"state":"Training","step":0,"total_steps":300,"num_csx":2,"epoch":"1.1"}}}
//! {"seq":2,"attempt":1,"unix_ms":1700000000420,"event":{"metric":{"step":1,"loss":5.56,...}}}
//! ```
//!
//! The first line of a file names its version; a file without that line is of version 1, release 0.1.0. Fields that a
//! reader does not know are passed over, fields added later have defaults, and a file of a later version than the
//! reader's is refused.
//!
//! Invariants:
//! * Numbers start at 1 and only rise, over all attempts; a number never means two different things to a follower, not
//!   even after a power cut took the last lines. For that, an attempt that follows one without an outcome skips
//!   [`UNSYNCED_MAX`] numbers, and no more entries than that are ever shown before they are on the disk. So numbers
//!   may jump between attempts; within one they are consecutive.
//! * A state, a checkpoint and an outcome are on the disk (fsync) before they get their number and before any follower
//!   sees them. Metrics and log records are with the operating system: they survive the death of the process.
//! * A disk that is full ends nothing. Entries that the file refuses get their numbers, are shown, and wait in memory to
//!   be written in order, before any other; they count among the [`UNSYNCED_MAX`] that a power cut may take. Beyond that
//!   number, or 2 MiB, events are dropped without a number. When the file takes lines again, the entry
//!   `dropped` says how many these were.
//! * One attempt writes at a time; an older one is refused ([`Error::StaleAttempt`]).
//! * Memory is bounded: the newest entries are kept for those who follow closely, others read the files.

mod entry;
mod follow;
mod header;
mod outcome;
mod reader;
mod waiting;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use entry::{Dropped, Entry, Event, Resumed, Stage, State};
pub use follow::Follower;
pub use header::VERSION;
pub use outcome::{LAST_REPORT_BYTES, Outcome, Reason};
pub use reader::JournalReader;

use crate::{
    atomic_file::sync_directory,
    error::{Error, Result},
    jsonl::{self, Appender},
    metrics::to_line,
    time::unix_ms,
};
use follow::Tail;
use waiting::Waiting;

/// The directory's name in model_dir.
pub const DIRECTORY: &str = "journal";

/// The most entries that may be lost in a power cut: then the next one is synced, whatever it is.
pub const UNSYNCED_MAX: u64 = 1024;

/// Writes one attempt's part of the journal, and lets others follow. Clones share it.
#[derive(Clone, Debug)]
pub struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    model_dir: PathBuf,
    attempt: u64,
    state: Mutex<Writing>,
    appended: Condvar,
    subscribers: Subscribers,
}

#[derive(Debug)]
struct Writing {
    file: Appender,
    next_seq: u64,
    /// Entries since the last fsync, those that wait included.
    unsynced: u64,
    /// Entries that are shown, and that the file refused.
    waiting: Waiting,
    tail: Tail,
    /// The newest of each topic, of this attempt.
    newest: BTreeMap<&'static str, Arc<Entry>>,
}

impl Writing {
    fn append(&mut self, attempt: u64, event: Event) -> Result<u64> {
        let flushed = self.flush(attempt);
        let entry = Entry { seq: self.next_seq, attempt, unix_ms: unix_ms(), event };
        let line = to_line(&entry).map_err(Error::io("append to", self.file.path()))?;
        let sync = entry.event.is_durable() || self.unsynced + 1 >= UNSYNCED_MAX;
        if let Err(error) = flushed.and_then(|()| self.file.append(&line, sync)) {
            if self.waiting.is_empty() && self.file.sync().is_ok() {
                self.unsynced = 0;
            }
            if self.unsynced + 1 < UNSYNCED_MAX && self.waiting.has_room(line.len()) {
                self.waiting.push(line.clone());
                self.unsynced += 1;
                self.show(entry, line.len());
            } else {
                self.waiting.drop_event(&entry.event);
            }
            return Err(error);
        }
        self.unsynced = if sync { 0 } else { self.unsynced + 1 };
        Ok(self.show(entry, line.len()))
    }

    /// Writes the entries that wait, then how many events were dropped.
    fn flush(&mut self, attempt: u64) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        while let Some(line) = self.waiting.front() {
            self.file.append(line, false)?;
            self.waiting.pop_front();
        }
        self.file.sync()?;
        self.unsynced = 0;
        if let Some(dropped) = self.waiting.newly_dropped() {
            let event = Event::Dropped(dropped);
            let entry = Entry { seq: self.next_seq, attempt, unix_ms: unix_ms(), event };
            let line = to_line(&entry).map_err(Error::io("append to", self.file.path()))?;
            self.file.append(&line, true)?;
            self.waiting.told_dropped();
            self.show(entry, line.len());
        }
        Ok(())
    }

    /// Gives the entry its number, and shows it to followers.
    fn show(&mut self, entry: Entry, bytes: usize) -> u64 {
        self.next_seq += 1;
        let (seq, entry) = (entry.seq, Arc::new(entry));
        if let Some(topic) = entry.event.topic() {
            self.newest.insert(topic, entry.clone());
        }
        self.tail.push(entry, bytes);
        seq
    }
}

impl Journal {
    /// Opens the journal of `model_dir` for `attempt`, repairing what a killed attempt may have left.
    ///
    /// # Errors
    /// [`Error::StaleAttempt`] if a later attempt has begun; [`Error::Io`].
    pub fn open(model_dir: &Path, attempt: u64) -> Result<Self> {
        let directory = model_dir.join(DIRECTORY);
        millrace_roots::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        let attempts = reader::attempts(&directory)?;
        if let Some(&newest) = attempts.last() {
            if newest > attempt {
                return Err(Error::StaleAttempt { attempt, newest });
            }
            jsonl::repair(&reader::path(&directory, newest))?;
        }
        let last = last_entry(&directory, &attempts)?;
        let mut file = Appender::open(reader::path(&directory, attempt))?;
        if file.is_empty() {
            file.append(&header::line(), false)?;
        }
        sync_directory(&directory).map_err(Error::io("sync", &directory))?;

        let last_seq = last.as_ref().map_or(0, |entry| entry.seq);
        let ended = match last {
            Some(entry) => matches!(entry.event, Event::Outcome(_)),
            None => attempts.is_empty(),
        };
        let skipped = if ended { 0 } else { UNSYNCED_MAX };
        Ok(Self {
            shared: Arc::new(Shared {
                model_dir: model_dir.to_path_buf(),
                attempt,
                state: Mutex::new(Writing {
                    file,
                    next_seq: last_seq + skipped + 1,
                    unsynced: 0,
                    waiting: Waiting::default(),
                    tail: Tail::after(last_seq),
                    newest: BTreeMap::new(),
                }),
                appended: Condvar::new(),
                subscribers: Subscribers::default(),
            }),
        })
    }

    /// Appends an event and returns its number. A state, checkpoint or outcome is on the disk by then. What the file
    /// refused before is written first.
    ///
    /// # Errors
    /// [`Error::Io`]: the event, or one before it, is not in the file. [`Journal::waiting`] and [`Journal::dropped`] say
    /// how many wait in memory, and how many have no number and will not be seen by anybody.
    pub fn append(&self, event: Event) -> Result<u64> {
        let (seq, appended) = {
            let mut state = self.state();
            let appended = state.append(self.shared.attempt, event);
            (state.tail.last_seq(), appended)
        };
        self.shared.appended.notify_all();
        self.shared.subscribers.tell(seq);
        appended
    }

    /// Writes what the file refused before.
    ///
    /// # Errors
    /// [`Error::Io`]; what is not written stays in memory.
    pub fn flush(&self) -> Result<()> {
        let (seq, flushed) = {
            let mut state = self.state();
            let flushed = state.flush(self.shared.attempt);
            (state.tail.last_seq(), flushed)
        };
        self.shared.appended.notify_all();
        self.shared.subscribers.tell(seq);
        flushed
    }

    /// Entries that have a number and are not in the file, since it refused them.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// Events of this attempt that were dropped while the file refused them.
    pub fn dropped(&self) -> u64 {
        self.state().waiting.dropped()
    }

    /// The attempt that writes.
    pub fn attempt(&self) -> u64 {
        self.shared.attempt
    }

    /// The newest entry's number, 0 if there is none.
    pub fn last_seq(&self) -> u64 {
        self.state().tail.last_seq()
    }

    /// Follows the journal from number `from` on, over all attempts; 0 and 1 are the beginning, a number beyond the newest
    /// is the next one to come.
    pub fn follow(&self, from: u64) -> Follower {
        Follower::new(self.clone(), from.clamp(1, self.last_seq() + 1))
    }

    /// How things stand, and a follower for what comes: of this attempt the newest state, training step, evaluation,
    /// checkpoint and outcome, where there is one, in the order of their numbers.
    pub fn follow_newest(&self) -> (Vec<Arc<Entry>>, Follower) {
        let (mut newest, next) = {
            let state = self.state();
            (state.newest.values().cloned().collect::<Vec<_>>(), state.tail.last_seq() + 1)
        };
        newest.sort_by_key(|entry| entry.seq);
        (newest, Follower::new(self.clone(), next))
    }

    /// Calls `appended` with the newest number after every append, on the thread that appended; it must return at once.
    /// With [`Follower::poll`] this is what an asynchronous reader needs.
    #[must_use = "the subscription ends when this is dropped"]
    pub fn subscribe(&self, appended: impl Fn(u64) + Send + Sync + 'static) -> Subscription {
        let id = self.shared.subscribers.add(Arc::new(appended));
        Subscription { shared: Arc::downgrade(&self.shared), id }
    }

    /// The state is whole after every append, also one that failed, so a panic elsewhere has not spoilt it.
    fn state(&self) -> MutexGuard<'_, Writing> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is an entry numbered `seq` or later, or `timeout` is over.
    fn wait_for(&self, seq: u64, timeout: Duration) {
        let missing = |state: &mut Writing| state.tail.last_seq() < seq;
        // A poisoned lock only means that a follower panicked: the caller looks for itself.
        let _ = self.shared.appended.wait_timeout_while(self.state(), timeout, missing);
    }
}

/// The last readable entry of all attempts.
fn last_entry(directory: &Path, attempts: &[u64]) -> Result<Option<Entry>> {
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

    /// Calls outside the lock, so that a callback may subscribe or unsubscribe.
    fn tell(&self, seq: u64) {
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

/// Ends a subscription when dropped.
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
