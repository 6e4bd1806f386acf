//! Tokenizes text files in one pass with bounded memory.
//!
//! A file is read in blocks. Each block is cut where the tokenizer allows it ([`Tokenizer::last_cut`]), divided into
//! pieces that threads encode independently, and sent on in order. The tokens are therefore a function of the text, for
//! any number of threads, and neither text nor tokens are ever completely in memory. With the embedded tokenizers, and
//! for texts that are not longer than a piece, they are those of the whole text.
//! Of a JSON Lines file, one line is in memory at a time, and of a Parquet file a few rows; each of its texts is a
//! document.

mod blocks;
mod format;
mod json_lines;

use std::io::{self, Read};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

pub use format::TextFormat;
pub(crate) use format::{GZIP_SIGNATURE, PARQUET_SIGNATURE, ZSTD_SIGNATURE};
pub use json_lines::JsonLineProblem;

use millrace_params::DEFAULT_TEXT_KEY;
use millrace_text::ParquetTexts;

use crate::cache::CacheKey;
use crate::token_store::TokenElement;
use crate::{DataError, Tokenizer};
use blocks::DocumentBlocks;
use format::{Compression, TextReader, TextStructure, is_damage};
use json_lines::{JsonLineError, JsonLines};

/// Bytes read at once to compute digests, and between progress reports of JSON Lines files.
const READ_BLOCK_BYTES: usize = 512 << 10;

/// Receives the next tokens of the stream.
pub(crate) type TokenSink<'a> = dyn FnMut(&[u32]) -> Result<(), DataError> + 'a;

/// Text files that are not empty, with their digests when they were opened.
pub(crate) struct Corpus {
    documents: Vec<Document>,
    tokenizer: Tokenizer,
    text_key: String,
}

struct Document {
    path: PathBuf,
    format: TextFormat,
    bytes: u64,
    digest: blake3::Hash,
}

impl Corpus {
    /// Reads every file once to compute the digest of its content.
    pub(crate) fn open(paths: &[PathBuf], tokenizer: Tokenizer, text_key: &str) -> Result<Self, DataError> {
        let mut documents = Vec::new();
        for path in paths {
            let document = Document::open(path).map_err(|source| DataError::Read { path: path.clone(), source })?;
            if document.bytes > 0 {
                documents.push(document);
            }
        }
        match paths.first() {
            None => Err(DataError::NoPaths),
            Some(first) if documents.is_empty() => Err(DataError::Empty { files: paths.len(), first: first.clone() }),
            Some(_) => Ok(Self { documents, tokenizer, text_key: text_key.to_owned() }),
        }
    }

    /// Returns a digest of everything the tokens depend on: the contents of the documents in order (not their names,
    /// but what these say of the format) and the encoding.
    pub(crate) fn key(&self) -> CacheKey {
        let mut hasher = blake3::Hasher::new_derive_key("millrace tokenised text, version 1");
        self.tokenizer.hash(&mut hasher);
        hasher.update(&[0]);
        for document in &self.documents {
            match document.format.structure {
                TextStructure::Document => {}
                TextStructure::JsonLines => drop(hasher.update(b"json lines, version 1")),
                TextStructure::Parquet => drop(hasher.update(b"parquet, version 1")),
            }
            if document.format.structure != TextStructure::Document && self.text_key != DEFAULT_TEXT_KEY {
                hasher.update(blake3::hash(self.text_key.as_bytes()).as_bytes());
            }
            if document.format.compression != Compression::None {
                hasher.update(b"compressed, version 1");
            }
            hasher.update(document.digest.as_bytes());
        }
        let element = TokenElement::for_vocabulary(self.tokenizer.vocab_size());
        CacheKey { digest: *hasher.finalize().as_bytes(), element }
    }

    /// Sends the tokens of all documents, separated, to `sink`, and (bytes done, total bytes) to `progress`.
    pub(crate) fn tokenise(&self, progress: &mut dyn FnMut(u64, u64), sink: &mut TokenSink) -> Result<(), DataError> {
        let total = self.documents.iter().map(|d| d.bytes).sum();
        let mut done = 0;
        let mut stream = TokenStream { tokenizer: &self.tokenizer, is_first: true, sink };
        progress(done, total);
        for document in &self.documents {
            // A file that grows is rejected at its end.
            let mut of_document = |bytes: u64| progress(done + bytes.min(document.bytes), total);
            match document.format.structure {
                TextStructure::Document => self.tokenise_text(document, &mut stream, &mut of_document)?,
                TextStructure::JsonLines => self.tokenise_lines(document, &mut stream, &mut of_document)?,
                TextStructure::Parquet => self.tokenise_rows(document, &mut stream, &mut of_document)?,
            }
            done += document.bytes;
            progress(done, total);
        }
        Ok(())
    }

    /// Sends the tokens of a file that is one document. `progress` receives the bytes of the file that are done.
    fn tokenise_text(
        &self,
        document: &Document,
        stream: &mut TokenStream<'_, '_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), DataError> {
        let mut blocks = DocumentBlocks::open(document, &self.tokenizer)?;
        let mut is_begun = false;
        while let Some(text) = blocks.next()? {
            if !std::mem::replace(&mut is_begun, true) {
                stream.begin_document()?;
            }
            stream.push(text)?;
            progress(blocks.bytes_read());
        }
        Ok(())
    }

