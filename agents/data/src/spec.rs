//! Specification of a data source and of its samples.

use std::path::{Path, PathBuf};

use millrace_params::{DEFAULT_TEXT_KEY, ImageSource, TokenType, TokenizerName};

use crate::encoder::SPECIAL_TOKENS;
use crate::{CsvRows, DataError, EncoderSamples, Seq2SeqSamples, SinkTokens, TfRecordRows, Tokenizer};

/// The source of the samples.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceKind {
    /// Text.
    Text(TextFiles),
    /// Token files, concatenated in order without a separator: little-endian numbers without a header, or, if a name
    /// ends in `.npy`, a NumPy array.
    Tokens {
        /// As for text; for a directory, all `*.bin` files in it.
        paths: Vec<String>,
        /// The numbers of a file without a header.
        token_type: TokenType,
    },
    /// HDF5 files with a dataset `data`: samples of (input_ids, loss mask, labels), or a stream of tokens.
    Hdf5 {
        /// As for text; for a directory, all `*.h5` files in it.
        paths: Vec<String>,
        /// The sources of a mixture, whose paths follow each other in `paths`. Empty if all files are one source.
        mixture: Vec<MixturePart>,
        /// Size of the vocabulary: larger tokens are rejected when they are read.
        vocab_size: u32,
    },
    /// CSV files with a row for each sample of an encoder.
    Csv {
        /// As for text; for a directory, all `*.csv` files in it, or `*.tsv` for rows with tabs. The last path is that
        /// of the vocabulary, if rows contain words.
        paths: Vec<String>,
        /// What a row contains.
        rows: CsvRows,
        /// Whether words are converted to lower case.
        is_lower_case: bool,
    },
    /// TFRecord files with a sample in each record.
    TfRecords {
        /// As for text; for a directory, all `*.tfrecord*` files in it. The last path is that of the vocabulary, if
        /// records contain words.
        paths: Vec<String>,
        /// What a record contains.
        rows: TfRecordRows,
        /// Whether words are converted to lower case.
        is_lower_case: bool,
        /// Size of the vocabulary: larger tokens are rejected when they are read.
        vocab_size: u32,
    },
    /// HDF5 files with samples of an encoder: input_ids, attention mask and labels.
    EncoderHdf5 {
        /// As for text; for a directory, all `*.h5` files in it.
        paths: Vec<String>,
    },
    /// Directories with a NumPy array for each input of a graph.
    Arrays {
        /// The directories, in order.
        paths: Vec<String>,
    },
    /// A dataset in Python, whose samples are the inputs of a graph.
    Python {
        /// The directories of packages; exactly one.
        paths: Vec<String>,
    },
    /// Lines of words, for an encoder with a decoder.
    Lines(LineFiles),
    /// Images with a class each.
    Images {
        /// Directories, or idx files of images.
        paths: Vec<String>,
        /// How they are stored, and what is done with them.
        images: ImageSource,
    },
    /// A seeded stream with structure that a model can learn, for tests and benchmarks without data.
    Synthetic {
        /// Size of the vocabulary that the tokens are spread over, at least 2.
        vocab_size: u32,
        /// Seed of the stream.
        seed: u64,
    },
}

/// Files of UTF-8 text, each one document, or with a document on each line or in each row.
///
/// Files are read in the order of `paths`, with the tokenizer's [separator](Tokenizer::separator) between documents.
/// Empty documents are skipped. The name of a file says its format, see [`TextFormat`](crate::TextFormat).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFiles {
    /// Files, globs, or directories (all `*.txt` files in them). The matches of one entry are sorted by path; a file
    /// named twice is read once, at its first position. The last path is that of the tokenizer, if it is a file.
    pub paths: Vec<String>,
    /// The tokenizer.
    pub tokenizer: TokenizerName,
    /// Key of a line, or column of a row, that contains the text.
    pub text_key: String,
}

impl TextFiles {
    /// Returns text of these files, in which `text` is the key of a document.
    pub fn new(paths: Vec<String>, tokenizer: TokenizerName) -> Self {
        Self { paths, tokenizer, text_key: DEFAULT_TEXT_KEY.to_owned() }
    }

    /// Returns the paths of the text, and the path of the tokenizer.
    pub(crate) fn divided(&self) -> (&[String], Option<&Path>) {
        match (self.tokenizer, self.paths.split_last()) {
            (TokenizerName::File, Some((file, text))) => (text, Some(Path::new(file))),
            _ => (&self.paths, None),
        }
    }

    /// Opens the tokenizer.
    ///
    /// # Errors
    /// See [`Tokenizer::open`].
    pub fn tokenizer(&self) -> Result<Tokenizer, DataError> {
        Tokenizer::open(self.tokenizer, self.divided().1)
    }
}

impl SourceKind {
    /// Opens the tokenizer of text; returns `None` for other sources.
    ///
    /// # Errors
    /// See [`Tokenizer::open`].
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, DataError> {
        if let SourceKind::Text(files) = self { files.tokenizer().map(Some) } else { Ok(None) }
    }

    /// Returns the path of the vocabulary with which the words of summaries are compared.
    pub(crate) fn summary_vocabulary(&self) -> Option<&Path> {
        let paths = match self {
            Self::Csv { paths, rows: CsvRows::SummariesWithWords, .. }
            | Self::TfRecords { paths, rows: TfRecordRows::SummariesWithWords, .. } => paths,
            _ => return None,
        };
        paths.last().map(Path::new)
    }
}

