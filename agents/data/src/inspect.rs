//! Checks the files of a source without reading them completely: whether they exist, whether their first bytes match
//! the expected format, and how many tokens they have if their sizes show it.
//!
//! Only the first bytes of each file are read, so a server can reject a job with missing files immediately, and a run
//! fails before it starts a process. Errors inside a file, such as an invalid byte, are found by
//! [`Dataset::open`](crate::Dataset::open).

use std::io::Read;
use std::path::{Path, PathBuf};

use millrace_params::TokenizerName;

use crate::arrays::ArrayStore;
use crate::encoder::data_and_vocabulary;
use crate::error::HDF5_FILE;
use crate::files::expand;
use crate::hdf5::{DataFile, FileShape};
use crate::npy::{NPY_SIGNATURE, is_npy, npy_header};
use crate::seq2seq::line_files;
use crate::split::{order_of, windows_of_split};
use crate::text::{GZIP_SIGNATURE, PARQUET_SIGNATURE, TextFormat, ZSTD_SIGNATURE};
use crate::tfrecord::{record_files, records_and_vocabulary};
use crate::token_store::TokenElement;
use crate::{DataError, Dataset, LineFiles, SourceKind, SourceSpec};

/// Bytes at the beginning of a file that are inspected.
const MAX_HEADER_BYTES: u64 = 4096;
/// Maximum number of files that are inspected; files of one source are usually of one kind.
const MAX_INSPECTED_FILES: usize = 1000;

/// Signatures and names of other formats.
const FILE_SIGNATURES: &[(&[u8], &str)] = &[
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", NPY_SIGNATURE),
    (b"PAR1", PARQUET_SIGNATURE),
    (b"ARROW1", "an Arrow file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", GZIP_SIGNATURE),
    (b"\x28\xb5\x2f\xfd", ZSTD_SIGNATURE),
    (b"BZh", "compressed by bzip2"),
    (b"\xfd7zXZ\0", "compressed by xz"),
    (b"%PDF-", "a PDF document"),
];

/// Number and size of the files of a source; zero for a synthetic source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSummary {
    /// Number of files that are not empty.
    pub files: u64,
    /// Total bytes of all files.
    pub bytes: u64,
    /// Tokens of the files whose sizes show it.
    pub tokens: u64,
    /// Whether there are files whose sizes do not show their tokens: text that has to be tokenized or expanded first.
    pub has_unknown_tokens: bool,
    /// Samples in a pass, of sources that are divided into samples.
    pub samples: Option<u64>,
}

impl DataSummary {
    /// Returns the summary of a file of text, or of tokens without a header.
    pub fn of_file(kind: &SourceKind, path: &Path, bytes: u64) -> Self {
        let tokens = match kind {
            SourceKind::Text(text) if text.tokenizer == TokenizerName::Bytes => {
                TextFormat::of(path).has_size_of_text().then_some(bytes)
            }
            SourceKind::Tokens { token_type, .. } => Some(bytes / TokenElement::from(*token_type).bytes() as u64),
            _ => None,
        };
        Self {
            files: u64::from(bytes > 0),
            bytes,
            tokens: tokens.unwrap_or(0),
            has_unknown_tokens: tokens.is_none(),
            samples: None,
        }
    }

    /// Adds the summary of another part of the same source.
    #[must_use]
    pub const fn add(self, other: Self) -> Self {
        Self {
            files: self.files.saturating_add(other.files),
            bytes: self.bytes.saturating_add(other.bytes),
            tokens: self.tokens.saturating_add(other.tokens),
            has_unknown_tokens: self.has_unknown_tokens || other.has_unknown_tokens,
            // Sources that are divided into samples are inspected as a whole.
            samples: match self.samples {
                None => other.samples,
                samples => samples,
            },
        }
    }

