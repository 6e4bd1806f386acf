//! TFRecord files as the public model zoo writes them: a sample of a decoder or of an encoder in each record.
//!
//! | rows | features |
//! |---|---|
//! | tokens | `input_ids`, `labels`, and `input_mask` or `attention_mask`, which is 0 where a label does not count |
//! | masked | `input_ids`, `input_mask`, `masked_lm_positions`, `_ids` and `_weights`, and optionally those below |
//! | words | `tokens`, a sequence of words of the vocabulary |
//! | sentences, pairs | `sentence`, or `premise` and `hypothesis`, and `label`, as `tensorflow_datasets` writes GLUE |
//! | token classes | `input_ids`, `input_mask`, `segment_ids`, `label_ids` |
//! | summaries | `input_ids`, `input_mask`, `segment_ids`, `cls_indices`, `labels`, `cls_weights` |
//! | answers | `input_ids`, `input_mask`, `segment_ids`, `start_positions`, `end_positions` |
//!
//! * Masked records may have `segment_ids`; they need `next_sentence_labels` if the model predicts the next sentence.
//! * The value of `input_mask` that the first token has marks tokens, and the other one padding: the zoo's files for
//!   BERT mark padding by 1.
//! * Every record is checked when it is read: its checksum, its features and their lengths, and every token.

mod example;
mod fine_tuning;
mod frame;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub(crate) use fine_tuning::{answer_row, sentences, summary_row, token_classes_row};

pub(crate) use frame::{Record, TfRecordFiles};
pub use frame::{TfRecordProblem, tfrecord_frame};

use crate::DataError;
use crate::encoder::Row;
use crate::files::expand;
use crate::hdf5::SampleProblem;
use example::Example;

/// A label that does not count.
const NO_LABEL: i32 = -1;
/// The label that PyTorch's cross-entropy ignores.
const IGNORED_LABEL: i64 = -100;

/// What a record contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TfRecordRows {
    /// Tokens, a mask and labels, for a decoder.
    Tokens,
    /// Masked tokens and what is predicted, for an encoder.
    Masked,
    /// Words of a vocabulary, for an encoder; tokens are masked when they are read.
    Words,
    /// A sentence and its class.
    Sentences,
    /// Two sentences and their class.
    SentencePairs,
    /// Tokens with the number of a class for each.
    TokenClasses,
    /// Tokens, the places of sentences, and whether each belongs to the summary.
    Summaries,
    /// Like `Summaries`, with a vocabulary, so that the words of summaries can be compared.
    SummariesWithWords,
    /// The tokens of a question and a text, and the positions of the answer.
    Answers,
}

impl TfRecordRows {
    /// Returns whether the last path is that of a vocabulary.
    pub const fn has_words(self) -> bool {
        matches!(self, Self::Words | Self::Sentences | Self::SentencePairs | Self::SummariesWithWords)
    }

    const fn is_of_datasets(self) -> bool {
        matches!(self, Self::Sentences | Self::SentencePairs)
    }
}

/// Returns the files of `entries`. A directory stands for its `*.tfrecord*` files, as in the public model zoo. Of the
/// versions of a dataset that `tensorflow_datasets` prepared, the newest is read.
pub(crate) fn record_files(entries: &[String], rows: TfRecordRows) -> Result<Vec<PathBuf>, DataError> {
    match expand(entries, "tfrecord*") {
        Ok(files) if rows.is_of_datasets() => Ok(newest_versions(files)),
        Err(DataError::NoMatch { pattern, .. }) if rows.is_of_datasets() => Err(DataError::NotPrepared { pattern }),
        files => files,
    }
}

/// Removes files whose directory is that of an older version, such as `1.0.0` beside `2.0.0`.
fn newest_versions(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    fn version(file: &Path) -> Option<(PathBuf, [u32; 3])> {
        let directory = file.parent()?;
        let parts = directory.file_name()?.to_str()?.split('.').map(|part| part.parse().ok());
        let version: Vec<u32> = parts.collect::<Option<_>>()?;
        Some((directory.parent()?.to_owned(), version.try_into().ok()?))
    }
    let mut newest: HashMap<PathBuf, [u32; 3]> = HashMap::new();
    for (dataset, version) in files.iter().filter_map(|file| version(file)) {
        let found = newest.entry(dataset).or_insert(version);
        *found = version.max(*found);
    }
    files.retain(|file| version(file).is_none_or(|(dataset, version)| newest.get(&dataset) == Some(&version)));
    files
}

/// Divides the paths of a source into records, and the vocabulary or the names of classes.
pub(crate) fn records_and_vocabulary(paths: &[String], rows: TfRecordRows) -> (&[String], &[String]) {
    let others = usize::from(rows.has_words() || rows == TfRecordRows::TokenClasses);
    paths.split_at(paths.len().saturating_sub(others))
}

