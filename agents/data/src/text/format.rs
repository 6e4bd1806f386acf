//! The formats of files of text, and how compressed files are read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes read at once from a compressed file.
const COMPRESSED_BLOCK_BYTES: usize = 256 << 10;
/// Bytes expanded at once.
const EXPANDED_BLOCK_BYTES: usize = 128 << 10;

/// Descriptions of signatures.
pub(crate) const GZIP_SIGNATURE: &str = "compressed by gzip";
pub(crate) const ZSTD_SIGNATURE: &str = "compressed by zstd";
pub(crate) const PARQUET_SIGNATURE: &str = "a Parquet file";

/// Where the documents of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextStructure {
    /// The file is one document.
    Document,
    /// Each line is a JSON object with a document.
    JsonLines,
    /// Each row of a Parquet file has a document.
    Parquet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Format of a file, which its name says: `*.jsonl`, `*.json` and `*.ndjson` are lines of JSON, `*.parquet` are rows,
/// all others plain text; all but Parquet may be compressed, with a further `.gz` or `.zst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextFormat {
    pub(crate) structure: TextStructure,
    pub(crate) compression: Compression,
}

impl TextFormat {
    /// Returns the format of files of this name.
    pub fn of(path: &Path) -> Self {
        let has_extension = |path: &Path, extensions: &[&str]| {
            path.extension()
                .is_some_and(|found| extensions.iter().any(|extension| found.eq_ignore_ascii_case(extension)))
        };
        let compression = match () {
            () if has_extension(path, &["gz"]) => Compression::Gzip,
            () if has_extension(path, &["zst", "zstd"]) => Compression::Zstd,
            () => Compression::None,
        };
        let expanded = if compression == Compression::None { path.to_owned() } else { path.with_extension("") };
        let structure = match () {
            () if has_extension(&expanded, &["jsonl", "json", "ndjson"]) => TextStructure::JsonLines,
            () if has_extension(path, &["parquet"]) => TextStructure::Parquet,
            () => TextStructure::Document,
        };
        Self { structure, compression }
    }

    /// Returns whether the size of a file is that of its text.
    pub(crate) fn has_size_of_text(self) -> bool {
        self.structure == TextStructure::Document && self.is_plain()
    }

    /// Returns whether the bytes of a file are UTF-8.
    pub(crate) fn is_plain(self) -> bool {
        self.structure != TextStructure::Parquet && self.compression == Compression::None
    }

    /// Returns the description of the signature with which files of this format begin, if they have one.
    pub(crate) fn signature(self) -> Option<&'static str> {
        match (self.compression, self.structure) {
            (Compression::Gzip, _) => Some(GZIP_SIGNATURE),
            (Compression::Zstd, _) => Some(ZSTD_SIGNATURE),
            (Compression::None, TextStructure::Parquet) => Some(PARQUET_SIGNATURE),
            (Compression::None, _) => None,
        }
    }
}

/// Computes the digest of what is read from a file.
pub(super) struct HashedReader {
    file: File,
    pub hasher: blake3::Hasher,
}

impl HashedReader {
    pub fn new(file: File) -> Self {
        Self { file, hasher: blake3::Hasher::new() }
    }
}

impl Read for HashedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

/// The text of a file, expanded if it is compressed.
pub(super) enum TextReader {
    Plain(Box<HashedReader>),
    Gzip(Box<MultiGzDecoder<HashedReader>>),
    Zstd(Box<ZstdReader>),
}

impl TextReader {
    pub fn new(file: File, compression: Compression) -> Self {
        let file = HashedReader::new(file);
        match compression {
            Compression::None => Self::Plain(Box::new(file)),
            Compression::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(file))),
            Compression::Zstd => Self::Zstd(Box::new(ZstdReader::new(file))),
        }
    }

    /// Returns the digest of the bytes read from the file.
    pub fn hasher(&self) -> &blake3::Hasher {
        match self {
            Self::Plain(file) => &file.hasher,
            Self::Gzip(reader) => &reader.get_ref().hasher,
            Self::Zstd(reader) => &reader.source.get_ref().hasher,
        }
    }
}

