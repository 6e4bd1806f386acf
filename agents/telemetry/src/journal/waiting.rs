//! Entries that could not be written to the journal's file yet, and the number of events that were dropped.

use std::collections::VecDeque;

use super::{Dropped, JournalEvent};

/// Maximum bytes of waiting lines. Less than the tail keeps in memory, because followers get these entries from the
/// tail.
pub(super) const MAX_BYTES: usize = super::follow::MAX_TAIL_BYTES / 2;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Events dropped since the last entry that reports them.
    dropped: Dropped,
    /// Events dropped and reported before.
    reported: u64,
}

impl Waiting {
    /// Returns whether nothing has to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.dropped.total() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns the number of events dropped so far.
    pub(super) const fn dropped(&self) -> u64 {
        self.reported + self.dropped.total()
    }

    /// Returns the dropped events that no entry has reported; `None` if there are none.
    pub(super) fn newly_dropped(&self) -> Option<Dropped> {
        (self.dropped.total() > 0).then_some(self.dropped)
    }

    /// Records that an entry has reported all events dropped so far.
    pub(super) fn told_dropped(&mut self) {
        self.reported += self.dropped.total();
        self.dropped = Dropped::default();
    }

    /// Returns whether a line of this size may wait. After an event was dropped no line may wait until all have been
    /// written: an entry after a gap would precede the entry that reports the gap.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.dropped.total() == 0 && self.bytes + bytes <= MAX_BYTES
    }

    pub(super) fn push(&mut self, line: Vec<u8>) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    pub(super) fn drop_event(&mut self, event: &JournalEvent) {
        self.dropped.count(event);
    }

    /// Counts events that were dropped elsewhere.
    pub(super) const fn add_dropped(&mut self, dropped: Dropped) {
        self.dropped.add(dropped);
    }

    pub(super) fn front(&self) -> Option<&[u8]> {
        self.lines.front().map(Vec::as_slice)
    }

    pub(super) fn pop_front(&mut self) {
        self.bytes -= self.lines.pop_front().map_or(0, |line| line.len());
    }
}
