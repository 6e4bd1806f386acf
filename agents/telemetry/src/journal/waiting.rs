//! What the journal's file refused: entries that wait to be written, and a count of the events that were dropped.

use std::collections::VecDeque;

use super::{Dropped, Event};

/// Most bytes of lines that wait: fewer than the tail keeps in memory, where followers find the entries meanwhile.
pub(super) const MAX_BYTES: usize = super::follow::TAIL_BYTES / 2;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Since the last entry that says so.
    dropped: Dropped,
    /// Before.
    told: u64,
}

impl Waiting {
    /// Whether nothing has to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.dropped.total() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// All events dropped so far.
    pub(super) const fn dropped(&self) -> u64 {
        self.told + self.dropped.total()
    }

    /// Events that were dropped and that no entry tells of.
    pub(super) fn newly_dropped(&self) -> Option<Dropped> {
        (self.dropped.total() > 0).then_some(self.dropped)
    }

    /// An entry tells of those dropped so far.
    pub(super) fn told_dropped(&mut self) {
        self.told += self.dropped.total();
        self.dropped = Dropped::default();
    }

    /// Whether a line may wait. Once an event is dropped none may, until all have been written: an entry after a gap
    /// would come before the one that tells of the gap.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.dropped.total() == 0 && self.bytes + bytes <= MAX_BYTES
    }

    pub(super) fn push(&mut self, line: Vec<u8>) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    pub(super) fn drop_event(&mut self, event: &Event) {
        self.dropped.count(event);
    }

    pub(super) fn front(&self) -> Option<&[u8]> {
        self.lines.front().map(Vec::as_slice)
    }

    pub(super) fn pop_front(&mut self) {
        self.bytes -= self.lines.pop_front().map_or(0, |line| line.len());
    }
}
