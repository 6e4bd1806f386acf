//! Reads records for the fine-tuning of encoders: classes of sentences and of tokens, summaries and answers.

use super::{Record, narrow, parse, required, sized, tokens_and_segments};
use crate::encoder::Row;
use crate::hdf5::{NO_LABEL, SampleProblem};

/// A record of `tensorflow_datasets` with one or two sentences, which are not divided into words yet.
pub(crate) struct SentenceRecord {
    pub first: String,
    pub second: Option<String>,
    pub class: i32,
}

/// Reads a sentence and its class (SST-2), or two (MNLI).
pub(crate) fn sentences(record: &Record<'_>, is_pair: bool) -> Result<SentenceRecord, SampleProblem> {
    let example = parse(record)?;
    let text = |name: &'static str| example.text(name).ok_or(SampleProblem::MissingFeature { name });
    let first = text(if is_pair { "premise" } else { "sentence" })?;
    let second = is_pair.then(|| text("hypothesis")).transpose()?;
    Ok(SentenceRecord { first, second, class: narrow(sized(&example, &["label"], 1)?[0]) })
}

/// Reads tokens with a class for each. Without `counts_padding`, the classes of padding are left out.
pub(crate) fn token_classes_row(
    record: &Record<'_>,
    length: usize,
    counts_padding: bool,
) -> Result<Row, SampleProblem> {
    let example = parse(record)?;
    let row = tokens_and_segments(&example, length)?;
    let classes = sized(&example, &["label_ids"], length)?;
    let counted = if counts_padding { length } else { row.tokens.len() };
    let predictions = classes.into_iter().take(counted).map(narrow).enumerate().collect();
    Ok(Row { predictions, ..row })
}

/// Reads a text with the positions of the tokens before its sentences, and whether each belongs to the summary.
pub(crate) fn summary_row(record: &Record<'_>, length: usize) -> Result<Row, SampleProblem> {
    let example = parse(record)?;
    let row = tokens_and_segments(&example, length)?;
    let positions = required(&example, &["cls_indices"])?;
    let labels = sized(&example, &["labels"], positions.len())?;
    let weights = example.flags("cls_weights").ok_or(SampleProblem::MissingFeature { name: "cls_weights" })?;
    if weights.len() != positions.len() {
        let (found, expected) = (weights.len(), positions.len());
        return Err(SampleProblem::FeatureLength { name: "cls_weights", found, expected });
    }
    let sentences = positions.into_iter().zip(labels).zip(weights).filter(|(_, counts)| *counts);
    let predictions = sentences.map(|((place, label), _)| Ok((position("cls_indices", place)?, narrow(label))));
    Ok(Row { predictions: predictions.collect::<Result<_, SampleProblem>>()?, ..row })
}

/// Reads a question and a text with the positions of the answer. One beyond the sample does not count.
pub(crate) fn answer_row(record: &Record<'_>, length: usize) -> Result<Row, SampleProblem> {
    let example = parse(record)?;
    let row = tokens_and_segments(&example, length)?;
    let place = |name: &'static str| {
        let found = position(name, sized(&example, &[name], 1)?[0])?;
        Ok::<_, SampleProblem>((0, if found < length { found as i32 } else { NO_LABEL }))
    };
    Ok(Row { predictions: vec![place("start_positions")?, place("end_positions")?], ..row })
}

fn position(column: &'static str, number: i64) -> Result<usize, SampleProblem> {
    usize::try_from(number).map_err(|_| SampleProblem::Malformed { column, expected: "positions of the sample" })
}

#[cfg(test)]
mod tests {
    use super::super::example::tests::{example, example_with_texts};
    use super::super::{TfRecordFiles, TfRecordRows, record_files, tfrecord_frame};
    use super::*;

