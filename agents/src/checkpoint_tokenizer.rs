//! The tokenizer of a checkpoint: that of its training data. If it is a file, or a vocabulary of words, the run wrote
//! it to the directory of its checkpoints as [`TOKENIZER_FILE`].

use std::path::{Path, PathBuf};

use millrace_data::{DataError, TOKENIZER_FILE, Tokenizer, line_tokenizer, word_piece_tokenizer};
use millrace_params::{DataSource, JobSpec, TokenizerName};

/// Opens the tokenizer of the texts of a checkpoint's job. Returns `None` if its training data were something else.
///
/// # Errors
/// [`DataError::NotFound`] if the copy of the file is missing, or another error of the file.
pub fn open(job: &JobSpec, checkpoint: &Path) -> Result<Option<Tokenizer>, DataError> {
    let DataSource::Text { tokenizer, .. } = job.train_input.source else { return Ok(None) };
    Tokenizer::open(tokenizer, kept_file(checkpoint).as_deref()).map(Some)
}

/// Opens the tokenizer of the texts or words of a checkpoint's job. Returns `None` if its training data were tokens.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_any(job: &JobSpec, checkpoint: &Path) -> Result<Option<Tokenizer>, DataError> {
    let input = &job.train_input;
    if input.words_file().or(input.line_words_file()).is_some() {
        return Tokenizer::open(TokenizerName::File, kept_file(checkpoint).as_deref()).map(Some);
    }
    open(job, checkpoint)
}

/// Returns the tokenizer of a job's training data as the content of a file, to be kept as [`TOKENIZER_FILE`] in the
/// directory of its checkpoints; `None` if it is neither a file nor a vocabulary of words.
///
/// # Errors
/// The file can't be used.
pub(crate) fn content_to_keep(job: &JobSpec) -> Result<Option<Vec<u8>>, DataError> {
    let input = &job.train_input;
    if let Some((words, is_lower_case)) = input.words_file() {
        return word_piece_tokenizer(Path::new(words), is_lower_case).map(Some);
    }
    if let Some((words, is_lower_case)) = input.line_words_file() {
        return line_tokenizer(Path::new(words), is_lower_case).map(Some);
    }
    let Some(file) = input.tokenizer_file() else { return Ok(None) };
    Tokenizer::open(TokenizerName::File, Some(Path::new(file)))?.to_json().map(Some)
}

/// Opens the tokenizer with this name: `gpt2`, `bytes` or the path of a file.
///
/// # Errors
/// The file can't be used.
pub fn open_named(name: &str) -> Result<Tokenizer, DataError> {
    match name {
        "gpt2" => Tokenizer::open(TokenizerName::Gpt2, None),
        "bytes" => Tokenizer::open(TokenizerName::Bytes, None),
        file => Tokenizer::open(TokenizerName::File, Some(Path::new(file))),
    }
}

/// Returns the path of the tokenizer that the run of a checkpoint kept.
fn kept_file(checkpoint: &Path) -> Option<PathBuf> {
    checkpoint.parent().map(|model_dir| model_dir.join(TOKENIZER_FILE))
}