    /// Returns the number of samples of an epoch of `spec` if sizes show it: not for text, which has to be tokenized
    /// first, nor for a synthetic source, which has no end.
    ///
    /// # Errors
    /// There are too few tokens for one sample.
    pub fn epoch_samples(self, spec: &SourceSpec) -> Result<Option<u64>, DataError> {
        let tokens = match &spec.kind {
            SourceKind::Text(_) | SourceKind::Tokens { .. } if self.has_unknown_tokens => return Ok(None),
            // There is a separator between two documents.
            SourceKind::Text(_) => self.tokens.saturating_add(self.files.max(1) - 1),
            SourceKind::Tokens { .. } => self.tokens,
            SourceKind::Hdf5 { .. }
            | SourceKind::EncoderHdf5 { .. }
            | SourceKind::Csv { .. }
            | SourceKind::TfRecords { .. }
            | SourceKind::Lines(_)
            | SourceKind::Arrays { .. }
            | SourceKind::Python { .. }
            | SourceKind::Images { .. } => return Ok(self.samples),
            SourceKind::Synthetic { .. } => return Ok(None),
        };
        let windows = match (&spec.encoder, &spec.seq2seq) {
            (Some(samples), _) => Some(spec.windows_of_encoder(samples)),
            (_, Some(samples)) => Some(spec.windows_of_seq2seq(samples)?),
            (None, None) => spec.sinks.map(|sinks| spec.without_sinks(sinks)),
        };
        let (_, windows) = windows_of_split(windows.as_ref().unwrap_or(spec), tokens)?;
        order_of(spec, 0..windows).map(|order| Some(order.samples_per_pass()))
    }
}

/// Inspects the files of `spec`, but not its tokenizer.
///
/// # Errors
/// Files are missing, can't be read, are all empty, or are of another format.
pub fn inspect(spec: &SourceSpec) -> Result<DataSummary, DataError> {
    spec.check()?;
    let (paths, extension) = match &spec.kind {
        SourceKind::Text(text) => (text.divided().0, "txt"),
        SourceKind::Tokens { paths, .. } => (paths.as_slice(), "bin"),
        SourceKind::Hdf5 { paths, .. } | SourceKind::EncoderHdf5 { paths } => {
            return inspect_stored(spec, &expand(paths, "h5")?);
        }
        SourceKind::Csv { paths, rows, .. } => {
            return inspect_stored(spec, &expand(data_and_vocabulary(paths, *rows).0, rows.extension())?);
        }
        SourceKind::TfRecords { paths, rows, .. } => {
            return inspect_stored(spec, &record_files(records_and_vocabulary(paths, *rows).0, *rows)?);
        }
        SourceKind::Lines(files) => return inspect_lines(spec, files),
        SourceKind::Images { .. } => return inspect_images(spec),
        SourceKind::Arrays { paths } => return inspect_arrays(spec, paths),
        SourceKind::Python { .. } => {
            let dataset = Dataset::open(spec, |_, _| {})?;
            let samples = (!dataset.is_endless()).then_some(dataset.windows());
            return Ok(DataSummary { samples, ..DataSummary::default() });
        }
        SourceKind::Synthetic { .. } => return Ok(DataSummary::default()),
    };
    inspect_files(&spec.kind, &expand(paths, extension)?)
}

/// Returns the length of the samples in the first HDF5 file of `spec`, with the tokens that are inserted; `None` if it
/// contains a corpus, can't be read, or the source has another format.
pub fn stored_sample_length(spec: &SourceSpec) -> Option<usize> {
    let (SourceKind::Hdf5 { paths, .. } | SourceKind::EncoderHdf5 { paths }) = &spec.kind else { return None };
    match DataFile::open(expand(paths, "h5").ok()?.first()?).ok()?.shape {
        FileShape::Samples { length, .. } | FileShape::Packed { length, .. } | FileShape::Unlabeled { length, .. } => {
            let length = usize::try_from(length).ok()?;
            Some(spec.sinks.map_or(length, |sinks| sinks.length_with(length)))
        }
        FileShape::Corpus { .. } => None,
    }
}

/// Opens HDF5 files, which reads their headers and one sample, or CSV and TFRecord files, which are read as a whole.
fn inspect_stored(spec: &SourceSpec, files: &[PathBuf]) -> Result<DataSummary, DataError> {
    let bytes = files.iter().map(|path| size_of(path)).sum::<Result<u64, _>>()?;
    let samples = Dataset::open(spec, |_, _| {})?.windows();
    Ok(DataSummary { files: files.len() as u64, bytes, samples: Some(samples), ..DataSummary::default() })
}

/// Opens files of lines, which are read as a whole.
fn inspect_lines(spec: &SourceSpec, files: &LineFiles) -> Result<DataSummary, DataError> {
    let files = line_files(files)?.concat();
    let bytes = files.iter().map(|path| size_of(path)).sum::<Result<u64, _>>()?;
    let samples = Dataset::open(spec, |_, _| {})?.windows();
    Ok(DataSummary { files: files.len() as u64, bytes, samples: Some(samples), ..DataSummary::default() })
}

/// Opens images, which reads the files of an idx source and decodes one image of a directory.
fn inspect_images(spec: &SourceSpec) -> Result<DataSummary, DataError> {
    let samples = Dataset::open(spec, |_, _| {})?.windows();
    Ok(DataSummary { files: samples, samples: Some(samples), ..DataSummary::default() })
}

