//! Tokenizers of files `tokenizer.json`, and texts of Parquet files.
//!
//! Both formats are read by libraries whose generic code is compiled into the crate that calls them. This crate is
//! small, so that it is not compiled with the optimizations of `millrace-data`, which moves samples.
//!
//! Guarantees: a file never causes a panic, whatever its content, and the same file gives the same tokens for the same
//! text. Opening files, and bounds on their sizes, are left to the caller.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

mod parquet;
mod tokenizer;

pub use parquet::{ParquetProblem, ParquetTexts};
pub use tokenizer::{ENCODER_TOKENS, EncoderTokens, FileTokenizer, TokenizerProblem};
