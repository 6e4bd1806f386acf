//! The entries that followers see, and the numbers of all entries. They are locked for moments only, so that an entry
//! can be announced while the writer of another one waits for the storage.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::follow::JournalTail;
use super::{JournalEntry, JournalEvent, MAX_UNSYNCED_ENTRIES};
use crate::metrics_log::to_line;
use crate::time::unix_ms;

/// What followers see.
#[derive(Debug)]
pub(super) struct VisibleEntries {
    pub(super) tail: JournalTail,
    /// The newest entry of each topic, of this attempt only.
    pub(super) newest: BTreeMap<&'static str, Arc<JournalEntry>>,
    next_seq: u64,
    /// Entries that became visible since the last fsync, including those that wait.
    pub(super) unsynced: u64,
    /// The entry that is being written, with the bytes of its line, until it is visible.
    pub(super) in_progress: Option<(JournalEntry, usize)>,
    /// Lines of entries that were announced, and that the file's writer has not taken over yet.
    pub(super) announced: Vec<Vec<u8>>,
}

impl VisibleEntries {
    /// Creates the entries of an attempt after number `last_seq`, which begins with number `next_seq`.
    pub(super) fn new(last_seq: u64, next_seq: u64) -> Self {
        Self {
            tail: JournalTail::after(last_seq),
            newest: BTreeMap::new(),
            next_seq,
            unsynced: 0,
            in_progress: None,
            announced: Vec::new(),
        }
    }

    /// Gives the next number to an event of `attempt`; returns its entry and line.
    fn number(&mut self, attempt: u64, event: JournalEvent) -> io::Result<(JournalEntry, Vec<u8>)> {
        let entry = JournalEntry { seq: self.next_seq, attempt, unix_ms: unix_ms(), event };
        let line = to_line(&entry)?;
        self.next_seq += 1;
        Ok((entry, line))
    }

    /// Begins to write an event; returns its number and line. `None` if announced entries have to be written before.
    pub(super) fn begin(&mut self, attempt: u64, event: &JournalEvent) -> io::Result<Option<(u64, Vec<u8>)>> {
        if !self.announced.is_empty() {
            return Ok(None);
        }
        let (entry, line) = self.number(attempt, event.clone())?;
        let seq = entry.seq;
        self.in_progress = Some((entry, line.len()));
        Ok(Some((seq, line)))
    }

    /// Shows the entry that is being written, if it is not visible already.
    pub(super) fn show_in_progress(&mut self) {
        if let Some((entry, bytes)) = self.in_progress.take() {
            self.unsynced += 1;
            self.show(entry, bytes);
        }
    }

    /// Gives up the number of the entry that could not be written. Returns false if the entry is visible already.
    pub(super) fn take_back(&mut self) -> bool {
        let is_hidden = self.in_progress.take().is_some();
        self.next_seq -= u64::from(is_hidden);
        is_hidden
    }

    /// Numbers and shows an event before it is written. Returns false if too many entries are not on disk.
    pub(super) fn announce(&mut self, attempt: u64, event: JournalEvent) -> io::Result<bool> {
        self.show_in_progress();
        if self.unsynced + 1 >= MAX_UNSYNCED_ENTRIES {
            return Ok(false);
        }
        let (entry, line) = self.number(attempt, event)?;
        self.unsynced += 1;
        self.show(entry, line.len());
        self.announced.push(line);
        Ok(true)
    }

    /// Records that everything is on disk but what was announced.
    pub(super) fn on_synced(&mut self) {
        self.unsynced = self.announced.len() as u64;
    }

    fn show(&mut self, entry: JournalEntry, bytes: usize) {
        let entry = Arc::new(entry);
        if let Some(topic) = entry.event.replaces_topic() {
            self.newest.insert(topic, entry.clone());
        }
        self.tail.push(entry, bytes);
    }
}