impl Read for TextReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
            Self::Zstd(reader) => reader.read(buffer),
        }
    }
}

/// Expands the frames of a file, one after the other.
pub(super) struct ZstdReader {
    source: BufReader<HashedReader>,
    frame: FrameDecoder,
    is_in_frame: bool,
}

impl ZstdReader {
    fn new(file: HashedReader) -> Self {
        let source = BufReader::with_capacity(COMPRESSED_BLOCK_BYTES, file);
        Self { source, frame: FrameDecoder::new(), is_in_frame: false }
    }

    /// Begins the next frame. Returns false at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.frame.reset(&mut self.source) {
                Ok(()) => {
                    self.is_in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        Ok(false)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.is_in_frame = false;
        match (self.frame.get_checksum_from_data(), self.frame.get_calculated_checksum()) {
            (Some(written), Some(found)) if written != found => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "a checksum does not match"))
            }
            _ => Ok(()),
        }
    }
}

impl Read for ZstdReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_in_frame && !self.begin_frame()? {
                return Ok(0);
            }
            let read = self.frame.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if self.frame.is_finished() {
                self.end_frame()?;
                continue;
            }
            let strategy = BlockDecodingStrategy::UptoBytes(EXPANDED_BLOCK_BYTES);
            self.frame
                .decode_blocks(&mut self.source, strategy)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

/// Returns whether an error says that a compressed file is damaged, and not that it can't be read.
pub(super) fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(path: &Path) -> io::Result<String> {
        let format = TextFormat::of(path);
        let mut text = String::new();
        TextReader::new(File::open(path)?, format.compression).read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn names_say_the_format() {
        use Compression::*;
        use TextStructure::*;
        for (name, structure, compression) in [
            ("a.txt", Document, None),
            ("a", Document, None),
            ("a.JSONL", JsonLines, None),
            ("c4-train.00000-of-01024.json.gz", JsonLines, Gzip),
            ("a.jsonl.zst", JsonLines, Zstd),
            ("a.txt.gz", Document, Gzip),
            ("part-0.parquet", Parquet, None),
            ("a.parquet.gz", Document, Gzip),
        ] {
            assert_eq!(TextFormat::of(name.as_ref()), TextFormat { structure, compression }, "{name}");
        }
    }

    #[test]
    fn compressed_files_of_several_members_are_one_text() {
        let dir = tempfile::tempdir().unwrap();
        let parts = ["Hello ".repeat(50_000), "world".to_owned()];
        let (mut gzip, mut zstd) = (Vec::new(), Vec::new());
        for part in &parts {
            let mut encoder = flate2::write::GzEncoder::new(&mut gzip, flate2::Compression::fast());
            encoder.write_all(part.as_bytes()).unwrap();
            encoder.finish().unwrap();
            zstd.extend(ruzstd::encoding::compress_to_vec(
                part.as_bytes(),
                ruzstd::encoding::CompressionLevel::Fastest,
            ));
            // A frame without content, which parallel compressors write.
            zstd.extend([0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        }
        for (name, compressed) in [("a.gz", gzip), ("a.zst", zstd)] {
            let path = dir.path().join(name);
            std::fs::write(&path, &compressed).unwrap();
            assert_eq!(read(&path).unwrap(), parts.concat());
            // Cut inside of the first member, and damaged there.
            std::fs::write(&path, &compressed[..40]).unwrap();
            assert!(is_damage(&read(&path).unwrap_err()), "{name}");
            let mut damaged = compressed.clone();
            damaged[..3].copy_from_slice(b"abc");
            std::fs::write(&path, &damaged).unwrap();
            assert!(is_damage(&read(&path).unwrap_err()), "{name}");
        }
    }
}
