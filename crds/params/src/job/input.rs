//! The inputs of a resolved job.

use serde::{Deserialize, Serialize};

use super::encoder::MaskingSpec;
use super::image::ImageSource;

/// One of the two inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputSpec {
    /// Source of the tokens.
    pub source: DataSource,
    /// The part of the tokens that is read.
    pub split: Split,
    /// Shares of the samples that are read, as (begin, end) from 0 to 1, ascending; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_subset: Vec<[f64; 2]>,
    /// Samples in an epoch, at least 1; `None` for those of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_samples: Option<u64>,
    /// Samples in a batch, of all systems together; at least 1.
    pub batch_size: usize,
    /// Upper bound on the samples of a leaf, from 1 to `batch_size`.
    pub micro_batch_size: usize,
    /// Whether the params leave that bound to the appliance. Training that resumes from a checkpoint of an equally
    /// large batch then keeps the checkpoint's leaves, even if `auto` stands for another bound now. False in documents
    /// of releases that did not record it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_micro_batch_auto: bool,
    /// Tokens of a sample, T; at least 1.
    pub max_sequence_length: usize,
    /// Whether samples are read in a random order, a different one in each epoch.
    pub shuffle: bool,
    /// Seed of that order, and of the choice of masked tokens.
    pub shuffle_seed: u64,
    /// How masked tokens are chosen; `None` if the model does not predict them, or the data contain them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masking: Option<MaskingSpec>,
    /// Tokens that are inserted into every sample, and count in `max_sequence_length`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sinks: Option<SinkTokens>,
}

/// Tokens that are inserted into every sample, and are not predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkTokens {
    /// The token; less than the size of the vocabulary.
    pub token: u32,
    /// How often it is inserted: at least 1, and less than the length of the sample.
    pub count: usize,
    /// Number of tokens of the sample before them.
    pub position: usize,
    /// Whether the sample keeps its length, so that as many tokens at its end are lost.
    pub keeps_length: bool,
}

impl InputSpec {
    /// Returns the samples of a leaf: the largest divisor of the batch within the bound.
    pub fn leaf_size(&self) -> usize {
        let divides = |size: &usize| self.batch_size.is_multiple_of(*size);
        (1..=self.micro_batch_size.min(self.batch_size)).rev().find(divides).unwrap_or(1)
    }

    /// Returns K, the number of leaves in a batch.
    pub fn leaves(&self) -> usize {
        self.batch_size / self.leaf_size()
    }

    /// Returns the files, directories and globs of the input; empty for a synthetic source.
    pub fn paths(&self) -> &[String] {
        match &self.source {
            DataSource::Text { paths, .. }
            | DataSource::Tokens { paths, .. }
            | DataSource::Hdf5 { paths, .. }
            | DataSource::Csv { paths, .. }
            | DataSource::EncoderHdf5 { paths }
            | DataSource::Arrays { paths }
            | DataSource::Python { paths }
            | DataSource::TfRecords { paths, .. }
            | DataSource::Lines { paths, .. }
            | DataSource::Images { paths, .. } => paths,
            DataSource::Synthetic {} => &[],
        }
    }

    /// Returns [`InputSpec::paths`] for modification; `None` for a synthetic source.
    pub fn paths_mut(&mut self) -> Option<&mut Vec<String>> {
        match &mut self.source {
            DataSource::Text { paths, .. }
            | DataSource::Tokens { paths, .. }
            | DataSource::Hdf5 { paths, .. }
            | DataSource::Csv { paths, .. }
            | DataSource::EncoderHdf5 { paths }
            | DataSource::Arrays { paths }
            | DataSource::Python { paths }
            | DataSource::TfRecords { paths, .. }
            | DataSource::Lines { paths, .. }
            | DataSource::Images { paths, .. } => Some(paths),
            DataSource::Synthetic {} => None,
        }
    }

    /// Returns how many of the [paths](Self::paths), at the end, are those of vocabularies and tokenizers.
    pub fn vocabulary_paths(&self) -> usize {
        let count = match &self.source {
            DataSource::Text { tokenizer, .. } => usize::from(*tokenizer == TokenizerName::File),
            DataSource::Csv { rows, .. } => usize::from(rows.has_words()) + usize::from(*rows == CsvRows::TokenClasses),
            DataSource::TfRecords { rows, .. } => rows.vocabularies(),
            DataSource::Lines { vocabularies, .. } => *vocabularies,
            _ => 0,
        };
        count.min(self.paths().len())
    }

    /// Returns the path of the tokenizer, if it is a file.
    pub fn tokenizer_file(&self) -> Option<&str> {
        match &self.source {
            DataSource::Text { paths, tokenizer: TokenizerName::File, .. } => paths.last().map(String::as_str),
            _ => None,
        }
    }

