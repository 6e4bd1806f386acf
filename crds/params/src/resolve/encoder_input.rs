//! Resolves the keys of an input that only encoders have, and checks that its data suit the model's task.

use super::check::ResolveContext;
use super::input_section::InputSection;
use crate::job::{CsvRows, DataSource, EncoderTask, MaskingSpec, ModelSpec, TfRecordRows};

/// Special tokens that follow the words of a source without words of its own: mask, beginning, end and padding.
const SPECIAL_TOKENS: usize = 4;
const VOCABULARY_HINT: &str = "name the text file with a word of the vocabulary per line";
const CLASSES_HINT: &str = "name the JSON file with the number of each class";

/// Returns the source of CSV files, which are read in the order of `paths`.
pub(super) fn csv(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    model: &ModelSpec,
    mut paths: Vec<String>,
    rows: CsvRows,
) -> DataSource {
    let rows = match rows {
        CsvRows::Summaries | CsvRows::SummariesWithWords if compares_words(s, model) => CsvRows::SummariesWithWords,
        CsvRows::SummariesWithWords => CsvRows::Summaries,
        rows => rows,
    };
    if paths.is_empty() || paths.iter().any(|path| path.trim().is_empty()) {
        check.report_missing(&s.key("data_dir"), "name at least one file, directory or glob");
    }
    if matches!(rows, CsvRows::Sentences | CsvRows::SentencePairs) {
        paths.iter_mut().for_each(|path| name_files_of_split(path, s.name == "eval_input"));
    }
    if rows == CsvRows::TokenClasses {
        match s.label_vocab_file {
            Some(file) if !file.trim().is_empty() => paths.push(file.to_owned()),
            _ => check.report_missing(&s.key("label_vocab_file"), CLASSES_HINT),
        }
    }
    if rows.has_words() {
        match s.vocab_file {
            Some(file) if !file.trim().is_empty() => paths.push(file.to_owned()),
            _ => check.report_missing(&s.key("vocab_file"), VOCABULARY_HINT),
        }
    }
    DataSource::Csv { paths, rows, is_lower_case: s.params.do_lower.unwrap_or(false) && rows.has_words() }
}

/// Returns the source of TFRecord files, which are read in the order of `paths`.
pub(super) fn records(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    model: &ModelSpec,
    mut paths: Vec<String>,
    rows: TfRecordRows,
) -> DataSource {
    let rows = match rows {
        TfRecordRows::Summaries | TfRecordRows::SummariesWithWords if compares_words(s, model) => {
            TfRecordRows::SummariesWithWords
        }
        TfRecordRows::SummariesWithWords => TfRecordRows::Summaries,
        rows => rows,
    };
    if let TfRecordRows::Sentences | TfRecordRows::SentencePairs = rows {
        paths.iter_mut().for_each(|path| name_records_of_split(path, rows, s.name == "eval_input"));
    }
    if !paths.is_empty() {
        let (file, key, hint) = match rows {
            TfRecordRows::TokenClasses => (s.label_vocab_file, "label_vocab_file", CLASSES_HINT),
            _ => (s.vocab_file, "vocab_file", VOCABULARY_HINT),
        };
        match file {
            _ if rows.vocabularies() == 0 => {}
            Some(file) if !file.trim().is_empty() => paths.push(file.to_owned()),
            _ => check.report_missing(&s.key(key), hint),
        }
    }
    // The zoo's TensorFlow programs convert sentences to lower case unless the params say otherwise.
    let is_lower_case = s.params.do_lower.unwrap_or(rows != TfRecordRows::Words);
    DataSource::TfRecords { paths, rows, is_lower_case: is_lower_case && rows.has_words() }
}

/// Returns whether words of summaries are compared, for which an input needs a vocabulary.
fn compares_words(s: &InputSection<'_>, model: &ModelSpec) -> bool {
    let task = model.encoder.as_ref().map(|encoder| &encoder.task);
    let is_compared = matches!(task, Some(EncoderTask::Summarization { compares_words: true, .. }));
    is_compared && s.vocab_file.is_some_and(|file| !file.trim().is_empty())
}

