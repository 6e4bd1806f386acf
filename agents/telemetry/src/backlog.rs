//! An append-only file with a bounded backlog in memory, for metrics and curves of a run whose disk is full.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::jsonl::Appender;

/// Maximum bytes of records that wait for one file.
const MAX_BYTES: usize = 4 << 20;
/// Estimated memory of a waiting record in addition to its bytes.
const RECORD_OVERHEAD: usize = 64;

/// Appends complete records (lines, or frames of another format) to a file, in order. Records that the file did not
/// accept wait in memory and are retried with the next append. Beyond [`MAX_BYTES`] the oldest ones are dropped and
/// counted.
#[derive(Debug)]
pub(crate) struct Backlog {
    file: Appender,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
}

impl Backlog {
    /// Opens or creates the file at `path`.
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        Appender::open(path).map(Self::new)
    }

    pub(crate) fn new(file: Appender) -> Self {
        Self { file, waiting: VecDeque::new(), bytes: 0, dropped: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the number of records dropped so far.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Appends a record after those that wait. If an error is returned, the record waits in memory, and the oldest
    /// waiting records may have been dropped.
    pub(crate) fn append(&mut self, record: Vec<u8>) -> Result<()> {
        self.bytes += record.len() + RECORD_OVERHEAD;
        self.waiting.push_back(record);
        let written = self.flush();
        while self.bytes > MAX_BYTES {
            self.dropped += u64::from(self.take_oldest().is_some());
        }
        written
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        while let Some(record) = self.waiting.front() {
            self.file.append(record, false)?;
            self.take_oldest();
        }
        Ok(())
    }

    /// Makes the records that were written to the file survive a power cut.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }

    fn take_oldest(&mut self) -> Option<Vec<u8>> {
        let oldest = self.waiting.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, |record| record.len() + RECORD_OVERHEAD);
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn rejected_lines_are_written_later_and_dropped_ones_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let mut backlog = Backlog::open(path.clone()).unwrap();
        backlog.append(b"first\n".to_vec()).unwrap();
        backlog.file.set_refusing(true);
        assert!(backlog.append(b"second\n".to_vec()).is_err());
        assert!(backlog.append(b"third\n".to_vec()).is_err());
        assert_eq!(backlog.dropped(), 0);
        backlog.file.set_refusing(false);
        backlog.append(b"fourth\n".to_vec()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first\nsecond\nthird\nfourth\n");

        backlog.file.set_refusing(true);
        let size = 1 << 20;
        for letter in b'a'..=b'f' {
            assert!(backlog.append(vec![letter; size]).is_err());
        }
        assert_eq!(backlog.dropped(), 3);
        backlog.file.set_refusing(false);
        backlog.flush().unwrap();
        let written = fs::read(&path).unwrap();
        let kept: Vec<u8> = written.iter().rev().take(3 * size).step_by(size).copied().collect();
        assert_eq!(kept, [b'f', b'e', b'd']);
    }
}
