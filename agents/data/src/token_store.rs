//! A stream of tokens in files or in memory, read in place.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use millrace_params::TokenType;

use crate::DataError;
use crate::npy::{is_npy, npy_header};

/// How a token is stored, on disk and in memory: a little-endian number. Negative ones are too large for any
/// vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenElement {
    U16,
    U32,
    U64,
}

impl TokenElement {
    /// Returns the smallest element for a vocabulary.
    pub(crate) const fn for_vocabulary(vocab_size: u32) -> Self {
        if vocab_size <= 1 << 16 { Self::U16 } else { Self::U32 }
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    /// Sends the tokens of `bytes` to `receive`. Numbers that do not fit become the largest.
    fn read(self, bytes: &[u8], mut receive: impl FnMut(u32)) {
        match self {
            Self::U16 => bytes.as_chunks().0.iter().for_each(|token| receive(u16::from_le_bytes(*token).into())),
            Self::U32 => bytes.as_chunks().0.iter().for_each(|token| receive(u32::from_le_bytes(*token))),
            Self::U64 => {
                let fit = |token| u32::try_from(u64::from_le_bytes(token)).unwrap_or(u32::MAX);
                bytes.as_chunks().0.iter().for_each(|token| receive(fit(*token)));
            }
        }
    }

    /// Appends `tokens` to `bytes`.
    pub(crate) fn write(self, tokens: &[u32], bytes: &mut Vec<u8>) {
        match self {
            // The vocabulary has no larger tokens.
            Self::U16 => bytes.extend(tokens.iter().flat_map(|token| (*token as u16).to_le_bytes())),
            Self::U32 => bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes())),
            Self::U64 => bytes.extend(tokens.iter().flat_map(|token| u64::from(*token).to_le_bytes())),
        }
    }
}

impl From<TokenType> for TokenElement {
    fn from(token_type: TokenType) -> Self {
        match token_type {
            TokenType::Uint16 => Self::U16,
            TokenType::Uint32 => Self::U32,
        }
    }
}

/// Bytes that are memory-mapped or owned.
pub(crate) enum TokenBytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl TokenBytes {
    /// Maps the whole of `file` for reading.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read-only and private to this process. This program never writes to a mapped file: the
        // cache publishes by rename, which keeps the mapped inode, and data files are only opened for reading. Another
        // program that modifies a mapped file can make the tokens wrong, or crash this process by truncating the file,
        // as with any mapped file. The tokens are copied out as plain integers, for which every byte pattern is valid,
        // and no reference into the map leaves this crate.
        unsafe { Mmap::map(file) }.map(TokenBytes::Mapped)
    }
}

impl Deref for TokenBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            TokenBytes::Mapped(map) => map,
            TokenBytes::Owned(bytes) => bytes,
        }
    }
}

/// One run of tokens: `bytes` from `header` to the end, a whole number of tokens.
pub(crate) struct Segment {
    pub(crate) bytes: TokenBytes,
    pub(crate) header: usize,
    pub(crate) element: TokenElement,
}

impl Segment {
    /// Maps a token file.
    fn open(path: &Path, token_type: TokenType) -> Result<Self, DataError> {
        let read = |source| DataError::Read { path: path.to_owned(), source };
        let file = millrace_roots::open(path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        let (header, element) = if is_npy(path) { npy_header(path)? } else { (0, token_type.into()) };
        if !(bytes - header as u64).is_multiple_of(element.bytes() as u64) {
            return Err(DataError::PartialToken { path: path.to_owned(), bytes, token_bytes: element.bytes() });
        }
        let bytes = if bytes == 0 { TokenBytes::Owned(Vec::new()) } else { TokenBytes::map(&file).map_err(read)? };
        Ok(Self { bytes, header, element })
    }

    fn payload(&self) -> &[u8] {
        self.bytes.get(self.header..).unwrap_or_default()
    }

    fn tokens(&self) -> u64 {
        (self.payload().len() / self.element.bytes()) as u64
    }
}

/// Segments joined to one stream.
pub(crate) struct TokenStore {
    /// Each segment with the index of the first token after it, ascending.
    segments: Vec<(u64, Segment)>,
    pub(crate) max_token: u32,
    /// Digest of the content: equal for equal streams.
    pub(crate) digest: [u8; 32],
}

impl TokenStore {
    pub(crate) fn new(segments: Vec<Segment>, max_token: u32, digest: [u8; 32]) -> Self {
        let mut end = 0;
        let segments = segments
            .into_iter()
            .map(|segment| {
                end += segment.tokens();
                (end, segment)
            })
            .collect();
        Self { segments, max_token, digest }
    }