/// Samples of a decoder.
pub(crate) struct TfRecordStore {
    pub files: TfRecordFiles,
    pub vocab_size: u32,
}

impl TfRecordStore {
    /// Writes record `number`, which must exist, to slices of the length of a sample.
    pub fn read_sample(&self, number: u64, input_ids: &mut [i32], labels: &mut [i32]) -> Result<(), DataError> {
        let record = self.files.record(number);
        let read = parse(&record).and_then(|example| self.fill(&example, input_ids, labels));
        read.map_err(|problem| record.error(problem))
    }

    fn fill(&self, example: &Example, input_ids: &mut [i32], labels: &mut [i32]) -> Result<(), SampleProblem> {
        let vocab_size = self.vocab_size;
        let is_token = |token: i64| u32::try_from(token).is_ok_and(|token| token < vocab_size);
        let length = input_ids.len();
        let tokens = sized(example, &["input_ids"], length)?;
        let mask = sized(example, &["input_mask", "attention_mask"], length)?;
        let targets = sized(example, &["labels"], length)?;
        for (to, &token) in input_ids.iter_mut().zip(&tokens) {
            if !is_token(token) {
                return Err(SampleProblem::TokenOutsideVocabulary { token, vocab_size });
            }
            *to = token as i32;
        }
        for ((to, &label), &mask) in labels.iter_mut().zip(&targets).zip(&mask) {
            *to = match mask {
                0 => NO_LABEL,
                1 if label == IGNORED_LABEL => NO_LABEL,
                1 if is_token(label) => label as i32,
                1 => return Err(SampleProblem::LabelOutsideVocabulary { label, vocab_size }),
                value => return Err(SampleProblem::MaskValue { value: i32::try_from(value).unwrap_or(i32::MAX) }),
            };
        }
        Ok(())
    }
}

impl Record<'_> {
    pub fn error(&self, problem: SampleProblem) -> DataError {
        DataError::BadSample { path: self.path.to_owned(), unit: "record", number: self.number, problem }
    }
}

fn parse(record: &Record<'_>) -> Result<Example, SampleProblem> {
    if !record.is_intact {
        return Err(SampleProblem::WrongChecksum);
    }
    Example::parse(record.data).ok_or(SampleProblem::NotAnExample)
}