/// Opens arrays, which reads their headers and one sample.
fn inspect_arrays(spec: &SourceSpec, paths: &[String]) -> Result<DataSummary, DataError> {
    let [files, bytes] = ArrayStore::open(paths)?.size();
    let samples = Dataset::open(spec, |_, _| {})?.windows();
    Ok(DataSummary { files, bytes, samples: Some(samples), ..DataSummary::default() })
}

/// Returns the format of a file that is none of ours, if its first bytes show it.
pub(crate) fn detect_format(path: &Path) -> Option<&'static str> {
    let mut beginning = Vec::new();
    millrace_roots::open(path).ok()?.take(MAX_HEADER_BYTES).read_to_end(&mut beginning).ok()?;
    format_of(&beginning).or_else(|| beginning.is_empty().then_some("empty"))
}

fn format_of(beginning: &[u8]) -> Option<&'static str> {
    FILE_SIGNATURES.iter().find(|(signature, _)| beginning.starts_with(signature)).map(|(_, name)| *name)
}

/// Inspects these files of a source of the given kind.
pub(crate) fn inspect_files(kind: &SourceKind, paths: &[PathBuf]) -> Result<DataSummary, DataError> {
    let mut found = DataSummary::default();
    for (index, path) in paths.iter().enumerate() {
        let size = if index < MAX_INSPECTED_FILES { check_file_header(kind, path)? } else { size_of(path)? };
        let mut summary = DataSummary::of_file(kind, path, size);
        if matches!(kind, SourceKind::Tokens { .. }) && is_npy(path) {
            let (header, element) = npy_header(path)?;
            summary.tokens = (size - header as u64) / element.bytes() as u64;
        }
        found = found.add(summary);
    }
    match paths.first() {
        Some(first) if found.bytes == 0 => Err(DataError::Empty { files: paths.len(), first: first.clone() }),
        _ => Ok(found),
    }
}

fn size_of(path: &Path) -> Result<u64, DataError> {
    let metadata = millrace_roots::metadata(path);
    metadata.map(|metadata| metadata.len()).map_err(|source| DataError::Read { path: path.into(), source })
}

/// Returns the file's size, if its first bytes match the expected kind.
fn check_file_header(kind: &SourceKind, path: &Path) -> Result<u64, DataError> {
    let read_error = |source| DataError::Read { path: path.into(), source };
    let file = millrace_roots::open(path).map_err(read_error)?;
    let bytes = file.metadata().map_err(read_error)?.len();
    let mut beginning = Vec::new();
    file.take(MAX_HEADER_BYTES).read_to_end(&mut beginning).map_err(read_error)?;
    check_signature(kind, path, &beginning)?;
    match kind {
        SourceKind::Tokens { token_type, .. } if !is_npy(path) => {
            let token_bytes = TokenElement::from(*token_type).bytes();
            match bytes.is_multiple_of(token_bytes as u64) {
                true => Ok(bytes),
                false => Err(DataError::PartialToken { path: path.into(), bytes, token_bytes }),
            }
        }
        SourceKind::Text(_) if TextFormat::of(path).is_plain() => match std::str::from_utf8(&beginning) {
            // A character may be truncated at the end of the inspected bytes, but not at the end of the file.
            Err(error) if error.error_len().is_some() || bytes <= MAX_HEADER_BYTES => {
                Err(DataError::InvalidUtf8 { path: path.into(), offset: error.valid_up_to() as u64 })
            }
            _ => Ok(bytes),
        },
        _ => Ok(bytes),
    }
}

/// Checks that the first bytes of a file have the signature of its name, or none.
fn check_signature(kind: &SourceKind, path: &Path, beginning: &[u8]) -> Result<(), DataError> {
    let expected = match kind {
        SourceKind::Text(_) => TextFormat::of(path).signature(),
        SourceKind::Tokens { .. } if is_npy(path) => Some(NPY_SIGNATURE),
        _ => None,
    };
    match (format_of(beginning), expected) {
        (found, expected) if found == expected || beginning.is_empty() => Ok(()),
        (Some(found), None) => {
            Err(DataError::WrongFormat { path: path.into(), found, expected: expected_format(kind) })
        }
        (found, Some(expected)) => {
            Err(DataError::WrongFormat { path: path.into(), found: found.unwrap_or("another file"), expected })
        }
        (None, None) => Ok(()),
    }
}

