//! Errors of data sources: one sentence (`Display`) and the remedy ([`DataError::hint`]).

use std::io;
use std::path::{Path, PathBuf};

use millrace_text::{ParquetProblem, TokenizerProblem};

use crate::SplitPart;
use crate::arrays::ArrayProblem;
use crate::encoder::{CsvProblem, VocabularyProblem};
use crate::hdf5::{Hdf5Problem, SampleProblem};
use crate::images::ImageProblem;
use crate::npy::NpyProblem;
use crate::python_package::PythonProblem;
use crate::seq2seq::LinesProblem;
use crate::text::JsonLineProblem;
use crate::tfrecord::TfRecordProblem;

/// The format that [`DataError::WrongFormat`] names for a source of HDF5 files.
pub(crate) const HDF5_FILE: &str = "an HDF5 file";

/// Reason why a data source can't be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The list of paths is empty.
    #[error("the data source names no files")]
    NoPaths,
    /// A path without wildcards does not exist.
    #[error("data file {} does not exist{}", path.display(), search_directory_note(path, cwd))]
    NotFound {
        /// As the user wrote it.
        path: PathBuf,
        /// The working directory that relative paths refer to.
        cwd: PathBuf,
    },
    /// A glob has no matches.
    #[error("the pattern {pattern:?} matches no file{}", search_directory_note(Path::new(pattern), cwd))]
    NoMatch {
        /// As the user wrote it.
        pattern: String,
        /// The working directory that relative patterns refer to.
        cwd: PathBuf,
    },
    /// A glob is invalid.
    #[error("the pattern {pattern:?} is not a valid glob: {source}")]
    BadPattern {
        /// As the user wrote it.
        pattern: String,
        /// The error of the parser.
        source: glob::PatternError,
    },
    /// A file is neither text nor tokens.
    #[error("data file {} is {found}; expected {expected}", path.display())]
    WrongFormat {
        path: PathBuf,
        /// What the file is, as in "it is an HDF5 file".
        found: &'static str,
        /// The format that the data processor reads.
        expected: &'static str,
    },
    /// A directory has no files of the expected kind.
    #[error("the directory {} holds no .{extension} file", path.display())]
    EmptyDirectory { path: PathBuf, extension: &'static str },
    /// A path is a device, pipe or socket.
    #[error("{} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// A file can't be read.
    #[error("cannot read data file {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file changed while it was read.
    #[error("data file {} changed while it was being read", path.display())]
    Changed { path: PathBuf },
    /// Text is not valid UTF-8.
    #[error("data file {} is not valid UTF-8 at byte {offset}", path.display())]
    InvalidUtf8 {
        path: PathBuf,
        /// Offset of the first invalid byte.
        offset: u64,
    },
    /// A line of a JSON Lines file has no text.
    #[error("line {line} of {} {problem}", path.display())]
    JsonLine {
        path: PathBuf,
        /// From 1 on.
        line: u64,
        /// The end of the sentence.
        problem: JsonLineProblem,
    },
    /// A compressed file can't be expanded.
    #[error("data file {} can't be expanded: it is damaged ({source})", path.display())]
    Compressed { path: PathBuf, source: io::Error },
    /// A Parquet file has no texts.
    #[error("data file {} {problem}", path.display())]
    Parquet {
        path: PathBuf,
        /// The end of the sentence.
        problem: ParquetProblem,
    },
    /// A tokenizer can't be used.
    #[error("the tokenizer {} {problem}", path.display())]
    Tokenizer {
        path: PathBuf,
        /// The end of the sentence.
        problem: TokenizerProblem,
    },
    #[error("the data source is empty: {files} file(s) with 0 bytes, the first is {}", first.display())]
    Empty { files: usize, first: PathBuf },
    /// The length of a token file is not a multiple of the token size.
    #[error("token file {} has {bytes} bytes, but a token takes {token_bytes}", path.display())]
    PartialToken { path: PathBuf, bytes: u64, token_bytes: usize },
    /// A NumPy file can't be used.
    #[error("data file {} {problem}", path.display())]
    Npy {
        path: PathBuf,
        /// The end of the sentence.
        problem: NpyProblem,
    },
    /// The arrays of a directory can't be used together.
    #[error("the arrays in {} {problem}", path.display())]
    Arrays {
        path: PathBuf,
        /// The end of the sentence.
        problem: ArrayProblem,
    },
    /// A Python dataset can't be used.
    #[error("the dataset{} {problem}", package_name(path, problem))]
    Python {
        path: PathBuf,
        /// The end of the sentence.
        problem: PythonProblem,
    },
    /// HDF5 files of tokens are read as samples of an encoder.
    #[error("the HDF5 files contain a corpus, not samples of an encoder")]
    NotForEncoders,
    /// An HDF5 file can't be used.
    #[error("data file {} {problem}", path.display())]
    Hdf5 {
        path: PathBuf,
        /// The end of the sentence.
        problem: Hdf5Problem,
    },
    /// A CSV file can't be used.
    #[error("data file {} {problem}", path.display())]
    Csv {
        path: PathBuf,
        /// The end of the sentence.
        problem: CsvProblem,
    },
    /// A file of lines of words can't be used.
    #[error("data file {} {problem}", path.display())]
    Lines {
        path: PathBuf,
        /// The end of the sentence.
        problem: LinesProblem,
    },
    /// A dataset of `tensorflow_datasets` is not in the directory, or not as TFRecord files.
    #[error("tensorflow_datasets has prepared no TFRecord file {pattern}")]
    NotPrepared { pattern: String },
    /// A TFRecord file can't be used.
    #[error("data file {} {problem}", path.display())]
    TfRecord {
        path: PathBuf,
        /// The end of the sentence.
        problem: TfRecordProblem,
    },
    /// Two sequences have no room for a text with replaced spans.
    #[error("samples of {source_length} and {target_length} tokens have no room for a text with replaced spans")]
    ShortSequences { source_length: usize, target_length: usize },
    /// A file of words can't be used.
    #[error("vocabulary {} {problem}", path.display())]
    Vocabulary {
        path: PathBuf,
        /// The end of the sentence.
        problem: VocabularyProblem,
    },
    /// A file or directory of images can't be used.
    #[error("{} {problem}", path.display())]
    Images {
        path: PathBuf,
        /// The end of the sentence.
        problem: ImageProblem,
    },
    /// Tokens were requested from a source of images.
    #[error("the samples of this source are images, not tokens")]
    NoTokens,
    /// A sample can't be used. Unlike the other errors it may occur after the source was opened.
    #[error("{unit} {number} of {}: {problem}", path.display())]
    BadSample {
        path: PathBuf,
        /// What `number` counts in this file.
        unit: &'static str,
        number: u64,
        problem: SampleProblem,
    },
    /// The part of the data that is read has no sample.
    #[error("the {split} split has no sample{}", if *has_subset { " in data_subset" } else { "" })]
    NoSamples { split: SplitPart, has_subset: bool },
    /// A split has no complete sample.
    #[error("the {split} split has {tokens} tokens, fewer than the {needed} that one sample needs")]
    TooShort {
        split: SplitPart,
        tokens: u64,
        /// Tokens needed: T + 1.
        needed: u64,
    },
    /// The samples of the source are not those of a decoder.
    #[error("the samples of this source are not for decoders")]
    NotForDecoders,
    /// The model's vocabulary is too small for the data.
    #[error("the vocabulary of {vocab_size} is too small for the data, whose largest token is {max_token}")]
    VocabularyTooSmall {
        vocab_size: u64,
        /// The largest token of the source.
        max_token: u32,
    },
    /// The mask of the params is not that of the data.
    #[error("model.mask_token_id is {token}, but the data are masked by token {expected}")]
    WrongMaskToken { token: u32, expected: u32 },
    /// The sequence length is zero or exceeds what the model can index.
    #[error("a sequence length of {seq_len} is out of range")]
    BadSequenceLength { seq_len: usize },
    /// The validation fraction is not between 0 and 1.
    #[error("the validation fraction {fraction} is not between 0 and 1")]
    BadFraction { fraction: f64 },
    /// A synthetic vocabulary has fewer than two words or exceeds the token type.
    #[error("a synthetic source cannot have a vocabulary of {vocab_size}")]
    BadVocabulary { vocab_size: u32 },
    /// The cache directory of the user can't be used.
    #[error("cannot use the token cache at {}: {source}", path.display())]
    Cache { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// Samples can't be encoded as an HDF5 file.
    #[error("cannot write {}: {source}", path.display())]
    Encode { path: PathBuf, source: Box<hdf5_writer::Error> },
    /// There are more samples than a file can hold.
    #[error("{steps} steps of {batch} samples do not fit in a file")]
    FileTooLarge { steps: u64, batch: u64 },
}

/// Formats where a relative path was searched; empty for an absolute path.
fn search_directory_note(path: &Path, cwd: &Path) -> String {
    if path.is_relative() { format!(" (relative to {})", cwd.display()) } else { String::new() }
}

/// Returns the directory of a package, if the problem is in its files.
fn package_name(path: &Path, problem: &PythonProblem) -> String {
    match problem {
        PythonProblem::Open(_) | PythonProblem::Sample { .. } => String::new(),
        _ => format!(" {}", path.display()),
    }
}

fn missing_hint(is_relative: bool) -> String {
    let hint = if is_relative {
        "check the spelling; relative paths are resolved from the params file's directory, then from the working \
         directory"
    } else {
        "check the spelling, and that the file is on the machine or in the volume that the job reads"
    };
    hint.to_owned()
}

impl DataError {
    /// Returns whether the same data may be readable later.
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Changed { .. } | Self::Cache { .. } | Self::Write { .. })
    }

    /// Returns what the user can do about the error, as one sentence.
    pub fn hint(&self) -> String {
        use DataError::*;
        match self {
            NoPaths => "name a text file, a glob such as data/*.txt, or a directory".into(),
            NotFound { path, .. } => missing_hint(path.is_relative()),
            NoMatch { pattern, .. } => missing_hint(Path::new(pattern).is_relative()),
            WrongFormat { expected: HDF5_FILE, .. } => {
                "name HDF5 files in data_dir, or the data_processor of this format".into()
            }
            WrongFormat { .. } => {
                "convert it, or give its name the extension of its format: GptTextDataProcessor reads UTF-8 text, \
                 .jsonl, both also as .gz and .zst, and .parquet; GptTokenDataProcessor .npy and numbers without a \
                 header"
                    .into()
            }
            BadPattern { .. } => "use *, ?, [abc] and ** as a whole path component".into(),
            EmptyDirectory { extension, .. } => {
                format!("name the files themselves, or a glob, if they do not end in .{extension}")
            }
            NotAFile { .. } => "copy the data into a file; it is read more than once".into(),
            Read { .. } => "check that the file is readable by this user".into(),
            Changed { .. } => "start again once nothing writes to it any more".into(),
            InvalidUtf8 { .. } => "convert the file to UTF-8, for example with iconv".into(),
            JsonLine { problem: JsonLineProblem::TooLong, .. } => "divide the document".into(),
            JsonLine { problem: JsonLineProblem::Invalid { key, .. }, .. } => {
                format!("each line is an object such as {{\"{key}\": \"...\"}}; text_key names another key")
            }
            Empty { .. } => "point the data source at files with content".into(),
            Compressed { .. } => "copy the file again; gzip -t or zstd -t checks it".into(),
            Parquet { problem, .. } => problem.hint().into(),
            Tokenizer { problem, .. } => problem.hint().into(),
            PartialToken { .. } => "a token file is a sequence of little-endian numbers without a header, of 16 bits, \
                                    or of 32 bits with token_type: uint32"
                .into(),
            Npy { problem, .. } => problem.hint().into(),
            Arrays { problem, .. } => problem.hint().into(),
            Python { problem, .. } => problem.hint().into(),
            Hdf5 { problem, .. } => problem.hint(),
            Csv { .. } => "prepare the data again, or use the data_processor of its columns".into(),
            Vocabulary { problem, .. } => problem.hint(),
            Lines { problem, .. } => problem.hint(),
            TfRecord { problem, .. } => problem.hint(),
            NotPrepared { pattern } => {
                let [dataset, processor] = match pattern.contains("/mnli/") {
                    true => ["glue/mnli", "MNLIDataProcessor"],
                    false => ["glue/sst2", "SST2DataProcessor"],
                };
                format!(
                    "prepare {dataset} in data_dir by tensorflow_datasets, with file_format=\"tfrecord\", or read the \
                     .tsv files of GLUE by data_processor: {processor}"
                )
            }
            ShortSequences { .. } => {
                "raise src_max_sequence_length and tgt_max_sequence_length, for example to 512 and 114".into()
            }
            BadSample { problem, .. } => problem.hint(),
            Images { problem, .. } => problem.hint(),
            NoTokens => "use a data_processor of tokens".into(),
            NoSamples { .. } => "give more data, or read a larger part of it".into(),
            TooShort { split: SplitPart::Train, .. } => {
                "give more data, a smaller max_sequence_length, or a smaller validation fraction".into()
            }
            TooShort { split: SplitPart::Validation, .. } => {
                "give more data, a smaller max_sequence_length, or a larger validation fraction".into()
            }
            NotForEncoders => "name files with samples of three rows: input_ids, attention mask and labels".into(),
            NotForDecoders => "set model.name to a family that reads them (bert, t5), or use other data".into(),
            VocabularyTooSmall { max_token, .. } => {
                format!("set vocab_size to at least {}, or use another tokenizer", u64::from(*max_token) + 1)
            }
            WrongMaskToken { expected, .. } => format!("set model.mask_token_id to {expected}"),
            BadSequenceLength { .. } => "set max_sequence_length to 1 or more".into(),
            BadFraction { .. } => "0.1 keeps the last tenth of the text for validation".into(),
            BadVocabulary { .. } => "use a vocab_size from 2 to 2147483647".into(),
            Cache { .. } => "name a writable directory with free space, or none for the default".into(),
            Write { .. } => "check that the directory exists, is writable and has free space".into(),
            Encode { .. } => "write fewer samples to each file".into(),
            FileTooLarge { .. } => "choose fewer steps".into(),
        }
    }

    /// Returns true if the input caused the error, false if the machine did (reading, writing, a full disk).
    pub fn is_bad_input(&self) -> bool {
        !matches!(
            self,
            DataError::Read { .. } | DataError::Changed { .. } | DataError::Cache { .. } | DataError::Write { .. }
        )
    }
}