/// Returns the integers of the first of these features that the example has.
fn required(example: &Example, names: &[&'static str]) -> Result<Vec<i64>, SampleProblem> {
    let missing = SampleProblem::MissingFeature { name: names.first().copied().unwrap_or_default() };
    names.iter().find_map(|name| example.integers(name)).ok_or(missing)
}

fn sized(example: &Example, names: &[&'static str], expected: usize) -> Result<Vec<i64>, SampleProblem> {
    let values = required(example, names)?;
    if values.len() == expected {
        return Ok(values);
    }
    let name = names.first().copied().unwrap_or_default();
    Err(SampleProblem::FeatureLength { name, found: values.len(), expected })
}

/// Returns a number of an example as one of a sample; one that has no place there becomes one that is rejected.
fn narrow(number: i64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Returns the tokens before the padding, and the segments, of samples of `length` tokens.
fn tokens_and_segments(example: &Example, length: usize) -> Result<Row, SampleProblem> {
    let ids = sized(example, &["input_ids"], length)?;
    let mask = sized(example, &["input_mask", "attention_mask"], length)?;
    let used = mask.iter().take_while(|value| Some(*value) == mask.first()).count();
    if mask.iter().skip(used).any(|value| Some(value) == mask.first()) {
        let expected = "a mask of tokens that are followed by padding";
        return Err(SampleProblem::Malformed { column: "input_mask", expected });
    }
    let segments = example.integers("segment_ids").or_else(|| example.integers("token_type_ids")).unwrap_or_default();
    Ok(Row {
        tokens: ids.into_iter().take(used).map(narrow).collect(),
        segments: segments.into_iter().map(narrow).collect(),
        ..Row::default()
    })
}

/// Reads a record of masked tokens for samples of `length` tokens.
pub(crate) fn masked_row(record: &Record<'_>, length: usize, predicts_next: bool) -> Result<Row, SampleProblem> {
    let example = parse(record)?;
    let row = tokens_and_segments(&example, length)?;
    let positions = required(&example, &["masked_lm_positions"])?;
    let labels = sized(&example, &["masked_lm_ids"], positions.len())?;
    let weights = example.flags("masked_lm_weights");
    let weights = weights.ok_or(SampleProblem::MissingFeature { name: "masked_lm_weights" })?;
    if weights.len() != positions.len() {
        let (found, expected) = (weights.len(), positions.len());
        return Err(SampleProblem::FeatureLength { name: "masked_lm_weights", found, expected });
    }
    let predictions = positions.iter().zip(labels).zip(weights).filter(|(_, counts)| *counts);
    let predictions = predictions.map(|((position, label), _)| {
        let position = usize::try_from(*position).map_err(|_| {
            let expected = "a list of positions of the sample";
            SampleProblem::Malformed { column: "masked_lm_positions", expected }
        })?;
        Ok((position, narrow(label)))
    });
    let label = match predicts_next {
        true => sized(&example, &["next_sentence_labels", "next_sentence_label"], 1)?[0],
        false => 0,
    };
    Ok(Row { predictions: predictions.collect::<Result<_, SampleProblem>>()?, label: narrow(label), ..row })
}

/// Reads a record of words, of which `number` returns the token, for samples of `length` tokens.
pub(crate) fn words_row(
    record: &Record<'_>,
    length: usize,
    number: impl Fn(&str) -> i32,
) -> Result<Row, SampleProblem> {
    let words = parse(record)?.words("tokens").ok_or(SampleProblem::MissingFeature { name: "tokens" })?;
    let words = &words[..words.len().min(length)];
    Ok(Row {
        tokens: words.iter().map(|word| number(word)).collect(),
        continues: words.iter().map(|word| word.starts_with("##")).collect(),
        ..Row::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use example::tests::example;
    use frame::tfrecord_frame as frame;

    fn record(features: &[(&str, &[i64])]) -> Vec<u8> {
        frame(&example(features))
    }

    fn store(bytes: &[u8]) -> TfRecordStore {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tfrecords");
        std::fs::write(&path, bytes).unwrap();
        TfRecordStore {
            files: TfRecordFiles::open(
                &record_files(&[dir.path().display().to_string()], TfRecordRows::Tokens).unwrap(),
            )
            .unwrap(),
            vocab_size: 10,
        }
    }

    fn sample(bytes: &[u8]) -> Result<([i32; 3], [i32; 3]), String> {
        let (mut input_ids, mut labels) = ([0; 3], [0; 3]);
        let read = store(bytes).read_sample(0, &mut input_ids, &mut labels);
        read.map(|()| (input_ids, labels)).map_err(|error| error.to_string())
    }

    #[test]
    fn samples_of_decoders_are_read_and_checked() {
        let ids: (&str, &[i64]) = ("input_ids", &[1, 2, 3]);
        let mask: (&str, &[i64]) = ("attention_mask", &[1, 1, 0]);
        let labels: (&str, &[i64]) = ("labels", &[2, -100, 4]);
        assert_eq!(sample(&record(&[ids, mask, labels])), Ok(([1, 2, 3], [2, -1, -1])));
        for (features, message) in [
            (vec![ids, labels], "it has no feature input_mask"),
            (vec![ids, mask, ("labels", &[2, 3])], "its feature labels has 2 values; expected 3"),
            (vec![("input_ids", &[1, 10, 3]), mask, labels], "token 10 is outside the vocabulary of 10"),
            (vec![ids, mask, ("labels", &[-7, 3, 4])], "label -7 is outside"),
            (vec![ids, ("input_mask", &[2, 0, 0]), labels], "a loss mask has the value 2"),
        ] {
            let error = sample(&record(&features)).unwrap_err();
            assert!(error.contains(message) && error.contains("record 0 of "), "{error}");
        }
        assert!(sample(&frame(b"\xff")).unwrap_err().contains("is no tf.train.Example"));
        let mut flipped = record(&[ids, mask, labels]);
        flipped[20] ^= 1;
        assert!(sample(&flipped).unwrap_err().contains("its checksum is wrong"));
    }

    #[test]
    fn rows_of_encoders_have_either_mask() {
        let row = |mask: &[i64], next: bool| {
            let store = store(&record(&[
                ("input_ids", &[1, 2, 3, 0]),
                ("input_mask", mask),
                ("segment_ids", &[0, 0, 1, 0]),
                ("masked_lm_positions", &[1, 2, 0]),
                ("masked_lm_ids", &[7, 8, 0]),
                ("masked_lm_weights", &[1, 1, 0]),
                ("next_sentence_labels", &[1]),
            ]));
            masked_row(&store.files.record(0), 4, next)
        };
        let expected = Row {
            tokens: vec![1, 2, 3],
            segments: vec![0, 0, 1, 0],
            predictions: vec![(1, 7), (2, 8)],
            label: 1,
            ..Row::default()
        };
        assert_eq!(row(&[1, 1, 1, 0], true).unwrap(), expected);
        assert_eq!(row(&[0, 0, 0, 1], true).unwrap(), expected, "the zoo marks padding");
        assert_eq!(row(&[0, 0, 0, 1], false).unwrap(), Row { label: 0, ..expected });
        assert!(row(&[1, 0, 1, 0], true).is_err());
    }
}
