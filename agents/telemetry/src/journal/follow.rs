//! Follows the journal within the process that writes it: newest entries from memory, older ones from the files.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{JournalEntry, JournalReader, JournalWriter};
use crate::error::Result;

/// Maximum entries and maximum bytes (of their lines) kept in memory.
const MAX_TAIL_ENTRIES: usize = 4096;
pub(super) const MAX_TAIL_BYTES: usize = 4 << 20;

/// The newest entries: all entries after number `dropped`.
#[derive(Debug)]
pub(super) struct JournalTail {
    entries: VecDeque<(Arc<JournalEntry>, usize)>,
    bytes: usize,
    /// The newest number that is only in the files; 0 if there is none.
    dropped: u64,
}

impl JournalTail {
    /// Creates the tail of a journal whose newest entry in the files is `seq`.
    pub(super) fn after(seq: u64) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, dropped: seq }
    }

    pub(super) fn last_seq(&self) -> u64 {
        self.entries.back().map_or(self.dropped, |(entry, _)| entry.seq)
    }

    pub(super) fn push(&mut self, entry: Arc<JournalEntry>, bytes: usize) {
        self.entries.push_back((entry, bytes));
        self.bytes += bytes;
        while self.entries.len() > MAX_TAIL_ENTRIES || self.bytes > MAX_TAIL_BYTES {
            let Some((oldest, bytes)) = self.entries.pop_front() else {
                return;
            };
            self.bytes -= bytes;
            self.dropped = oldest.seq;
        }
    }

    fn since(&self, seq: u64, limit: usize) -> Vec<Arc<JournalEntry>> {
        let start = self.entries.partition_point(|(entry, _)| entry.seq < seq);
        self.entries.iter().skip(start).take(limit).map(|(entry, _)| Arc::clone(entry)).collect()
    }
}

/// A position in the journal that advances with the entries it returns. It never misses or repeats an entry.
#[derive(Debug)]
pub struct JournalFollower {
    journal: JournalWriter,
    next_seq: u64,
    /// Position in the files while the follower is behind the tail.
    files: Option<JournalReader>,
}

impl JournalFollower {
    pub(super) fn new(journal: JournalWriter, from: u64) -> Self {
        Self { journal, next_seq: from, files: None }
    }

    /// Returns the next entries, at most `limit`; none if the follower has caught up. Blocks only on disk reads.
    ///
    /// # Errors
    /// [`crate::Error::Io`]; the next call continues at the same position.
    pub fn poll(&mut self, limit: usize) -> Result<Vec<Arc<JournalEntry>>> {
        loop {
            let (in_files, mut entries) = self.in_memory(limit);
            if let Some(dropped) = in_files {
                entries = self.read_files(dropped, limit)?;
                if entries.is_empty() {
                    // The files have no readable entry up to there: continue with the entries after them.
                    self.next_seq = dropped + 1;
                    continue;
                }
            }
            if let Some(last) = entries.last() {
                self.next_seq = last.seq + 1;
            }
            return Ok(entries);
        }
    }

    /// Returns whether the next entry is only in the files, so that [`JournalFollower::poll`] reads them.
    pub fn reads_files(&self) -> bool {
        self.in_memory(0).0.is_some()
    }

    /// Returns the next entries of the tail. If the tail no longer has all of them, returns the newest number that is
    /// only in the files. Both are read under one lock, because entries could leave the tail in between.
    fn in_memory(&self, limit: usize) -> (Option<u64>, Vec<Arc<JournalEntry>>) {
        let tail = &self.journal.shared.visible().tail;
        if self.next_seq > tail.dropped {
            (None, tail.since(self.next_seq, limit))
        } else {
            (Some(tail.dropped), Vec::new())
        }
    }

    /// Returns entries like [`JournalFollower::poll`], but waits up to `timeout` for one if the follower has caught up.
    ///
    /// # Errors
    /// [`crate::Error::Io`]; the next call continues at the same position.
    pub fn wait(&mut self, limit: usize, timeout: Duration) -> Result<Vec<Arc<JournalEntry>>> {
        self.journal.wait_for(self.next_seq, timeout);
        self.poll(limit)
    }

    /// Reads entries up to number `dropped` from the files. Later ones are left to the tail, because a line in the file
    /// may still be truncated until its fsync has succeeded.
    fn read_files(&mut self, dropped: u64, limit: usize) -> Result<Vec<Arc<JournalEntry>>> {
        let mut files = match self.files.take() {
            Some(files) => files,
            None => JournalReader::open(&self.journal.shared.model_dir, self.next_seq)?,
        };
        let mut entries = Vec::new();
        while entries.len() < limit {
            match files.next_entry()? {
                Some(entry) if entry.seq <= dropped => entries.push(Arc::new(entry)),
                _ => return Ok(entries),
            }
        }
        self.files = Some(files);
        Ok(entries)
    }
}
