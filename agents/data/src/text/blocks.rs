//! Reads a text in blocks that are encoded one after the other.

use std::io::Read;

use super::format::TextReader;
use super::{Document, read_error};
use crate::{DataError, Tokenizer};

/// Pieces read at once: enough to balance several threads, and the interval of progress reports.
const PIECES_PER_BLOCK: usize = 16;

/// Reads a document in blocks of whole words.
pub(super) struct DocumentBlocks<'a> {
    document: &'a Document,
    tokenizer: &'a Tokenizer,
    reader: TextReader,
    /// Text read and not yet returned; the first `taken` bytes are the last block.
    buffer: Vec<u8>,
    taken: usize,
    /// Offset in the text of the buffer's first byte.
    offset: u64,
}

impl<'a> DocumentBlocks<'a> {
    pub fn open(document: &'a Document, tokenizer: &'a Tokenizer) -> Result<Self, DataError> {
        Ok(Self { document, tokenizer, reader: document.reader()?, buffer: Vec::new(), taken: 0, offset: 0 })
    }

    /// Returns how many bytes of the file were read.
    pub fn bytes_read(&self) -> u64 {
        self.reader.hasher().count()
    }

    /// Returns the next block, or `None` after the last one.
    pub fn next(&mut self) -> Result<Option<&str>, DataError> {
        self.buffer.drain(..self.taken);
        self.offset += self.taken as u64;
        self.taken = loop {
            // Doubling the buffer keeps the search linear for a text without any position to cut.
            let more = (PIECES_PER_BLOCK * self.tokenizer.piece_bytes()).max(self.buffer.len());
            let ended = self.read(more)? < more;
            let valid = self.valid(ended)?;
            if ended {
                self.document.check_unchanged(self.reader.hasher())?;
                break self.buffer.len();
            }
            if let Some(cut) = self.tokenizer.last_cut(valid) {
                break cut;
            }
        };
        let text = self.utf8(self.taken)?;
        Ok((!text.is_empty()).then_some(text))
    }

    fn read(&mut self, bytes: usize) -> Result<usize, DataError> {
        let read = (&mut self.reader).take(bytes as u64).read_to_end(&mut self.buffer);
        read.map_err(|source| read_error(self.document, source))
    }

    /// Returns the buffer without an incomplete character at its end.
    fn valid(&self, ended: bool) -> Result<&str, DataError> {
        match std::str::from_utf8(&self.buffer) {
            Err(e) if !ended && e.error_len().is_none() => self.utf8(e.valid_up_to()),
            _ => self.utf8(self.buffer.len()),
        }
    }

    fn utf8(&self, len: usize) -> Result<&str, DataError> {
        std::str::from_utf8(&self.buffer[..len]).map_err(|e| DataError::InvalidUtf8 {
            path: self.document.path.clone(),
            offset: self.offset + e.valid_up_to() as u64,
        })
    }
}