    /// Joins token files. Reads each once for its largest token and its digest.
    pub(crate) fn open_files(
        paths: &[PathBuf],
        token_type: TokenType,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, DataError> {
        let mut files = Vec::new();
        for path in paths {
            let file = Segment::open(path, token_type)?;
            if file.tokens() > 0 {
                files.push(file);
            }
        }
        let total = files.iter().map(|file| file.payload().len() as u64).sum();
        let Some(first) = paths.first().filter(|_| total == 0) else {
            return Ok(Self::scan(files, total, progress));
        };
        Err(DataError::Empty { files: paths.len(), first: first.clone() })
    }

    fn scan(segments: Vec<Segment>, total: u64, progress: &mut dyn FnMut(u64, u64)) -> Self {
        const BLOCK: usize = 4 << 20;
        let mut hasher = blake3::Hasher::new_derive_key("millrace token files of u16, version 1");
        let (mut max, mut done) = (0, 0);
        progress(0, total);
        for segment in &segments {
            if segment.element != TokenElement::U16 {
                // Files of u16 have no mark, so that their digests stay what they were.
                hasher.update(b"elements of bytes").update(&[segment.element.bytes() as u8]);
            }
            for block in segment.payload().chunks(BLOCK) {
                hasher.update(block);
                segment.element.read(block, |token| max = token.max(max));
                done += block.len() as u64;
                progress(done, total);
            }
        }
        Self::new(segments, max, *hasher.finalize().as_bytes())
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> u64 {
        self.segments.last().map_or(0, |(end, _)| *end)
    }

    /// Copies the tokens from index `start` to `out`. The tokens must exist.
    pub(crate) fn copy(&self, mut start: u64, mut out: &mut [i32]) {
        let mut index = self.segments.partition_point(|(end, _)| *end <= start);
        while !out.is_empty() {
            let (end, segment) = &self.segments[index];
            let skip = (start - (end - segment.tokens())) as usize;
            let size = segment.element.bytes();
            let payload = &segment.payload()[skip * size..];
            let take = out.len().min(payload.len() / size);
            let (chunk, remaining) = out.split_at_mut(take);
            let mut slots = chunk.iter_mut();
            // A token beyond i32 is beyond every vocabulary, which is checked when a source is opened.
            segment.element.read(&payload[..take * size], |token| {
                slots.next().into_iter().for_each(|slot| *slot = i32::try_from(token).unwrap_or(i32::MAX));
            });
            start += take as u64;
            out = remaining;
            index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_one_stream_wherever_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let tokens: Vec<u16> = (0..1000u16).map(|i| i.wrapping_mul(7919)).collect();
        let mut paths = Vec::new();
        // An empty file and a file with one token among them: every read may span several files.
        for (i, part) in [&tokens[..400], &[], &tokens[400..401], &tokens[401..]].into_iter().enumerate() {
            let path = dir.path().join(format!("{i}.bin"));
            std::fs::write(&path, part.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
            paths.push(path);
        }
        let mut progress = (0, 0);
        let store =
            TokenStore::open_files(&paths, TokenType::Uint16, &mut |done, total| progress = (done, total)).unwrap();
        assert_eq!(progress, (2000, 2000));
        assert_eq!((store.len(), store.max_token), (1000, u32::from(*tokens.iter().max().unwrap())));
        for (start, len) in [(0, 1000), (399, 3), (400, 1), (401, 2), (999, 1), (398, 100)] {
            let mut out = vec![-1; len];
            store.copy(start as u64, &mut out);
            let expected: Vec<i32> = tokens[start..start + len].iter().map(|&t| i32::from(t)).collect();
            assert_eq!(out, expected, "{len} tokens from {start}");
        }
    }

    #[test]
    fn elements_keep_every_token_that_fits() {
        let tokens = [0, 7, 65_535, 65_536, 128_255, i32::MAX as u32];
        for element in [TokenElement::U32, TokenElement::U64] {
            let (mut bytes, mut read) = (Vec::new(), Vec::new());
            element.write(&tokens, &mut bytes);
            element.read(&bytes, |token| read.push(token));
            assert_eq!((bytes.len(), read.as_slice()), (tokens.len() * element.bytes(), tokens.as_slice()));
        }
        let mut negative = Vec::new();
        TokenElement::U64.read(&(-1i64).to_le_bytes(), |token| negative.push(token));
        assert_eq!(negative, [u32::MAX]);
        assert_eq!(TokenElement::for_vocabulary(65_536), TokenElement::U16);
        assert_eq!(TokenElement::for_vocabulary(65_537), TokenElement::U32);
    }
}
