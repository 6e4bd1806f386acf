//! The tokenizer of a checkpoint: that of its training data. If it is a file, the run copied it to the directory of its
//! checkpoints.

use std::path::Path;

use millrace_checkpoint::hf::ExportedTokenizer;
use millrace_data::{DataError, TOKENIZER_FILE, Tokenizer};
use millrace_params::{DataSource, JobSpec, TokenizerName};

/// Opens the tokenizer of the checkpoint of a job. Returns `None` if its training data were tokens.
///
/// # Errors
/// [`DataError::NotFound`] if the copy of the file is missing, or another error of the file.
pub fn open(job: &JobSpec, checkpoint: &Path) -> Result<Option<Tokenizer>, DataError> {
    let DataSource::Text { tokenizer, .. } = job.train_input.source else { return Ok(None) };
    let copy = checkpoint.parent().map(|model_dir| model_dir.join(TOKENIZER_FILE));
    Tokenizer::open(tokenizer, copy.as_deref()).map(Some)
}

/// Returns the content of the file of the tokenizer of a job's training data, to be kept as [`TOKENIZER_FILE`] in the
/// directory of its checkpoints; `None` if the tokenizer is not a file.
///
/// # Errors
/// The file can't be used.
pub(crate) fn content_to_keep(job: &JobSpec) -> Result<Option<Vec<u8>>, DataError> {
    let Some(file) = job.train_input.tokenizer_file() else { return Ok(None) };
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

/// Converts a tokenizer to the files of an export.
///
/// # Errors
/// Its file can't be read.
pub fn exported(tokenizer: &Tokenizer) -> Result<ExportedTokenizer, DataError> {
    let end_name = tokenizer.separator_name().to_owned();
    Ok(ExportedTokenizer { json: tokenizer.to_json()?, end: tokenizer.separator(), end_name })
}

/// Returns the tokenizer of the checkpoint of a job as files of an export; `None` if its training data were tokens, or
/// the copy of its file is missing: the weights can be used without it.
///
/// # Errors
/// Its file can't be used.
pub fn export(job: &JobSpec, checkpoint: &Path) -> Result<Option<ExportedTokenizer>, DataError> {
    match open(job, checkpoint) {
        Err(DataError::NotFound { .. }) => Ok(None),
        opened => opened?.as_ref().map(exported).transpose(),
    }
}
