//! Training samples: text, tokens, splits, and the pure function from sample number to tokens.
//!
//! A [`SourceSpec`] names a source (text files, ready-made token files or a synthetic stream) and how samples are
//! cut from it; [`Dataset::open`] turns it into a [`Dataset`], which answers one question: *what are the tokens of
//! sample n?*
//!
//! Invariants every caller may build on:
//!
//! * **Samples are a pure function of (source, spec, n)**, `n` the sample's number since the start of training.
//!   There is no cursor: any process may ask for any sample, in any order, any number of times, and a resumed run
//!   continues by asking for the next number. `n` is unbounded; after [`Dataset::windows`] samples the next pass
//!   over the data begins, in another order when shuffling.
//! * **A sample is a window of T + 1 tokens**: `input_ids` are its first T, `labels` its last T. Window `w` starts at
//!   token `w * T` of its split, so neighbours share one token and every token of the split but the first is a label
//!   exactly once a pass. The fewer than T + 1 tokens behind the last whole window are left out.
//! * **Training and validation never share a token**: validation is the last fraction of the token stream.
//! * **The same files give the same tokens**, on any machine and with any number of threads. [`Dataset::fingerprint`]
//!   is equal exactly when two processes would see the same samples.
//!
//! Text is tokenised once and kept in a cache directory under a key over its content, see [`CacheOutcome`].

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod cache;
mod dataset;
mod error;
mod export;
mod files;
mod inspect;
mod permute;
mod spec;
mod synthetic;
mod text;
mod token_store;
mod tokenizer;

pub use cache::CacheOutcome;
pub use dataset::Dataset;
pub use error::DataError;
pub use export::write_samples;
pub use files::MATCH_OPTIONS;
pub use inspect::{DataSummary, inspect};
pub use permute::Permutation;
pub use spec::{SourceKind, SourceSpec, SplitPart};
pub use tokenizer::Tokenizer;
