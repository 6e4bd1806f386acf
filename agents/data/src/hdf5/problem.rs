//! Reasons why an HDF5 file, or one sample of it, can't be used.

use hdf5_reader::error::Error as ReadError;

use crate::images::ImageProblem;

/// What is wrong with an HDF5 file, as the end of a sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum Hdf5Problem {
    #[error("is truncated: it has {bytes} bytes of the {expected} that its header states")]
    Truncated { bytes: u64, expected: u64 },
    #[error("is damaged: {0}")]
    Damaged(Hdf5ReadError),
    #[error("has no dataset \"data\"; {found}")]
    NoDataset {
        /// The datasets that it has, as a clause.
        found: String,
    },
    #[error("has a group \"data\" where a dataset is expected")]
    IsGroup,
    #[error("has a dataset \"data\" of {found}; expected {expected}")]
    WrongType { found: String, expected: &'static str },
    #[error("has a dataset \"data\" of shape {found:?}; expected (samples, 3, length) or (tokens)")]
    WrongShape { found: Vec<u64> },
    #[error("has samples of packed sequences ({rows} rows), but use_vsl is not set")]
    Packed { rows: u64 },
    #[error(
        "has no labels beside its samples: a dataset \"labels\" of int32 and shape (samples, 1, length), or of 3 rows \
         with labels, positions and whether they count"
    )]
    NoLabels,
    #[error("has samples of an encoder, without labels among their rows")]
    ForEncoders,
    #[error("contains {found}, but use_vsl is set, which needs samples of packed sequences (5 rows)")]
    NotPacked { found: &'static str },
    #[error("has samples of {found} tokens, but max_sequence_length is {expected}")]
    WrongLength { found: u64, expected: usize },
    #[error("contains {found}, but the files before it contain {expected}")]
    MixedFormats { found: &'static str, expected: &'static str },
}

impl Hdf5Problem {
    /// Returns what the user can do about it.
    pub(crate) fn hint(&self) -> String {
        const FORMAT: &str = "a dataset \"data\" contains either samples, int32 of shape (samples, 3, length) with the \
                              rows input_ids, loss mask and labels, or a corpus, unsigned integers of shape (tokens)";
        match self {
            Self::Truncated { .. } | Self::Damaged(_) => "copy or write the file again".to_owned(),
            Self::WrongLength { found, .. } => {
                format!("set max_sequence_length to {found}, or use data that was prepared for this length")
            }
            Self::Packed { .. } => "set train_input.use_vsl: True, or prepare the data without packing".to_owned(),
            Self::NotPacked { .. } => "leave use_vsl out, or prepare the data with packing".to_owned(),
            Self::ForEncoders => "use BertHDF5DataProcessor and a model of a family of bert, or esm2".to_owned(),
            Self::NoLabels => "prepare the data again for masked tokens (training_objective: mlm)".to_owned(),
            Self::MixedFormats { .. } => "put the two formats into different directories".to_owned(),
            _ => FORMAT.to_owned(),
        }
    }
}

/// What is wrong with one sample or token.
#[derive(Debug, thiserror::Error)]
pub enum SampleProblem {
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutsideVocabulary { token: i64, vocab_size: u32 },
    #[error("label {label} is outside the vocabulary of {vocab_size}")]
    LabelOutsideVocabulary { label: i64, vocab_size: u32 },
    #[error("a loss mask has the value {value}; expected 0 or 1")]
    MaskValue { value: i32 },
    #[error("the column {column} is not {expected}")]
    Malformed { column: &'static str, expected: &'static str },
    #[error("it has {found} tokens, more than max_sequence_length {expected}")]
    TooLong { found: usize, expected: usize },
    #[error("it has {found} labels, more than the {expected} that the model predicts")]
    TooManyLabels { found: usize, expected: usize },
    #[error("the position {position} of a label is outside of the {length} tokens")]
    PositionOutside { position: usize, length: usize },
    #[error("its words need a vocabulary")]
    NoVocabulary,
    #[error("label {label} is not below the number of classes, {classes}")]
    LabelOutsideClasses { label: u32, classes: usize },
    #[error("the {row} of token {position} is {value}, which is not from 0 to {max}")]
    PackingValue { row: &'static str, position: usize, value: i32, max: usize },
    #[error("its checksum is wrong: the file is damaged")]
    WrongChecksum,
    #[error("it is no tf.train.Example")]
    NotAnExample,
    #[error("it has no feature {name}")]
    MissingFeature { name: &'static str },
    #[error("its feature {name} has {found} values; expected {expected}")]
    FeatureLength { name: &'static str, found: usize, expected: usize },
    #[error("it contains the integer {value}, which does not have 32 bits")]
    IntegerTooLarge { value: i128 },
    /// An image of a file of several.
    #[error("it {0}")]
    Image(ImageProblem),
    #[error("it can't be read: {0}")]
    Unreadable(Hdf5ReadError),
}

impl SampleProblem {
    /// Returns what the user can do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::TokenOutsideVocabulary { .. } | Self::LabelOutsideVocabulary { .. } => {
                "set vocab_size to that of the tokenizer that prepared the data".to_owned()
            }
            Self::MaskValue { .. } => {
                "0 excludes a label from the loss, 1 includes it; prepare the data again".to_owned()
            }
            Self::Malformed { .. } | Self::PackingValue { .. } | Self::PositionOutside { .. } => {
                "prepare the data again".to_owned()
            }
            Self::IntegerTooLarge { .. } => "write integers from -2147483648 to 2147483647".to_owned(),
            Self::TooLong { .. } => "raise max_sequence_length to that of the data".to_owned(),
            Self::TooManyLabels { .. } => {
                "raise max_predictions_per_seq, or max_cls_tokens, to that of the data".to_owned()
            }
            Self::NoVocabulary => "set vocab_file".to_owned(),
            Self::LabelOutsideClasses { .. } => "set model.num_classes, or check the labels".to_owned(),
            Self::Image(problem) => problem.hint(),
            Self::Unreadable(_) | Self::WrongChecksum => "copy or write the file again".to_owned(),
            Self::NotAnExample | Self::MissingFeature { .. } => {
                "use the data_processor that belongs to the program that wrote the file".to_owned()
            }
            Self::FeatureLength { .. } => "set max_sequence_length to that of the data".to_owned(),
        }
    }
}

/// An error of the HDF5 reader.
#[derive(Debug, thiserror::Error)]
pub enum Hdf5ReadError {
    /// The reader rejected the file.
    #[error("{0}")]
    Rejected(Box<ReadError>),
    /// The reader panicked, which only a damaged file can cause.
    #[error("its structure is inconsistent")]
    Panicked,
    /// The reader returned another number of values than requested.
    #[error("it has {found} of {expected} values")]
    WrongCount {
        /// Number of values that were read.
        found: usize,
        /// Number of values that were requested.
        expected: usize,
    },
}
