//! Tokenizes text files in one pass with bounded memory.
//!
//! A file is read in blocks. Each block is cut where the tokenizer allows it ([`Tokenizer::last_cut`]), divided into
//! pieces that threads encode independently, and sent on in order. The tokens are therefore those of the whole text,
//! for any number of threads, and neither text nor tokens are ever completely in memory.
//! Of a JSON Lines file, one line is in memory at a time; each of its texts is a document.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::json_lines::{JsonLines, is_json_lines};
use crate::{DataError, Tokenizer};

/// Bytes read at once; also the interval of progress reports.
const READ_BLOCK_BYTES: usize = 512 << 10;
/// Bytes that a thread encodes at once: enough pieces per block to balance several threads.
const ENCODE_PIECE_BYTES: usize = 32 << 10;

/// Receives the next tokens of the stream.
pub(crate) type TokenSink<'a> = dyn FnMut(&[u16]) -> Result<(), DataError> + 'a;

/// Text files that are not empty, with their digests when they were opened.
pub(crate) struct Corpus {
    documents: Vec<Document>,
    tokenizer: Tokenizer,
}

struct Document {
    path: PathBuf,
    bytes: u64,
    digest: blake3::Hash,
}

impl Corpus {
    /// Reads every file once to compute the digest of its content.
    pub(crate) fn open(paths: &[PathBuf], tokenizer: Tokenizer) -> Result<Self, DataError> {
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
            Some(_) => Ok(Self { documents, tokenizer }),
        }
    }

    /// Returns a digest of everything the tokens depend on: the contents of the documents in order (not their names)
    /// and the encoding.
    pub(crate) fn key(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("millrace tokenised text, version 1");
        hasher.update(self.tokenizer.id().as_bytes());
        hasher.update(&[0]);
        for document in &self.documents {
            if is_json_lines(&document.path) {
                hasher.update(b"json lines, version 1");
            }
            hasher.update(document.digest.as_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Sends the tokens of all documents, separated, to `sink`, and (bytes done, total bytes) to `progress`.
    pub(crate) fn tokenise(&self, progress: &mut dyn FnMut(u64, u64), sink: &mut TokenSink) -> Result<(), DataError> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let total = self.documents.iter().map(|d| d.bytes).sum();
        let mut done = 0;
        let mut is_first = true;
        progress(done, total);
        for document in &self.documents {
            if is_json_lines(&document.path) {
                self.tokenise_lines(document, threads, &mut is_first, sink, &mut |bytes| {
                    progress(done + bytes, total)
                })?;
                done += document.bytes;
                progress(done, total);
                continue;
            }
            self.separate(&mut is_first, sink)?;
            let mut blocks = DocumentBlocks::open(document, self.tokenizer)?;
            while let Some(text) = blocks.next()? {
                for tokens in encode(self.tokenizer, text, threads) {
                    sink(&tokens)?;
                }
                done += text.len() as u64;
                progress(done, total);
            }
        }
        Ok(())
    }

    /// Sends a separator, unless the next document is the first.
    fn separate(&self, is_first: &mut bool, sink: &mut TokenSink) -> Result<(), DataError> {
        if std::mem::replace(is_first, false) { Ok(()) } else { sink(&[self.tokenizer.separator()]) }
    }

    /// Sends the tokens of each line of a JSON Lines file. `progress` receives the bytes of the file that are done.
    fn tokenise_lines(
        &self,
        document: &Document,
        threads: usize,
        is_first: &mut bool,
        sink: &mut TokenSink,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), DataError> {
        let file = millrace_roots::open(&document.path).map_err(|source| read_error(document, source))?;
        let mut lines = JsonLines::new(&document.path, HashedReader { file, hasher: blake3::Hasher::new() });
        let (mut done, mut reported) = (0, 0);
        while let Some((text, bytes)) = lines.next()? {
            if !text.is_empty() {
                self.separate(is_first, sink)?;
                for tokens in encode(self.tokenizer, &text, threads) {
                    sink(&tokens)?;
                }
            }
            done += bytes;
            if done - reported >= READ_BLOCK_BYTES as u64 {
                // A file that grows is rejected at its end.
                progress(done.min(document.bytes));
                reported = done;
            }
        }
        document.check_unchanged(&lines.into_inner().hasher)
    }
}

/// Computes the digest of what is read from a file.
struct HashedReader {
    file: File,
    hasher: blake3::Hasher,
}

impl Read for HashedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
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
        Ok(Self { path: path.into(), bytes: hasher.count(), digest: hasher.finalize() })
    }

    /// The cache key was computed in an earlier pass; tokens of another text must not be cached under it.
    fn check_unchanged(&self, hasher: &blake3::Hasher) -> Result<(), DataError> {
        if hasher.finalize() == self.digest { Ok(()) } else { Err(DataError::Changed { path: self.path.clone() }) }
    }
}

