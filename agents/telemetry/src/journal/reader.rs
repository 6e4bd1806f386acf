//! Reads the journal's files, also while another process writes them.

use std::path::{Path, PathBuf};

use super::{JOURNAL_DIR, JournalEntry, header};
use crate::error::{Error, Result};
use crate::jsonl::{LineReader, ReadLine};

/// Reads entries in order, over all attempts. At the end it can be called again for entries written later.
///
/// Unreadable lines (damage, or kinds of a later version) are skipped and counted.
#[derive(Debug)]
pub struct JournalReader {
    directory: PathBuf,
    /// The attempt being read, with its file.
    current: Option<(u64, LineReader)>,
    /// Entries below this number are skipped.
    next_seq: u64,
    skipped: u64,
}

impl JournalReader {
    /// Opens the journal of `model_dir` to read from number `from`; 0 and 1 are the beginning. A journal that does not
    /// exist has no entries yet.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NewerJournal`] if a file has a later version.
    pub fn open(model_dir: &Path, from: u64) -> Result<Self> {
        let directory = model_dir.join(JOURNAL_DIR);
        let mut start = None;
        // Starts at the newest attempt that begins at or before `from`.
        for &attempt in attempts(&directory)?.iter().rev() {
            let mut reader = Self::of_attempt(&directory, attempt)?;
            let first = reader.next_in_file()?;
            start = Some(attempt);
            if first.is_some_and(|entry| entry.seq <= from) {
                break;
            }
        }
        let mut reader = Self { directory, current: None, next_seq: from, skipped: 0 };
        if let Some(attempt) = start {
            reader.start(attempt)?;
        }
        Ok(reader)
    }

    /// Opens the journal of one attempt, from its beginning.
    pub(super) fn of_attempt(directory: &Path, attempt: u64) -> Result<Self> {
        let mut reader = Self { directory: directory.to_path_buf(), current: None, next_seq: 0, skipped: 0 };
        reader.start(attempt)?;
        Ok(reader)
    }

    /// Returns the next entry; `None` if there is none yet.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NewerJournal`] if a file has a later version.
    pub fn next_entry(&mut self) -> Result<Option<JournalEntry>> {
        loop {
            if let Some(entry) = self.next_in_file()? {
                return Ok(Some(entry));
            }
            if !self.next_attempt()? {
                return Ok(None);
            }
        }
    }

    /// Returns the number of unreadable lines skipped so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    pub(super) fn next_in_file(&mut self) -> Result<Option<JournalEntry>> {
        let Some((attempt, lines)) = &mut self.current else {
            return Ok(None);
        };
        loop {
            let entry = match lines.next()? {
                ReadLine::Whole(line) => match serde_json::from_slice::<JournalEntry>(line) {
                    Ok(entry) => Some(entry),
                    Err(_) => match header::version(line) {
                        Some(found) if found > header::VERSION => {
                            let path = path(&self.directory, *attempt);
                            return Err(Error::NewerJournal { path, found, known: header::VERSION });
                        }
                        Some(_) => continue,
                        None => None,
                    },
                },
                ReadLine::Oversize => None,
                ReadLine::Torn | ReadLine::End => return Ok(None),
            };
            match entry {
                None => self.skipped += 1,
                Some(entry) if entry.seq < self.next_seq => {}
                Some(entry) => {
                    self.next_seq = entry.seq.saturating_add(1);
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Continues with the next attempt; returns false if there is none.
    fn next_attempt(&mut self) -> Result<bool> {
        let after = self.current.as_ref().map(|(attempt, _)| *attempt);
        let next = attempts(&self.directory)?.into_iter().find(|&attempt| after.is_none_or(|after| attempt > after));
        match next {
            Some(attempt) => self.start(attempt).map(|()| true),
            None => Ok(false),
        }
    }

    fn start(&mut self, attempt: u64) -> Result<()> {
        let lines = LineReader::open(path(&self.directory, attempt))?;
        self.current = Some((attempt, lines));
        Ok(())
    }
}

/// Returns the path of an attempt's file.
pub(super) fn path(directory: &Path, attempt: u64) -> PathBuf {
    directory.join(format!("attempt-{attempt}.jsonl"))
}

/// Returns the attempts that have a file, ascending.
pub(super) fn attempts(directory: &Path) -> Result<Vec<u64>> {
    let listing = match millrace_roots::read_dir(directory) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing.map_err(Error::io("list", directory))?,
    };
    let mut attempts = Vec::new();
    for file in listing {
        let number = file.name().strip_prefix("attempt-").and_then(|name| name.strip_suffix(".jsonl"));
        attempts.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    attempts.sort_unstable();
    Ok(attempts)
}