/// Names the files that `tensorflow_datasets` writes to its directory for training or evaluation.
fn name_records_of_split(path: &mut String, rows: TfRecordRows, is_evaluation: bool) {
    let is_file = path.contains("tfrecord") || path.contains(['*', '?', '[']);
    if !is_file && !path.trim().is_empty() {
        let dataset = if rows == TfRecordRows::SentencePairs { "mnli" } else { "sst2" };
        // Of MNLI there are two validation sets, which are read after each other.
        let split = if is_evaluation { "validation*" } else { "train" };
        *path = format!("{}/glue/{dataset}/*/glue-{split}.tfrecord*", path.trim_end_matches('/'));
    }
}

/// Names the files of a directory of GLUE that training and evaluation read.
fn name_files_of_split(path: &mut String, is_evaluation: bool) {
    let is_file = path.ends_with(".tsv") || path.contains(['*', '?', '[']);
    if !is_file && !path.trim().is_empty() {
        let name = if is_evaluation { "dev*.tsv" } else { "train.tsv" };
        *path = format!("{}/{name}", path.trim_end_matches('/'));
    }
}

/// Checks that the data of an input are those of the model's task, and returns how its tokens are masked.
pub(super) fn masking(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    source: &DataSource,
    model: &ModelSpec,
) -> Option<MaskingSpec> {
    let key = s.key("data_processor");
    let probability = check.probability(&s.key("masked_lm_prob"), s.params.masked_lm_prob, 0.15);
    let whole_words = check.either_spelling(
        &s.key("mask_whole_word"),
        s.params.mask_whole_word,
        &s.key("whole_word_masking"),
        s.params.whole_word_masking,
    );
    if probability == 0.0 {
        check.report_invalid(&s.key("masked_lm_prob"), "is 0, so that nothing is predicted", "use 0.15");
    }
    let name = s.params.data_processor.as_deref().unwrap_or("that of train_input");
    let Some(encoder) = &model.encoder else {
        let is_for_encoders = match source {
            DataSource::Csv { .. } | DataSource::EncoderHdf5 { .. } => true,
            DataSource::TfRecords { rows, .. } => *rows != TfRecordRows::Tokens,
            _ => false,
        };
        if is_for_encoders && model.seq2seq.is_none() {
            let message = format!("is {name}, whose samples are for encoders, but the model is a decoder");
            check.report_invalid(&key, message, "set model.name to a family of bert, or use other data");
        } else {
            note_unused_keys(check, s, matches!(source, DataSource::Lines { .. }));
        }
        return None;
    };
    let is_suitable = match (&encoder.task, source) {
        (EncoderTask::Pretraining { .. }, DataSource::Csv { rows, .. }) => {
            matches!(rows, CsvRows::Words | CsvRows::Masked)
        }
        (task, DataSource::TfRecords { rows, .. }) => is_of_task(*rows, task),
        (EncoderTask::Pretraining { .. }, _) => true,
        (EncoderTask::Classifier { .. }, DataSource::Csv { rows, .. }) => {
            matches!(rows, CsvRows::Sentences | CsvRows::SentencePairs)
        }
        (EncoderTask::TokenClassifier { .. }, DataSource::Csv { rows, .. }) => *rows == CsvRows::TokenClasses,
        (EncoderTask::Summarization { .. }, DataSource::Csv { rows, .. }) => {
            matches!(rows, CsvRows::Summaries | CsvRows::SummariesWithWords)
        }
        (EncoderTask::QuestionAnswering {}, DataSource::Csv { rows, .. }) => *rows == CsvRows::Answers,
        _ => false,
    };
    if !is_suitable && !check.has_problem(&key) && !s.inherits_silently {
        let message = format!("is {name}, whose samples are not those of the model's task");
        check.report_invalid(&key, message, "use the data processor of the task, or name another model");
    }
    if let (EncoderTask::Pretraining { predicts_next_sentence: true, .. }, DataSource::EncoderHdf5 { .. }) =
        (&encoder.task, source)
    {
        let message = "must be true: the samples of BertHDF5DataProcessor have no second sentences";
        check.report_invalid("model.disable_nsp", message, "set it");
    }
    check_special_tokens(check, source, model);
    note_keys_of_other_tasks(check, s, source, &encoder.task);
    let is_masked = match source {
        DataSource::Csv { rows, .. } => *rows == CsvRows::Masked,
        DataSource::TfRecords { rows, .. } => *rows == TfRecordRows::Masked,
        DataSource::EncoderHdf5 { .. } => true,
        _ => false,
    };
    let is_pretraining = matches!(encoder.task, EncoderTask::Pretraining { .. });
    (is_pretraining && !is_masked).then_some(MaskingSpec { probability, whole_words: whole_words.unwrap_or(false) })
}

