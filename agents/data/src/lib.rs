//! Training samples: text, tokens, splits, and the pure function from sample number to tokens.
//!
//! A [`SourceSpec`] describes a source (text files, token files, HDF5 files or a synthetic stream) and how samples are
//! cut from it. [`Dataset::open`] opens it as a [`Dataset`], which returns the tokens of sample n.
//!
//! Guarantees:
//!
//! * **Samples are a pure function of (source, spec, n)**, where `n` is the sample's number since the start of
//!   training. There is no cursor: any process can read any sample, in any order, any number of times, and a resumed
//!   run continues with the next number. `n` is unbounded; after [`Dataset::windows`] samples the next pass over the
//!   data begins, in another order if shuffling.
//! * **A sample is a window of T + 1 tokens**: `input_ids` are its first T, `labels` its last T. Window `w` starts at
//!   token `w * T` of its split, so neighbors share one token, and every token of the split except the first is a label
//!   exactly once per pass. The remaining tokens after the last complete window, fewer than T + 1, are not used. HDF5
//!   files may contain complete samples instead; the split and the order then apply to these.
//! * **Training and validation never share a token** of a stream, or a sample: validation is the last fraction of it.
//! * **The same files give the same tokens**, on any machine and with any number of threads. [`Dataset::fingerprint`]
//!   is equal if and only if two processes see the same samples.
//!
//! Text is tokenized once and kept in a cache directory under a key computed from its content, see [`CacheOutcome`].

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod arrays;
mod cache;
mod dataset;
mod encoder;
mod error;
mod export;
mod files;
mod hdf5;
mod images;
mod inspect;
mod mixture;
mod npy;
mod order;
mod permute;
mod python_package;
mod seq2seq;
mod sinks;
mod spec;
mod split;
mod synthetic;
mod text;
mod tfrecord;
mod token_store;
mod tokenizer;

pub use arrays::ArrayProblem;
pub use cache::{CacheOutcome, default_cache_dir};
pub use dataset::{Dataset, ElementType, SampleInput};
pub use encoder::{
    CsvProblem, CsvRows, EncoderLabels, EncoderSamples, Masking, SPECIAL_TOKENS, SpecialTokens, VocabularyProblem,
    word_piece_tokenizer,
};
pub use error::DataError;
pub use export::write_samples;
pub use files::MATCH_OPTIONS;
pub use hdf5::{Hdf5Problem, Hdf5ReadError, Hdf5Size, SampleProblem, write_hdf5};
pub use images::ImageProblem;
pub use inspect::{DataSummary, inspect, stored_sample_length};
pub use millrace_params::{TokenType, TokenizerName};
pub use millrace_text::{ENCODER_TOKENS, ParquetProblem, TokenizerProblem};
pub use npy::NpyProblem;
pub use permute::Permutation;
pub use python_package::{Interpreter, MANIFEST_FILE, PythonPackage, PythonProblem, SampleNumber, SampleReader};
pub use seq2seq::{LinesProblem, Seq2SeqSamples, line_tokenizer};
pub use sinks::SinkTokens;
pub use spec::{LineFiles, LineRows, MixturePart, SourceKind, SourceSpec, SplitPart, TextFiles};
pub use text::{JsonLineProblem, TextFormat};
pub use tfrecord::{TfRecordProblem, TfRecordRows, tfrecord_frame};
pub use tokenizer::{SampleTemplate, TOKENIZER_FILE, TextDecoder, Tokenizer, TokenizerFile, with_special_tokens};