    /// Returns the path of the file with a word of the vocabulary in each line, if an encoder's data are words, and
    /// whether they are converted to lower case.
    pub fn words_file(&self) -> Option<(&str, bool)> {
        let (paths, is_lower_case) = match &self.source {
            DataSource::Csv { paths, rows, is_lower_case } if rows.has_words() => (paths, *is_lower_case),
            DataSource::TfRecords { paths, rows, is_lower_case } if rows.has_words() => (paths, *is_lower_case),
            _ => return None,
        };
        paths.last().map(|path| (path.as_str(), is_lower_case))
    }

    /// Returns the path of the vocabulary of words that lines are divided into, if both sides share it, and whether
    /// words are converted to lower case.
    pub fn line_words_file(&self) -> Option<(&str, bool)> {
        match &self.source {
            DataSource::Lines { paths, vocabularies: 1, is_lower_case, .. } => {
                paths.last().map(|path| (path.as_str(), *is_lower_case))
            }
            _ => None,
        }
    }

    /// Returns the tokens of a batch.
    pub fn tokens_per_batch(&self) -> usize {
        self.batch_size * self.max_sequence_length
    }
}

/// Source of an input's samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DataSource {
    /// Text files.
    Text {
        /// Files, directories (their `*.txt`, sorted by name) or globs, in order; at least one. The last path is that
        /// of the tokenizer, if it is a file.
        paths: Vec<String>,
        /// The tokenizer.
        tokenizer: TokenizerName,
        /// Key of a line of JSON, or column of a Parquet file, that contains the text of a document.
        #[serde(default = "default_text_key", skip_serializing_if = "is_default_text_key")]
        text_key: String,
    },
    /// Token files.
    Tokens {
        /// Files, directories (their `*.bin`, sorted by name) or globs, in order; at least one.
        paths: Vec<String>,
        /// The numbers of a file without a header.
        #[serde(default, skip_serializing_if = "TokenType::is_default")]
        token_type: TokenType,
    },
    /// HDF5 files with samples or tokens.
    Hdf5 {
        /// Files, directories (their `*.h5`, sorted by name) or globs, in order; at least one.
        paths: Vec<String>,
        /// The sources of a mixture, whose paths follow each other in `paths`. Empty if all files are one source.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mixture: Vec<MixturePart>,
    },
    /// HDF5 files with samples of an encoder: input_ids, attention mask and labels.
    EncoderHdf5 {
        /// Files, directories (their `*.h5`, sorted by name) or globs, in order; at least one.
        paths: Vec<String>,
    },
    /// NumPy arrays of the inputs of a graph.
    Arrays {
        /// Directories with a file `NAME.npy` for each input, in order; at least one.
        paths: Vec<String>,
    },
    /// A dataset in Python, whose samples are the inputs of a graph.
    Python {
        /// The directory of its package; exactly one.
        paths: Vec<String>,
    },
    /// TFRecord files with a sample in each record.
    TfRecords {
        /// Files, directories (their `*.tfrecords` or `*.tfrecord`, sorted by name) or globs, in order; at least one.
        /// The last path is that of the vocabulary, if records contain words, or of the names of classes of tokens.
        paths: Vec<String>,
        /// What a record contains.
        rows: TfRecordRows,
        /// Whether words are converted to lower case.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_lower_case: bool,
    },
    /// CSV files with a row for each sample of an encoder.
    Csv {
        /// Files, directories (their `*.csv`, sorted by name) or globs, in order; at least one. The last path is that
        /// of the vocabulary, if rows contain words.
        paths: Vec<String>,
        /// What a row contains.
        rows: CsvRows,
        /// Whether words are converted to lower case.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_lower_case: bool,
    },
    /// Images with a class each.
    Images {
        /// Directories, or the files of an idx source, in order; at least one.
        paths: Vec<String>,
        /// What the directories contain, and what is done with it.
        images: ImageSource,
    },
    /// Generated tokens, a function of seed and sample number, without end.
    Synthetic {},
    /// Files of lines whose words are separated by white space, for an encoder with a decoder.
    Lines {
        /// Files, directories (those that their `meta.dat` names, or their `*.txt`) or globs, in order. The sources,
        /// then `targets` paths of translations, then `vocabularies` paths of vocabularies: of both sides, or of each.
        paths: Vec<String>,
        /// What a sample is made from.
        rows: LineRows,
        /// Number of paths of translations; 0 if lists of the sources name them, or there are none.
        #[serde(default, skip_serializing_if = "is_zero")]
        targets: usize,
        /// Number of paths of vocabularies, 1 or 2.
        vocabularies: usize,
        /// Whether words are converted to lower case.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_lower_case: bool,
    },
}

/// What a sample of files of lines is made from: one of the formats of the public model zoo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineRows {
    /// A part of a line, in which spans are replaced (T5).
    Spans,
    /// A line, and the line with the same number of another file.
    Pairs,
}