/// Returns whether records are those of a task.
const fn is_of_task(rows: TfRecordRows, task: &EncoderTask) -> bool {
    match rows {
        TfRecordRows::Tokens => false,
        TfRecordRows::Masked | TfRecordRows::Words => matches!(task, EncoderTask::Pretraining { .. }),
        TfRecordRows::Sentences | TfRecordRows::SentencePairs => matches!(task, EncoderTask::Classifier { .. }),
        TfRecordRows::TokenClasses => matches!(task, EncoderTask::TokenClassifier { .. }),
        TfRecordRows::Summaries | TfRecordRows::SummariesWithWords => {
            matches!(task, EncoderTask::Summarization { .. })
        }
        TfRecordRows::Answers => matches!(task, EncoderTask::QuestionAnswering {}),
    }
}

/// Notes keys of an encoder's input that its task or its data do not use.
fn note_keys_of_other_tasks(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    source: &DataSource,
    task: &EncoderTask,
) {
    let has_words = match source {
        DataSource::Csv { rows, .. } => rows.has_words(),
        DataSource::TfRecords { rows, .. } => rows.has_words(),
        _ => false,
    };
    let of_task = |is_used: bool| (!is_used).then_some("the model has another task");
    let of_data = |is_used: bool| (!is_used).then_some("the data contain numbers of tokens");
    let is_pretraining = matches!(task, EncoderTask::Pretraining { .. });
    let keys = [
        ("vocab_file", s.params.vocab_file.is_some(), of_data(has_words)),
        ("do_lower", s.params.do_lower.is_some(), of_data(has_words)),
        ("max_predictions_per_seq", s.params.max_predictions_per_seq.is_some(), of_task(is_pretraining)),
        (
            "max_cls_tokens",
            s.params.max_cls_tokens.is_some(),
            of_task(matches!(task, EncoderTask::Summarization { .. })),
        ),
    ];
    for (key, _, reason) in keys.into_iter().filter(|(_, is_given, _)| *is_given) {
        if let Some(reason) = reason {
            check.note(format!("{} has no effect: {reason}", s.key(key)));
        }
    }
}

/// Notes keys of encoders in an input of a decoder.
fn note_unused_keys(check: &mut ResolveContext<'_>, s: &InputSection<'_>, has_words: bool) {
    let keys = [
        ("vocab_file", s.params.vocab_file.is_some() && !has_words),
        ("label_vocab_file", s.params.label_vocab_file.is_some()),
        ("do_lower", s.params.do_lower.is_some() && !has_words),
        ("max_predictions_per_seq", s.params.max_predictions_per_seq.is_some()),
        ("masked_lm_prob", s.params.masked_lm_prob.is_some()),
        ("mask_whole_word", s.params.mask_whole_word.or(s.params.whole_word_masking).is_some()),
        ("max_cls_tokens", s.params.max_cls_tokens.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        check.note(format!("{} has no effect: the model is a decoder", s.key(key)));
    }
}

/// Checks that the vocabulary has room for the special tokens of a text, which are its last four.
fn check_special_tokens(check: &mut ResolveContext<'_>, source: &DataSource, model: &ModelSpec) {
    let words = match source {
        // Those of a file are checked when it is read.
        DataSource::Text { tokenizer, .. } => match tokenizer.vocab_size() {
            Some(words) => words,
            None => return,
        },
        DataSource::Synthetic {} => 2,
        DataSource::Tokens { .. } | DataSource::Hdf5 { .. } => 1,
        _ => return,
    };
    let needed = words + SPECIAL_TOKENS;
    if model.vocab_size < needed && !check.has_problem("model.vocab_size") {
        let message =
            format!("is {}, too small for {words} tokens and {SPECIAL_TOKENS} special ones", model.vocab_size);
        check.report_invalid("model.vocab_size", message, format!("set it to {needed}"));
    }
    let mask_token = model.encoder.as_ref().and_then(|encoder| encoder.mask_token);
    let first = model.vocab_size.saturating_sub(SPECIAL_TOKENS);
    if mask_token.is_some_and(|token| (token as usize) < first) && !check.has_problem("model.mask_token_id") {
        let message = format!("must be one of the last {SPECIAL_TOKENS} tokens of the vocabulary, which are special");
        check.report_invalid("model.mask_token_id", message, format!("use {first}, or leave it out"));
    }
}
