//! What can be wrong with data: one sentence (`Display`) and what to do about it ([`DataError::hint`]).

use std::io;
use std::path::{Path, PathBuf};

use crate::SplitPart;

/// Why a data source cannot be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The list of paths is empty.
    #[error("the data source names no files")]
    NoPaths,
    /// A path without wildcards that does not exist.
    #[error("data file {} does not exist{}", path.display(), search_directory_note(path, cwd))]
    NotFound {
        /// As the user wrote it.
        path: PathBuf,
        /// The working directory relative paths start at.
        cwd: PathBuf,
    },
    /// A glob without matches.
    #[error("the pattern {pattern:?} matches no file{}", search_directory_note(Path::new(pattern), cwd))]
    NoMatch {
        /// As the user wrote it.
        pattern: String,
        /// The working directory relative patterns start at.
        cwd: PathBuf,
    },
    /// A glob that is not one.
    #[error("the pattern {pattern:?} is not a valid glob: {reason}")]
    BadPattern {
        /// As the user wrote it.
        pattern: String,
        /// What the matcher said.
        reason: String,
    },
    /// A file that is neither text nor tokens.
    #[error("data file {} is {found}, and {wanted} is expected", path.display())]
    WrongFormat {
        /// The file.
        path: PathBuf,
        /// What it is, as in "it is an HDF5 file".
        found: &'static str,
        /// What the data processor reads.
        wanted: &'static str,
    },
    /// A directory without files of the expected kind.
    #[error("the directory {} holds no .{extension} file", path.display())]
    EmptyDirectory {
        /// The directory.
        path: PathBuf,
        /// The extension looked for.
        extension: &'static str,
    },
    /// A device, pipe or socket.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refused to read a file.
    #[error("cannot read data file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file changed between two readings of it.
    #[error("data file {} changed while it was being read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Text that is not UTF-8.
    #[error("data file {} is not valid UTF-8 at byte {offset}", path.display())]
    InvalidUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that cannot be decoded.
        offset: u64,
    },
    /// All files together hold nothing.
    #[error("the data source is empty: {files} file(s) with 0 bytes, the first is {}", first.display())]
    Empty {
        /// How many files there are.
        files: usize,
        /// The first of them.
        first: PathBuf,
    },
    /// A token file that does not consist of whole tokens.
    #[error("token file {} has an odd length of {bytes} bytes, but a token takes 2", path.display())]
    OddLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// A split without one whole sample.
    #[error("the {split} split has {tokens} tokens, fewer than the {needed} that one sample needs")]
    TooShort {
        /// Which split.
        split: SplitPart,
        /// Its tokens.
        tokens: u64,
        /// T + 1.
        needed: u64,
    },
    /// The model cannot represent the data.
    #[error("the vocabulary of {vocab_size} is too small for the data, whose largest token is {max_token}")]
    VocabularyTooSmall {
        /// The model's vocabulary size.
        vocab_size: u64,
        /// The largest token of the source.
        max_token: u32,
    },
    /// A sequence length of zero or beyond what the model can index.
    #[error("a sequence length of {seq_len} is out of range")]
    BadSequenceLength {
        /// The value.
        seq_len: usize,
    },
    /// A validation fraction outside of 0 to 1.
    #[error("the validation fraction {fraction} is not between 0 and 1")]
    BadFraction {
        /// The value.
        fraction: f64,
    },
    /// A synthetic vocabulary without choice or beyond the type of tokens.
    #[error("a synthetic source cannot have a vocabulary of {vocab_size}")]
    BadVocabulary {
        /// The value.
        vocab_size: u32,
    },
    /// The cache directory that the user named cannot be used.
    #[error("cannot use the token cache at {}: {source}", path.display())]
    Cache {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Samples cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// More samples than a file can hold.
    #[error("{steps} steps of {batch} samples do not fit in a file")]
    FileTooLarge {
        /// Steps asked for.
        steps: u64,
        /// Samples of a step.
        batch: u64,
    },
}

/// Where a relative path starts; nothing for an absolute one.
fn search_directory_note(path: &Path, cwd: &Path) -> String {
    if path.is_relative() { format!(" (looked from {})", cwd.display()) } else { String::new() }
}

fn missing_hint(is_relative: bool) -> String {
    let hint = if is_relative {
        "check the spelling; relative paths start beside the params file or, where nothing is found there, at the working \
         directory"
    } else {
        "check the spelling, and that the file is on the machine, or in the volume, that the job reads"
    };
    hint.to_owned()
}

impl DataError {
    /// What the user can do about it, as one sentence.
    pub fn hint(&self) -> String {
        use DataError::*;
        match self {
            NoPaths => "name a text file, a glob such as data/*.txt, or a directory".into(),
            NotFound { path, .. } => missing_hint(path.is_relative()),
            NoMatch { pattern, .. } => missing_hint(Path::new(pattern).is_relative()),
            WrongFormat { .. } => {
                "convert it: to UTF-8 text for GptTextDataProcessor, or to little-endian 16-bit tokens \
                                   without a header for GptTokenDataProcessor"
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
            Empty { .. } => "point the data source at files with content".into(),
            OddLength { .. } => "a token file is a plain row of little-endian 16-bit numbers; write it again".into(),
            TooShort { split: SplitPart::Train, .. } => {
                "give more data, a smaller max_sequence_length, or a smaller validation fraction".into()
            }
            TooShort { split: SplitPart::Validation, .. } => {
                "give more data, a smaller max_sequence_length, or a larger validation fraction".into()
            }
            VocabularyTooSmall { max_token, .. } => {
                format!("set vocab_size to at least {}, or use another tokenizer", u64::from(*max_token) + 1)
            }
            BadSequenceLength { .. } => "set max_sequence_length to 1 or more".into(),
            BadFraction { .. } => "0.1 keeps the last tenth of the text for validation".into(),
            BadVocabulary { .. } => "use a vocab_size from 2 to 2147483647".into(),
            Cache { .. } => "name a writable directory with free space, or none for the default".into(),
            Write { .. } => "check that the directory exists, is writable and has free space".into(),
            FileTooLarge { .. } => "ask for fewer steps".into(),
        }
    }

    /// Whether the input is at fault (true) or the machine while running (false: reading, writing, a full disk).
    pub fn is_bad_input(&self) -> bool {
        !matches!(
            self,
            DataError::Read { .. } | DataError::Changed { .. } | DataError::Cache { .. } | DataError::Write { .. }
        )
    }
}