const fn expected_format(kind: &SourceKind) -> &'static str {
    match kind {
        SourceKind::Tokens { .. } => "a file of little-endian tokens",
        SourceKind::Hdf5 { .. } | SourceKind::EncoderHdf5 { .. } => HDF5_FILE,
        SourceKind::Csv { .. } => "a CSV file",
        SourceKind::TfRecords { .. } => "a TFRecord file",
        SourceKind::Images { .. } => "images",
        SourceKind::Arrays { .. } => "a NumPy array",
        SourceKind::Python { .. } => "a package of a Python dataset",
        SourceKind::Text(_) | SourceKind::Lines(_) | SourceKind::Synthetic { .. } => "UTF-8 text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dataset, TextFiles, TokenType};

    fn spec(kind: SourceKind) -> SourceSpec {
        SourceSpec { validation_fraction: 0.25, ..SourceSpec::new(kind, 8) }
    }

    fn write(dir: &Path, name: &str, content: &[u8]) -> String {
        let path = dir.join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    #[test]
    fn sample_count_from_sizes_equals_count_from_reading() {
        let dir = tempfile::tempdir().unwrap();
        let text = |name: &str, len: usize| write(dir.path(), name, "abcdefg\n".repeat(len).as_bytes());
        let paths = vec![text("a.txt", 9), text("empty.txt", 0), text("b.txt", 4)];
        let cache_dir = Some(dir.path().join("cache"));
        for (tokenizer, tokens) in [(TokenizerName::Bytes, Some(104)), (TokenizerName::Gpt2, None)] {
            let kind = SourceKind::Text(TextFiles::new(paths.clone(), tokenizer));
            let spec = SourceSpec { cache_dir: cache_dir.clone(), ..spec(kind) };
            let found = inspect(&spec).unwrap();
            let (known_tokens, has_unknown_tokens) = (tokens.unwrap_or(0), tokens.is_none());
            assert_eq!(
                found,
                DataSummary { files: 2, bytes: 104, tokens: known_tokens, has_unknown_tokens, samples: None }
            );
            let read = Dataset::open(&spec, |_, _| {}).unwrap().windows();
            assert_eq!(found.epoch_samples(&spec).unwrap(), (tokenizer == TokenizerName::Bytes).then_some(read));
        }
        let tokens = spec(SourceKind::Tokens {
            paths: vec![write(dir.path(), "t.bin", &[1; 200])],
            token_type: TokenType::Uint16,
        });
        let read = Dataset::open(&tokens, |_, _| {}).unwrap().windows();
        assert_eq!(inspect(&tokens).unwrap().epoch_samples(&tokens).unwrap(), Some(read));
        let synthetic = spec(SourceKind::Synthetic { vocab_size: 4, seed: 1 });
        assert_eq!(inspect(&synthetic).and_then(|found| found.epoch_samples(&synthetic)).unwrap(), None);
    }

    #[test]
    fn unsupported_formats_are_rejected_by_their_signature() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = "a".repeat(MAX_HEADER_BYTES as usize - 1).into_bytes();
        text.extend("é and more".as_bytes());
        let path = write(dir.path(), "whole.txt", &text);
        for (name, content, message) in [
            ("data.h5", b"\x89HDF\r\n\x1a\n rest of it".as_slice(), "an HDF5 file"),
            ("data.txt", b"\x1f\x8b\x08 rest of it, more than a sample", "compressed by gzip"),
            ("latin1", b"caf\xe9 and more than a sample", "UTF-8 at byte 3"),
            ("short", b"abc", "fewer than"),
            ("empty", b"", "0 bytes"),
        ] {
            let paths = vec![write(dir.path(), name, content)];
            let source = spec(SourceKind::Text(TextFiles::new(paths, TokenizerName::Bytes)));
            let error = inspect(&source).and_then(|found| found.epoch_samples(&source)).unwrap_err();
            assert!(error.to_string().contains(message), "{name}: {error}");
            assert_eq!(Dataset::open(&source, |_, _| {}).err().map(|error| error.to_string()), Some(error.to_string()));
        }
        assert!(inspect(&spec(SourceKind::Text(TextFiles::new(vec![path], TokenizerName::Bytes)))).is_ok());
        let odd = spec(SourceKind::Tokens {
            paths: vec![write(dir.path(), "odd.bin", &[0; 33])],
            token_type: TokenType::Uint16,
        });
        assert!(matches!(inspect(&odd), Err(DataError::PartialToken { .. })));
        let missing = spec(SourceKind::Text(TextFiles::new(vec!["no/such.txt".into()], TokenizerName::Gpt2)));
        assert!(matches!(inspect(&missing), Err(DataError::NotFound { .. })));
    }
}