impl DataSource {
    /// Returns the kind of source, in words.
    pub const fn description(&self) -> &'static str {
        match self {
            Self::Text { .. } => "text",
            Self::Tokens { .. } => "token files",
            Self::Hdf5 { .. } => "HDF5 files",
            Self::Csv { .. } => "CSV files",
            Self::EncoderHdf5 { .. } => "HDF5 files of an encoder",
            Self::Arrays { .. } => "NumPy arrays",
            Self::Python { .. } => "a Python dataset",
            Self::TfRecords { .. } => "TFRecord files",
            Self::Lines { .. } => "lines of words",
            Self::Images { .. } => "images",
            Self::Synthetic {} => "generated samples",
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// What a row of a CSV file contains: one of the formats of the public model zoo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CsvRows {
    /// Words of a vocabulary; tokens are masked when they are read.
    Words,
    /// Numbers of tokens that are masked already.
    Masked,
    /// Sentences and their class, separated by tabs (SST-2).
    Sentences,
    /// Pairs of sentences and their class, separated by tabs (MNLI).
    SentencePairs,
    /// Words with the name of a class for each; the path before the vocabulary is that of the names.
    TokenClasses,
    /// Texts with the places of their sentences, and whether each belongs to the summary.
    Summaries,
    /// Like `Summaries`; the last path is that of the vocabulary, with which words of summaries are compared.
    SummariesWithWords,
    /// A question and a text, with the first and the last position of the answer.
    Answers,
}

impl CsvRows {
    /// Returns whether a vocabulary of words is needed.
    pub const fn has_words(self) -> bool {
        use CsvRows::*;
        matches!(self, Words | Sentences | SentencePairs | TokenClasses | SummariesWithWords)
    }
}

/// What a record of a TFRecord file contains: one of the formats of the public model zoo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TfRecordRows {
    /// Tokens, a loss mask and labels, for a decoder.
    Tokens,
    /// Tokens that are masked already and what is predicted, for an encoder.
    Masked,
    /// Words of a vocabulary, for an encoder; tokens are masked when they are read.
    Words,
    /// Sentences and their class (SST-2), as the library `tensorflow_datasets` writes them.
    Sentences,
    /// Pairs of sentences and their class (MNLI), likewise.
    SentencePairs,
    /// Tokens with the number of a class for each; the last path is that of the names of classes.
    TokenClasses,
    /// Texts with the places of their sentences, and whether each belongs to the summary.
    Summaries,
    /// Like `Summaries`; the last path is that of the vocabulary, with which words of summaries are compared.
    SummariesWithWords,
    /// A question and a text, with the first and the last position of the answer.
    Answers,
}

impl TfRecordRows {
    /// Returns whether a vocabulary of words is needed.
    pub const fn has_words(self) -> bool {
        matches!(self, Self::Words | Self::Sentences | Self::SentencePairs | Self::SummariesWithWords)
    }

    /// Returns the number of paths after those of the records: of a vocabulary, or of names of classes.
    pub const fn vocabularies(self) -> usize {
        if self.has_words() || matches!(self, Self::TokenClasses) { 1 } else { 0 }
    }
}

/// One source of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MixturePart {
    /// Number of its paths; at least 1.
    pub paths: usize,
    /// Its share of the samples in units of 1/10,000; at least 1.
    pub weight: u32,
}

/// Converts text to tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerName {
    /// GPT-2's byte-pair encoding.
    Gpt2,
    /// One token for each byte.
    Bytes,
    /// That of a file `tokenizer.json`.
    File,
}

impl TokenizerName {
    /// Returns the number of different tokens; `None` if only the file shows it.
    pub const fn vocab_size(self) -> Option<usize> {
        match self {
            Self::Gpt2 => Some(50_257),
            Self::Bytes => Some(256),
            Self::File => None,
        }
    }
}

/// The numbers of a token file without a header, little-endian.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenType {
    /// Numbers of 16 bits, for vocabularies of up to 65,536 tokens.
    #[default]
    Uint16,
    /// Numbers of 32 bits.
    Uint32,
}

impl TokenType {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Key of the text of a document, unless the params name another.
pub const DEFAULT_TEXT_KEY: &str = "text";

fn default_text_key() -> String {
    DEFAULT_TEXT_KEY.to_owned()
}

fn is_default_text_key(key: &str) -> bool {
    key == DEFAULT_TEXT_KEY
}

/// The part of a source's tokens that an input reads. The validation part is the last `fraction` of the tokens, the
/// training part everything before it. For a synthetic source, the two are different streams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum Split {
    /// All of it.
    All {},
    /// Everything but the validation part.
    Train {
        /// Share of the tokens in the validation part, in (0, 1).
        fraction: f64,
    },
    /// The validation part.
    Validation {
        /// Share of the tokens in the validation part, in (0, 1).
        fraction: f64,
    },
}