    /// Sends the tokens of each line of a JSON Lines file. `progress` receives the bytes of the file that are done.
    fn tokenise_lines(
        &self,
        document: &Document,
        stream: &mut TokenStream<'_, '_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), DataError> {
        let mut lines = JsonLines::new(document.reader()?, &self.text_key);
        let mut reported = 0;
        while let Some(text) = lines.next().map_err(|error| json_line_error(document, error))? {
            stream.push_document(&text)?;
            let done = lines.get_ref().hasher().count();
            if done - reported >= READ_BLOCK_BYTES as u64 {
                progress(done);
                reported = done;
            }
        }
        document.check_unchanged(lines.get_ref().hasher())
    }

    /// Sends the tokens of each row of a Parquet file. `progress` receives the bytes of the file that are done.
    fn tokenise_rows(
        &self,
        document: &Document,
        stream: &mut TokenStream<'_, '_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), DataError> {
        let error = |problem| DataError::Parquet { path: document.path.clone(), problem };
        let read_error = |source| read_error(document, source);
        let file = millrace_roots::open(&document.path).map_err(read_error)?;
        let mut texts = ParquetTexts::open(file, &self.text_key).map_err(error)?;
        while let Some(batch) = texts.next_batch().map_err(error)? {
            batch.iter().try_for_each(|text| stream.push_document(text))?;
            progress((document.bytes as f64 * texts.progress()) as u64);
        }
        // Rows are not read in the order of the file.
        match Document::open(&document.path).map_err(read_error)?.digest == document.digest {
            true => Ok(()),
            false => Err(DataError::Changed { path: document.path.clone() }),
        }
    }
}

/// Documents on their way to a sink of tokens.
struct TokenStream<'a, 's> {
    tokenizer: &'a Tokenizer,
    is_first: bool,
    sink: &'a mut TokenSink<'s>,
}

impl TokenStream<'_, '_> {
    /// Sends a separator, unless the document that begins is the first.
    fn begin_document(&mut self) -> Result<(), DataError> {
        match std::mem::replace(&mut self.is_first, false) {
            true => Ok(()),
            false => (self.sink)(&[self.tokenizer.separator()]),
        }
    }

    /// Sends the tokens of a part of a document.
    fn push(&mut self, text: &str) -> Result<(), DataError> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        encode(self.tokenizer, text, threads)?.iter().try_for_each(|tokens| (self.sink)(tokens))
    }

    /// Sends a whole document, unless it is empty.
    fn push_document(&mut self, text: &str) -> Result<(), DataError> {
        if text.is_empty() {
            return Ok(());
        }
        self.begin_document()?;
        self.push(text)
    }
}

impl Document {
    fn open(path: &Path) -> io::Result<Self> {
        let mut file = millrace_roots::open(path)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; READ_BLOCK_BYTES];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => drop(hasher.update(&buffer[..n])),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let format = TextFormat::of(path);
        Ok(Self { path: path.into(), format, bytes: hasher.count(), digest: hasher.finalize() })
    }

    /// Opens the file to read its text.
    fn reader(&self) -> Result<TextReader, DataError> {
        let file = millrace_roots::open(&self.path).map_err(|source| read_error(self, source))?;
        Ok(TextReader::new(file, self.format.compression))
    }

    /// The cache key was computed in an earlier pass; tokens of another text must not be cached under it.
    fn check_unchanged(&self, hasher: &blake3::Hasher) -> Result<(), DataError> {
        if hasher.finalize() == self.digest { Ok(()) } else { Err(DataError::Changed { path: self.path.clone() }) }
    }
}

/// Returns the error of a file that can't be read, or not expanded.
fn read_error(document: &Document, source: io::Error) -> DataError {
    let path = document.path.clone();
    match document.format.compression != Compression::None && is_damage(&source) {
        true => DataError::Compressed { path, source },
        false => DataError::Read { path, source },
    }
}

fn json_line_error(document: &Document, error: JsonLineError) -> DataError {
    match error {
        JsonLineError::Read(source) => read_error(document, source),
        JsonLineError::Problem { line, problem } => DataError::JsonLine { path: document.path.clone(), line, problem },
    }
}

/// Returns the tokens of `text`, piece by piece in order, computed by up to `threads` threads.
///
/// # Errors
/// The tokenizer can't encode a piece. The error is that of the first such piece.
fn encode(tokenizer: &Tokenizer, text: &str, threads: usize) -> Result<Vec<Vec<u32>>, DataError> {
    let pieces = pieces(tokenizer, text);
    let threads = threads.min(pieces.len());
    if threads <= 1 {
        return pieces.into_iter().map(|piece| tokenizer.encode(piece)).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((i, piece)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, pieces.get(i)?)))
        {
            done.push((i, tokenizer.encode(piece)));
        }
        done
    };
    let mut encoded: Vec<(usize, Result<Vec<u32>, DataError>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // The panic of a worker is propagated: a bug, not bad input.
        workers.into_iter().flat_map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    encoded.sort_unstable_by_key(|(i, _)| *i);
    encoded.into_iter().map(|(_, tokens)| tokens).collect()
}

fn pieces<'a>(tokenizer: &Tokenizer, text: &'a str) -> Vec<&'a str> {
    let piece_bytes = tokenizer.piece_bytes();
    let mut pieces = Vec::with_capacity(text.len() / piece_bytes + 1);
    let mut rest = text;
    while rest.len() > piece_bytes
        && let Some(cut) = tokenizer.first_cut(rest, piece_bytes)
    {
        let (piece, remaining) = rest.split_at(cut);
        pieces.push(piece);
        rest = remaining;
    }
    pieces.push(rest);
    pieces
}

#[cfg(test)]
mod tests;
