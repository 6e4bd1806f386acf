//! Append-only files of lines, such as `metrics.jsonl` and the journal, that contain only complete lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Maximum bytes of a line; a longer one is treated as damage. Our lines have a few hundred bytes; a log message is
/// truncated at 16 KiB.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Appends lines. Each has been passed to the operating system when [`Appender::append`] returns.
///
/// After a failed append the file is truncated to its last complete line before anything else is written. A disk that
/// was full for a while therefore leaves no torn line in the middle of the file.
#[derive(Debug)]
pub(crate) struct Appender {
    file: File,
    path: PathBuf,
    /// Bytes of all complete lines.
    whole: u64,
    torn: bool,
}

impl Appender {
    /// Opens or creates the file. An existing file must end with a complete line.
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let file = millrace_roots::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        let whole = file.metadata().map_err(Error::io("examine", &path))?.len();
        Ok(Self { file, path, whole, torn: false })
    }

    /// Makes writes fail, as on a full disk, by a handle that can only read; or makes them succeed again.
    #[cfg(test)]
    pub(crate) fn set_refusing(&mut self, refusing: bool) {
        let mut options = File::options();
        self.file = if refusing { options.read(true) } else { options.append(true) }.open(&self.path).unwrap();
    }

    /// Returns whether nothing was ever written to the file.
    pub(crate) const fn is_empty(&self) -> bool {
        self.whole == 0
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends one line, given with its line feed. With `durable` the line also survives a power cut.
    pub(crate) fn append(&mut self, line: &[u8], durable: bool) -> Result<()> {
        let written = self.try_append(line, durable);
        self.torn = written.is_err();
        match written {
            Ok(()) => self.whole += line.len() as u64,
            // Truncates now if the disk allows it, otherwise before the next line.
            Err(_) => {
                let _ = self.truncate_to_valid();
            }
        }
        written.map_err(Error::io("append to", &self.path))
    }

    /// Makes all lines appended so far survive a power cut.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(Error::io("sync", &self.path))
    }

    fn try_append(&mut self, line: &[u8], durable: bool) -> io::Result<()> {
        if self.torn {
            self.truncate_to_valid()?;
        }
        self.file.write_all(line)?;
        if durable {
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn truncate_to_valid(&mut self) -> io::Result<()> {
        self.file.set_len(self.whole)?;
        self.torn = false;
        Ok(())
    }
}

/// What was found at the reader's position in the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadLine<'a> {
    /// A complete line, without its line feed.
    Whole(&'a [u8]),
    /// A complete line of more than [`MAX_LINE_BYTES`] bytes: damage.
    Oversize,
    /// Bytes without a line feed at the end of the file: torn, or currently being written.
    Torn,
    /// The end of the file.
    End,
}

/// Reads lines in order. The position does not change at [`ReadLine::Torn`] and [`ReadLine::End`], so the next call
/// continues there when the file has grown.
#[derive(Debug)]
pub(crate) struct LineReader {
    reader: BufReader<File>,
    path: PathBuf,
    /// Byte offset of the next line.
    offset: u64,
    buffer: Vec<u8>,
}

impl LineReader {
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let file = millrace_roots::open(&path).map_err(Error::io("open", &path))?;
        Ok(Self { reader: BufReader::new(file), path, offset: 0, buffer: Vec::new() })
    }

    /// Opens the file like [`LineReader::open`]; `None` if it does not exist.
    pub(crate) fn open_if_exists(path: PathBuf) -> Result<Option<Self>> {
        match Self::open(path) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Returns the bytes of the complete lines read so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn next(&mut self) -> Result<ReadLine<'_>> {
        self.try_next().map_err(Error::io("read", &self.path))?;
        Ok(match self.buffer.split_last() {
            None => ReadLine::End,
            Some((b'\n', _)) if self.buffer.len() as u64 > MAX_LINE_BYTES => ReadLine::Oversize,
            Some((b'\n', line)) => ReadLine::Whole(line),
            Some(_) => ReadLine::Torn,
        })
    }

    /// Reads the next line into the buffer, or only the first [`MAX_LINE_BYTES`] bytes of an oversize line.
    fn try_next(&mut self) -> io::Result<()> {
        self.buffer.clear();
        let mut read = (&mut self.reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.buffer)? as u64;
        if read == MAX_LINE_BYTES && self.buffer.last() != Some(&b'\n') {
            let (skipped, ended) = skip_line(&mut self.reader)?;
            read += skipped;
            if ended {
                self.buffer.push(b'\n');
            }
        }
        if self.buffer.last() == Some(&b'\n') {
            self.offset += read;
        } else {
            self.reader.seek(SeekFrom::Start(self.offset))?;
        }
        Ok(())
    }
}

/// Skips to the byte after the next line feed. Returns the bytes skipped, and whether there was a line feed.
fn skip_line(reader: &mut impl BufRead) -> io::Result<(u64, bool)> {
    let mut skipped = 0;
    loop {
        let available = reader.fill_buf()?;
        if available.is_empty() {
            return Ok((skipped, false));
        }
        let feed = available.iter().position(|&byte| byte == b'\n');
        let used = feed.map_or(available.len(), |at| at + 1);
        reader.consume(used);
        skipped += used as u64;
        if feed.is_some() {
            return Ok((skipped, true));
        }
    }
}

/// Removes a torn last line, if there is one. Does nothing if the file does not exist.
pub(crate) fn truncate_torn_line(path: &Path) -> Result<()> {
    let Some(mut lines) = LineReader::open_if_exists(path.to_path_buf())? else {
        return Ok(());
    };
    loop {
        match lines.next()? {
            ReadLine::Whole(_) | ReadLine::Oversize => {}
            ReadLine::End => return Ok(()),
            ReadLine::Torn => break,
        }
    }
    millrace_roots::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(lines.offset()))
        .map_err(Error::io("repair", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn torn_lines_wait_and_oversize_lines_pass() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let long = vec![b'x'; MAX_LINE_BYTES as usize + 9];
        fs::write(&path, [b"a\n".as_slice(), &long, b"\n\nto"].concat()).unwrap();

        let mut lines = LineReader::open(path.clone()).unwrap();
        assert_eq!(lines.next().unwrap(), ReadLine::Whole(b"a"));
        assert_eq!(lines.next().unwrap(), ReadLine::Oversize);
        assert_eq!(lines.next().unwrap(), ReadLine::Whole(b""));
        assert_eq!(lines.next().unwrap(), ReadLine::Torn);
        assert_eq!(lines.next().unwrap(), ReadLine::Torn);
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"rn\n").unwrap();
        assert_eq!(lines.next().unwrap(), ReadLine::Whole(b"torn"));
        assert_eq!(lines.next().unwrap(), ReadLine::End);

        file.write_all(b"half").unwrap();
        truncate_torn_line(&path).unwrap();
        assert!(fs::read(&path).unwrap().ends_with(b"\ntorn\n"));
        assert_eq!(lines.next().unwrap(), ReadLine::End);
    }

    #[test]
    fn failed_append_leaves_file_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let mut appender = Appender::open(path.clone()).unwrap();
        appender.append(b"one\n", true).unwrap();

        appender.set_refusing(true);
        assert!(appender.append(b"two\n", false).is_err());
        appender.set_refusing(false);
        // State after a write that failed half-way.
        fs::write(&path, b"one\ntw").unwrap();
        appender.append(b"three\n", false).unwrap();

        assert_eq!(fs::read(&path).unwrap(), b"one\nthree\n");
    }
}