/// Files of lines whose words are separated by white space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFiles {
    /// Files, globs, or directories: the files that `meta.dat` in them names, or all `*.txt` files. The sources, then
    /// `targets` paths of translations, then `vocabularies` paths of vocabularies: of both sides, or one of each.
    pub paths: Vec<String>,
    /// What a sample is made from.
    pub rows: LineRows,
    /// Number of paths of translations. If it is 0, the lists of the sources name the translations of pairs.
    pub targets: usize,
    /// Number of paths of vocabularies, 1 or 2.
    pub vocabularies: usize,
    /// Whether words are converted to lower case.
    pub is_lower_case: bool,
}

/// What a sample is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineRows {
    /// A part of a line, in which spans are replaced.
    Spans,
    /// A line, and the line with the same number of another file.
    Pairs,
}

impl LineFiles {
    /// Returns the paths of sources, targets and vocabularies.
    pub(crate) fn divided(&self) -> [&[String]; 3] {
        let (files, vocabularies) = self.paths.split_at(self.paths.len().saturating_sub(self.vocabularies));
        let (sources, targets) = files.split_at(files.len().saturating_sub(self.targets));
        [sources, targets, vocabularies]
    }
}

/// One source of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixturePart {
    /// Number of its paths.
    pub paths: usize,
    /// Its share of the samples, relative to the sum of all weights; at least 1.
    pub weight: u32,
}

/// The part of the token stream that samples are cut from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitPart {
    /// All tokens except the validation fraction.
    Train,
    /// The last `validation_fraction` of the tokens.
    Validation,
}

impl std::fmt::Display for SplitPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SplitPart::Train => "training",
            SplitPart::Validation => "validation",
        })
    }
}

/// Everything that determines the samples of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceSpec {
    /// The source of the tokens.
    pub kind: SourceKind,
    /// Tokens per sample, T (`max_sequence_length`), at least 1.
    pub seq_len: usize,
    /// The part of the stream.
    pub split: SplitPart,
    /// Share of the stream, at its end, that is reserved for validation: 0 to 1.
    pub validation_fraction: f64,
    /// Shares of the windows of the split that are read, as (begin, end) from 0 to 1, ascending; empty for all.
    pub subset: Vec<[f64; 2]>,
    /// Number of samples in a pass; `None` for the number of windows.
    pub num_samples: Option<u64>,
    /// Whether every pass over the training windows has its own order. Validation always keeps the order of the text,
    /// so that two evaluations see the same samples.
    pub shuffle: bool,
    /// Seed of those orders.
    pub shuffle_seed: u64,
    /// Directory for tokenized text, which must be writable. `None` means `$XDG_CACHE_HOME/millrace` or
    /// `~/.cache/millrace`, or no cache if that is not writable.
    pub cache_dir: Option<PathBuf>,
    /// What samples contain, if they are those of an encoder; `None` for tokens, and labels that are the next tokens.
    pub encoder: Option<EncoderSamples>,
    /// What samples contain, if they are those of an encoder with a decoder.
    pub seq2seq: Option<Seq2SeqSamples>,
    /// Tokens that are inserted into every sample of a decoder, and count in `seq_len`.
    pub sinks: Option<SinkTokens>,
    /// Whether HDF5 files have samples of several sequences.
    pub is_packed: bool,
}

impl SourceSpec {
    /// Returns samples of `seq_len` tokens of the whole source, in its order.
    pub const fn new(kind: SourceKind, seq_len: usize) -> Self {
        Self {
            kind,
            seq_len,
            split: SplitPart::Train,
            validation_fraction: 0.0,
            subset: Vec::new(),
            num_samples: None,
            shuffle: false,
            shuffle_seed: 0,
            cache_dir: None,
            encoder: None,
            seq2seq: None,
            sinks: None,
            is_packed: false,
        }
    }

    /// Returns the source of the windows from which samples of an encoder are assembled.
    pub(crate) fn windows_of_encoder(&self, samples: &EncoderSamples) -> Self {
        self.windows_of(samples.window_length(self.seq_len), SPECIAL_TOKENS)
    }

    /// Returns the source of the windows from which samples of an encoder with a decoder are assembled.
    pub(crate) fn windows_of_seq2seq(&self, samples: &Seq2SeqSamples) -> Result<Self, DataError> {
        let length = samples.text_length(self.seq_len)?;
        Ok(self.windows_of(length, samples.special_tokens(length)))
    }

    /// Returns the source of windows of `length` tokens, in a vocabulary whose last tokens are special.
    fn windows_of(&self, length: usize, special_tokens: u32) -> Self {
        let mut windows = Self { seq_len: length, encoder: None, seq2seq: None, ..self.clone() };
        if let SourceKind::Synthetic { vocab_size, .. } | SourceKind::Hdf5 { vocab_size, .. } = &mut windows.kind {
            *vocab_size = vocab_size.saturating_sub(special_tokens);
        }
        windows
    }

    /// Returns the source of the samples that `sinks` are inserted into.
    pub(crate) fn without_sinks(&self, sinks: SinkTokens) -> Self {
        Self { seq_len: sinks.length_without(self.seq_len), sinks: None, ..self.clone() }
    }

    /// Checks values that no source could satisfy.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        if self.seq_len == 0 || self.seq_len > i32::MAX as usize {
            return Err(DataError::BadSequenceLength { seq_len: self.seq_len });
        }
        // `contains` is false for NaN as well.
        if !(0.0..=1.0).contains(&self.validation_fraction) {
            return Err(DataError::BadFraction { fraction: self.validation_fraction });
        }
        if let SourceKind::Synthetic { vocab_size, .. } = self.kind
            && !(2..=i32::MAX as u32).contains(&vocab_size)
        {
            return Err(DataError::BadVocabulary { vocab_size });
        }
        Ok(())
    }
}
