//! Opens the files of encoders' samples, with their vocabularies and special tokens.

use std::path::Path;

use super::csv::CsvFiles;
use super::words::{Vocabulary, read_classes};
use super::{CsvRows, EncoderSamples, RecordRows, RowSource, SPECIAL_TOKENS, SpecialTokens};
use crate::files::expand;
use crate::split::{order_of, split_range};
use crate::tfrecord::{self, TfRecordFiles, TfRecordRows};
use crate::{DataError, Dataset, SourceKind, SourceSpec};

/// Opens CSV files. Of their paths, the last ones may be those of a vocabulary and of names of classes.
pub(super) fn open_csv(
    spec: &SourceSpec,
    samples: &EncoderSamples,
    paths: &[String],
    rows: CsvRows,
    is_lower_case: bool,
) -> Result<(RowSource, SpecialTokens), DataError> {
    let (data, others) = data_and_vocabulary(paths, rows);
    let files = expand(data, rows.extension())?;
    let vocabulary = match others {
        _ if rows == CsvRows::SummariesWithWords => None,
        [] => None,
        [words] => Some(Vocabulary::open(words.as_ref(), is_lower_case)?),
        [classes, words, ..] => Some(Vocabulary::open(words.as_ref(), is_lower_case)?.with_classes(classes.as_ref())?),
    };
    let files = CsvFiles::open(&files, rows.dialect(), &rows.columns(samples.predicts_next_sentence()))?;
    let order = order_of(spec, split_range(spec, files.rows()))?;
    let special = special_tokens(samples, vocabulary.as_ref())?;
    Ok((RowSource::Csv { files, rows, vocabulary, order }, special))
}

/// Opens TFRecord files. Of their paths, the last one may be that of a vocabulary, or of names of classes.
pub(super) fn open_records(
    spec: &SourceSpec,
    samples: &EncoderSamples,
    paths: &[String],
    rows: TfRecordRows,
    is_lower_case: bool,
) -> Result<(RowSource, SpecialTokens), DataError> {
    let (data, others) = tfrecord::records_and_vocabulary(paths, rows);
    let files = TfRecordFiles::open(&tfrecord::record_files(data, rows)?)?;
    let other = others.first().map_or(Path::new(""), Path::new);
    let vocabulary = || Vocabulary::open(other, is_lower_case);
    let rows = match rows {
        TfRecordRows::Tokens => return Err(DataError::NotForEncoders),
        TfRecordRows::Masked => RecordRows::Masked,
        TfRecordRows::Words => RecordRows::Words(vocabulary()?),
        TfRecordRows::Sentences => RecordRows::Sentences(vocabulary()?, false),
        TfRecordRows::SentencePairs => RecordRows::Sentences(vocabulary()?, true),
        TfRecordRows::TokenClasses => RecordRows::TokenClasses(read_classes(other)?),
        TfRecordRows::Summaries | TfRecordRows::SummariesWithWords => RecordRows::Summaries,
        TfRecordRows::Answers => RecordRows::Answers,
    };
    let special = special_tokens(samples, rows.vocabulary())?;
    let order = order_of(spec, split_range(spec, files.records()))?;
    Ok((RowSource::Records { files, rows, order }, special))
}

/// Returns the special tokens of a vocabulary, which must not be larger than that of the model. Without a vocabulary,
/// only padding is needed, which nothing attends to.
fn special_tokens(samples: &EncoderSamples, vocabulary: Option<&Vocabulary>) -> Result<SpecialTokens, DataError> {
    let Some(vocabulary) = vocabulary else { return Ok(SpecialTokens::NONE) };
    if vocabulary.entries > samples.vocab_size {
        let (vocab_size, max_token) = (samples.vocab_size.into(), vocabulary.entries - 1);
        return Err(DataError::VocabularyTooSmall { vocab_size, max_token });
    }
    with_mask_token(vocabulary.special, samples)
}

/// Returns the special tokens of windows of tokens: those of their tokenizer, or the last ones of the vocabulary.
pub(super) fn special_tokens_of_windows(
    spec: &SourceSpec,
    samples: &EncoderSamples,
    windows: &Dataset,
) -> Result<SpecialTokens, DataError> {
    if let Some(special) = spec.kind.tokenizer()?.and_then(|tokenizer| tokenizer.special_tokens()) {
        return with_mask_token(special, samples);
    }
    let words = samples.vocab_size.saturating_sub(SPECIAL_TOKENS);
    if windows.max_token() >= words && !matches!(spec.kind, SourceKind::Hdf5 { .. }) {
        let max_token = windows.max_token().saturating_add(SPECIAL_TOKENS);
        return Err(DataError::VocabularyTooSmall { vocab_size: samples.vocab_size.into(), max_token });
    }
    SpecialTokens::following(words, samples.mask_token)
}

/// Returns the special tokens of a vocabulary.
///
/// # Errors
/// The params name another mask.
fn with_mask_token(special: SpecialTokens, samples: &EncoderSamples) -> Result<SpecialTokens, DataError> {
    match samples.mask_token {
        Some(token) if i64::from(token) != i64::from(special.mask) => {
            Err(DataError::WrongMaskToken { token, expected: special.mask as u32 })
        }
        _ => Ok(special),
    }
}

/// Divides the paths of CSV files: the last one is that of the vocabulary, if rows contain words, and the one before it
/// that of the names of classes, if rows contain these.
pub(crate) fn data_and_vocabulary(paths: &[String], rows: CsvRows) -> (&[String], &[String]) {
    let others = usize::from(rows.has_words()) + usize::from(rows == CsvRows::TokenClasses);
    paths.split_at(paths.len().saturating_sub(others))
}