    /// Calls `read` with the only record of a file.
    fn with_record<T>(example: &[u8], read: impl FnOnce(&Record<'_>) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tf_record");
        std::fs::write(&path, tfrecord_frame(example)).unwrap();
        read(&TfRecordFiles::open(&[path]).unwrap().record(0))
    }

    const IDS: (&str, &[i64]) = ("input_ids", &[1, 2, 3, 0]);
    const MASK: (&str, &[i64]) = ("input_mask", &[1, 1, 1, 0]);
    const SEGMENTS: (&str, &[i64]) = ("segment_ids", &[0, 1, 1, 0]);

    fn row(predictions: Vec<(usize, i32)>) -> Row {
        Row { tokens: vec![1, 2, 3], segments: vec![0, 1, 1, 0], predictions, ..Row::default() }
    }

    #[test]
    fn classes_of_tokens_include_padding_on_request() {
        let bytes = example(&[IDS, MASK, SEGMENTS, ("label_ids", &[4, 5, 6, 1])]);
        let read = |counts_padding| with_record(&bytes, |record| token_classes_row(record, 4, counts_padding).unwrap());
        assert_eq!(read(false), row(vec![(0, 4), (1, 5), (2, 6)]));
        assert_eq!(read(true), row(vec![(0, 4), (1, 5), (2, 6), (3, 1)]));
    }

    #[test]
    fn summaries_and_answers_are_read_and_checked() {
        // The zoo marks padding of these samples by 1.
        let mask = ("input_mask", &[0, 0, 0, 1][..]);
        let sentences: &[(&str, &[i64])] = &[("cls_indices", &[0, 2, 0]), ("labels", &[1, 0, 0])];
        let read = |weights: &[i64]| {
            let bytes = example(&[&[IDS, mask, SEGMENTS, ("cls_weights", weights)], sentences].concat());
            with_record(&bytes, |record| summary_row(record, 4))
        };
        assert_eq!(read(&[1, 1, 0]).unwrap(), row(vec![(0, 1), (2, 0)]));
        assert!(read(&[1, 1]).unwrap_err().to_string().contains("cls_weights has 2 values; expected 3"));

        let read = |first: &[i64], last: &[i64]| {
            let bytes = example(&[IDS, MASK, SEGMENTS, ("start_positions", first), ("end_positions", last)]);
            with_record(&bytes, |record| answer_row(record, 4))
        };
        assert_eq!(read(&[1], &[7]).unwrap(), row(vec![(0, 1), (0, NO_LABEL)]));
        assert!(read(&[-1], &[2]).unwrap_err().to_string().contains("start_positions"));
        assert!(read(&[1], &[]).unwrap_err().to_string().contains("end_positions has 0 values"));
    }

    #[test]
    fn sentences_of_datasets_have_texts() {
        let pair = example_with_texts(&[("label", &[2]), ("idx", &[7])], &[("premise", "a b"), ("hypothesis", "c")]);
        let found = with_record(&pair, |record| sentences(record, true).unwrap());
        assert_eq!((found.first.as_str(), found.second.as_deref(), found.class), ("a b", Some("c"), 2));
        let error = with_record(&pair, |record| sentences(record, false).err().unwrap().to_string());
        assert!(error.contains("no feature sentence"), "{error}");
    }

    #[test]
    fn newest_version_of_a_dataset_is_read() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["1.0.0", "10.0.0", "2.0.0"] {
            let directory = dir.path().join("glue/sst2").join(version);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("glue-train.tfrecord-00000-of-00001"), "").unwrap();
        }
        let pattern = |name: &str| format!("{}/glue/{name}/*/glue-train.tfrecord*", dir.path().display());
        let files = record_files(&[pattern("sst2")], TfRecordRows::Sentences).unwrap();
        assert_eq!(files, [dir.path().join("glue/sst2/10.0.0/glue-train.tfrecord-00000-of-00001")]);
        let error = record_files(&[pattern("mnli")], TfRecordRows::SentencePairs).unwrap_err();
        assert!(error.hint().contains("MNLIDataProcessor"), "{error}: {}", error.hint());
    }
}
