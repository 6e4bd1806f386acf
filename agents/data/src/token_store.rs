//! A stream of tokens in files or in memory, read in place.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;

use memmap2::Mmap;

use crate::DataError;

/// Bytes of a token, on disk and in memory: little-endian `u16`.
pub(crate) const TOKEN_BYTES: usize = 2;

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
}

impl Segment {
    fn payload(&self) -> &[u8] {
        self.bytes.get(self.header..).unwrap_or_default()
    }

    fn tokens(&self) -> u64 {
        (self.payload().len() / TOKEN_BYTES) as u64
    }
}

/// Segments joined to one stream.
pub(crate) struct TokenStore {
    /// Each segment with the index of the first token after it, ascending.
    segments: Vec<(u64, Segment)>,
    pub(crate) max_token: u16,
    /// Digest of the content: equal for equal streams.
    pub(crate) digest: [u8; 32],
}

impl TokenStore {
    pub(crate) fn new(segments: Vec<Segment>, max_token: u16, digest: [u8; 32]) -> Self {
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
    pub(crate) fn open_files(paths: &[PathBuf], progress: &mut dyn FnMut(u64, u64)) -> Result<Self, DataError> {
        let mut files = Vec::new();
        for path in paths {
            let read = |source| DataError::Read { path: path.clone(), source };
            let file = millrace_roots::open(path).map_err(read)?;
            let bytes = file.metadata().map_err(read)?.len();
            if bytes % TOKEN_BYTES as u64 != 0 {
                return Err(DataError::OddLength { path: path.clone(), bytes });
            }
            if bytes > 0 {
                files.push(Segment { bytes: TokenBytes::map(&file).map_err(read)?, header: 0 });
            }
        }
        let total = files.iter().map(|f| f.bytes.len() as u64).sum();
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
            for block in segment.payload().chunks(BLOCK) {
                hasher.update(block);
                max = block.chunks_exact(TOKEN_BYTES).map(token).fold(max, u16::max);
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

    /// Copies the tokens from index `at` to `out`. The tokens must exist.
    pub(crate) fn copy(&self, mut at: u64, mut out: &mut [i32]) {
        let mut index = self.segments.partition_point(|(end, _)| *end <= at);
        while !out.is_empty() {
            let (end, segment) = &self.segments[index];
            let skip = (at - (end - segment.tokens())) as usize;
            let payload = &segment.payload()[skip * TOKEN_BYTES..];
            let take = out.len().min(payload.len() / TOKEN_BYTES);
            let (now, later) = out.split_at_mut(take);
            for (slot, bytes) in now.iter_mut().zip(payload.chunks_exact(TOKEN_BYTES)) {
                *slot = i32::from(token(bytes));
            }
            at += take as u64;
            out = later;
            index += 1;
        }
    }
}

fn token(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
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
        let mut seen = (0, 0);
        let store = TokenStore::open_files(&paths, &mut |done, total| seen = (done, total)).unwrap();
        assert_eq!(seen, (2000, 2000));
        assert_eq!((store.len(), store.max_token), (1000, *tokens.iter().max().unwrap()));
        for (at, len) in [(0, 1000), (399, 3), (400, 1), (401, 2), (999, 1), (398, 100)] {
            let mut out = vec![-1; len];
            store.copy(at as u64, &mut out);
            let expected: Vec<i32> = tokens[at..at + len].iter().map(|&t| i32::from(t)).collect();
            assert_eq!(out, expected, "{len} tokens from {at}");
        }
    }
}