/// Reads a document in blocks of whole words.
struct DocumentBlocks<'a> {
    document: &'a Document,
    tokenizer: Tokenizer,
    file: File,
    hasher: blake3::Hasher,
    /// Text read and not yet returned; the first `taken` bytes are the last block.
    buffer: Vec<u8>,
    taken: usize,
    /// Offset in the file of the buffer's first byte.
    offset: u64,
}

impl<'a> DocumentBlocks<'a> {
    fn open(document: &'a Document, tokenizer: Tokenizer) -> Result<Self, DataError> {
        let file = millrace_roots::open(&document.path).map_err(|source| read_error(document, source))?;
        Ok(Self { document, tokenizer, file, hasher: blake3::Hasher::new(), buffer: Vec::new(), taken: 0, offset: 0 })
    }

    /// Returns the next block, or `None` after the last one.
    fn next(&mut self) -> Result<Option<&str>, DataError> {
        self.buffer.drain(..self.taken);
        self.offset += self.taken as u64;
        self.taken = loop {
            // Doubling the buffer keeps the search linear for a text without any position to cut.
            let more = READ_BLOCK_BYTES.max(self.buffer.len());
            let ended = self.read(more)? < more;
            let valid = self.valid(ended)?;
            if ended {
                self.document.check_unchanged(&self.hasher)?;
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
        let before = self.buffer.len();
        let read = (&mut self.file).take(bytes as u64).read_to_end(&mut self.buffer);
        let read = read.map_err(|source| read_error(self.document, source))?;
        self.hasher.update(&self.buffer[before..]);
        Ok(read)
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

fn read_error(document: &Document, source: io::Error) -> DataError {
    DataError::Read { path: document.path.clone(), source }
}

/// Returns the tokens of `text`, piece by piece in order, computed by up to `threads` threads.
fn encode(tokenizer: Tokenizer, text: &str, threads: usize) -> Vec<Vec<u16>> {
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
    let mut encoded: Vec<(usize, Vec<u16>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // The panic of a worker is propagated: a bug, not bad input.
        workers.into_iter().flat_map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    encoded.sort_unstable_by_key(|(i, _)| *i);
    encoded.into_iter().map(|(_, tokens)| tokens).collect()
}

fn pieces(tokenizer: Tokenizer, text: &str) -> Vec<&str> {
    let mut pieces = Vec::with_capacity(text.len() / ENCODE_PIECE_BYTES + 1);
    let mut rest = text;
    while rest.len() > ENCODE_PIECE_BYTES
        && let Some(cut) = tokenizer.first_cut(rest, ENCODE_PIECE_BYTES)
    {
        let (piece, behind) = rest.split_at(cut);
        pieces.push(piece);
        rest = behind;
    }
    pieces.push(rest);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permute::splitmix64;

    fn tokens(paths: &[PathBuf], tokenizer: Tokenizer) -> Result<Vec<u16>, DataError> {
        let mut tokens = Vec::new();
        let corpus = Corpus::open(paths, tokenizer)?;
        let mut seen = Vec::new();
        corpus.tokenise(&mut |done, total| seen.push((done, total)), &mut |t| {
            tokens.extend_from_slice(t);
            Ok(())
        })?;
        let total = corpus.documents.iter().map(|d| d.bytes).sum();
        assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
        assert!(seen.is_sorted());
        Ok(tokens)
    }

    #[test]
    fn tokens_do_not_depend_on_blocks_or_threads() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than a block, with characters of two and three bytes across every boundary, runs of white space, and a
        // stretch longer than a block without any position to cut.
        let words = ["the ", "œuvre", " 中文", "\n\n  ", "it's", " 2024", "!?"];
        let mut text: String = (0..150_000u64).map(|i| words[(splitmix64(i) % 7) as usize]).collect();
        text.insert_str(300_001, &"é".repeat(READ_BLOCK_BYTES));
        assert!(text.len() > 3 * READ_BLOCK_BYTES);
        let path = dir.path().join("long.txt");
        std::fs::write(&path, &text).unwrap();
        for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
            let whole = tokenizer.encode(&text);
            assert!(tokens(std::slice::from_ref(&path), tokenizer).unwrap() == whole, "{tokenizer:?}");
            for threads in [1, 2, 5] {
                assert!(encode(tokenizer, &text, threads).concat() == whole, "{tokenizer:?} by {threads}");
            }
        }
    }

    #[test]
    fn documents_are_separated_and_empty_ones_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = ["", "Hello world", "", " the", ""]
            .iter()
            .enumerate()
            .map(|(i, text)| {
                let path = dir.path().join(i.to_string());
                std::fs::write(&path, text).unwrap();
                path
            })
            .collect();
        assert_eq!(tokens(&paths, Tokenizer::Gpt2).unwrap(), [15496, 995, 50256, 262]);
        assert_eq!(
            tokens(&paths, Tokenizer::Bytes).unwrap(),
            "Hello world\0 the".bytes().map(u16::from).collect::<Vec<_>>()
        );
        let key = |paths: &[PathBuf], tokenizer| Corpus::open(paths, tokenizer).unwrap().key();
        assert_eq!(key(&paths, Tokenizer::Gpt2), key(&[paths[1].clone(), paths[3].clone()], Tokenizer::Gpt2));
        assert_ne!(key(&paths, Tokenizer::Gpt2), key(&paths, Tokenizer::Bytes));
        assert_ne!(key(&paths, Tokenizer::Gpt2), key(&[paths[3].clone(), paths[1].clone()], Tokenizer::Gpt2));
    }

    #[test]
    fn each_line_of_json_lines_is_a_document() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let long = "word ".repeat(READ_BLOCK_BYTES / 4);
        let lines = format!("{{\"text\": \"\"}}\n{{\"text\": \"a\"}}\n{{\"text\": \"{long}\"}}\n");
        let paths = [write("a.txt", "b"), write("b.jsonl", &lines), write("c.JSONL", "{\"text\": \"c\"}")];
        let expected: Vec<u16> = format!("b\0a\0{long}\0c").bytes().map(u16::from).collect();
        assert!(tokens(&paths, Tokenizer::Bytes).unwrap() == expected);
        let key = |paths: &[PathBuf]| Corpus::open(paths, Tokenizer::Bytes).unwrap().key();
        assert_ne!(key(&[write("same.txt", &lines)]), key(&paths[1..2]));
        let bad = write("bad.jsonl", "{\"text\": \"a\"}\nnull\n");
        let error = tokens(&[bad], Tokenizer::Bytes).unwrap_err();
        assert!(matches!(error, DataError::JsonLine { line: 2, .. }) && error.is_bad_input(), "{error}");
    }

    #[test]
    fn bad_bytes_are_named_by_their_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        let clean = "word ".repeat(READ_BLOCK_BYTES / 4);
        // In the first block, in a later one, truncated at the end, and truncated in the middle of the file.
        for (before, bad, behind) in
            [(3, "\u{e9}", "x"), (clean.len(), "\u{e9}", ""), (7, "\u{e9}", ""), (READ_BLOCK_BYTES - 1, "é", "é")]
        {
            let mut bytes = clean.as_bytes()[..before].to_vec();
            bytes.extend_from_slice(&bad.as_bytes()[..1]);
            bytes.extend_from_slice(behind.as_bytes());
            std::fs::write(&path, bytes).unwrap();
            let error = tokens(std::slice::from_ref(&path), Tokenizer::Gpt2).unwrap_err();
            assert!(matches!(error, DataError::InvalidUtf8 { offset, .. } if offset == before as u64), "{error}");
        }
    }

    #[test]
    fn changed_file_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        std::fs::write(&path, "one").unwrap();
        let corpus = Corpus::open(std::slice::from_ref(&path), Tokenizer::Bytes).unwrap();
        std::fs::write(&path, "two").unwrap();
        let error = corpus.tokenise(&mut |_, _| {}, &mut |_| Ok(())).unwrap_err();
        assert!(matches!(error, DataError::Changed { .. }), "{error}");
    }
}
