//! Samples of encoders (BERT): tokens with a mask of attention, segments, and what is predicted.
//!
//! ```text
//! windows of a text   [CLS] first half [SEP] second half, or one of another place [SEP]   masked when they are read
//! rows of CSV files   words, masked tokens, sentences with classes, texts with sentences, questions with answers
//! HDF5 files          masked tokens
//! TFRecord files      masked tokens, words, sentences with classes, and others as in CSV files
//! ```
//!
//! * A sample is a function of (source, specification, number), masks and random tokens included.
//! * Every token is below the size of the vocabulary, every label below the number of classes, and every position
//!   inside of the sample: otherwise the file and the row are named.
//! * The special tokens of a text are those of its tokenizer, or the last four of the vocabulary: mask, beginning, end,
//!   and padding. If another of them is the mask, the others follow in this order.

mod csv;
mod masking;
mod row;
mod word_piece;
mod words;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub use csv::CsvProblem;
pub(crate) use masking::SampleRandom;
pub use masking::{Masking, SpecialTokens};
pub use row::CsvRows;
pub(crate) use row::Row;
pub use word_piece::word_piece_tokenizer;
pub use words::VocabularyProblem;
pub(crate) use words::read_vocabulary;

use crate::files::expand;
use crate::hdf5::{ExpectedSamples, Hdf5Size, Hdf5Store, SampleProblem};
use crate::order::SampleOrder;
use crate::split::{order_of, split_range};
use crate::tfrecord::{self, Record, TfRecordFiles, TfRecordRows};
use crate::{DataError, Dataset, ElementType, SampleInput, SourceKind, SourceSpec};
use csv::CsvFiles;
use words::{Vocabulary, read_classes};

/// A label that does not count.
const NO_LABEL: i32 = -1;
/// Number of special tokens at the end of the vocabulary of an encoder that reads text.
pub const SPECIAL_TOKENS: u32 = 4;

/// What a sample of an encoder contains.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSamples {
    /// What is predicted.
    pub task: EncoderLabels,
    /// Whether there are segments.
    pub has_segments: bool,
    /// Size of the model's vocabulary.
    pub vocab_size: u32,
    /// The token that masks others; `None` for that of the words, or the first special token of a text.
    pub mask_token: Option<u32>,
    /// How tokens are masked; `None` if the data contain masked tokens, or none are predicted.
    pub masking: Option<Masking>,
    /// Seed of the masks.
    pub seed: u64,
    /// Whether a sample may contain several sequences, and says where they are.
    pub is_packed: bool,
}

/// What an encoder predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderLabels {
    /// Masked tokens.
    Tokens {
        /// Maximum number in a sample, whose positions are an input; `None` for labels at all positions.
        max_predictions: Option<usize>,
        /// Whether the model also predicts that the second segment does not follow the first.
        predicts_next_sentence: bool,
    },
    /// The class of the sample, below this number.
    Class { classes: u32 },
    /// The class of each token, below this number.
    TokenClasses {
        classes: u32,
        /// Whether padding counts, as class 0.
        counts_padding: bool,
    },
    /// Of each sentence, whether it belongs to the summary.
    Sentences { max_sentences: usize },
    /// The first and the last position of an answer.
    Span,
}

impl EncoderSamples {
    fn predicts_next_sentence(&self) -> bool {
        matches!(self.task, EncoderLabels::Tokens { predicts_next_sentence: true, .. })
    }

    /// Returns the tokens of a window of a text, beside the special tokens of a sample of `length`.
    pub(crate) fn window_length(&self, length: usize) -> usize {
        length.saturating_sub(if self.predicts_next_sentence() { 3 } else { 2 }).max(1)
    }

    /// Returns the names of the arrays of a sample, and the number of elements of each.
    fn arrays(&self, length: usize) -> Vec<(&'static str, usize)> {
        let mut arrays = vec![("input_ids", length), ("attention_mask", length)];
        if self.has_segments {
            arrays.push(("token_type_ids", length));
        }
        match self.task {
            EncoderLabels::Tokens { max_predictions: Some(count), .. } => {
                arrays.extend([("masked_lm_positions", count), ("labels", count)]);
            }
            EncoderLabels::Tokens { max_predictions: None, .. } | EncoderLabels::TokenClasses { .. } => {
                arrays.push(("labels", length));
            }
            EncoderLabels::Class { .. } => arrays.push(("labels", 1)),
            EncoderLabels::Span => arrays.push(("labels", 2)),
            EncoderLabels::Sentences { max_sentences } => {
                arrays.extend([("cls_token_positions", max_sentences), ("labels", max_sentences)]);
            }
        }
        if self.predicts_next_sentence() {
            arrays.push(("next_sentence_label", 1));
        }
        if self.is_packed {
            arrays.extend([("attention_span", length), ("position_ids", length)]);
        }
        arrays
    }

    fn hash(&self, hasher: &mut blake3::Hasher) {
        let (kind, count) = match self.task {
            EncoderLabels::Tokens { max_predictions, .. } => (0, max_predictions.map_or(0, |count| count as u64 + 1)),
            EncoderLabels::Class { classes } => (1, u64::from(classes)),
            EncoderLabels::Sentences { max_sentences } => (2, max_sentences as u64),
            EncoderLabels::TokenClasses { classes, counts_padding: false } => (3, u64::from(classes)),
            EncoderLabels::TokenClasses { classes, counts_padding: true } => (4, u64::from(classes)),
            EncoderLabels::Span => (5, 2),
        };
        let flags = u64::from(self.has_segments) + 2 * u64::from(self.predicts_next_sentence());
        for number in [kind, count, flags, self.vocab_size.into(), self.seed] {
            hasher.update(&number.to_le_bytes());
        }
        if self.is_packed {
            hasher.update(b"packed");
        }
        if let Some(token) = self.mask_token {
            hasher.update(b"mask").update(&token.to_le_bytes());
        }
        if let Some(masking) = self.masking {
            hasher.update(&masking.probability.to_le_bytes()).update(&[u8::from(masking.whole_words)]);
        }
    }
}

/// An open source of samples of an encoder.
pub(crate) struct EncoderSource {
    samples: EncoderSamples,
    length: usize,
    rows: RowSource,
    special: SpecialTokens,
    pub fingerprint: [u8; 32],
}

enum RowSource {
    Windows(Dataset),
    Csv { files: CsvFiles, rows: CsvRows, vocabulary: Option<Vocabulary>, order: SampleOrder },
    Records { files: TfRecordFiles, rows: RecordRows, order: SampleOrder },
    Stored { store: Hdf5Store, order: SampleOrder },
}

/// What the records of TFRecord files contain, with what is needed to read them.
enum RecordRows {
    Masked,
    Words(Vocabulary),
    /// Sentences; in pairs, if the flag is set.
    Sentences(Vocabulary, bool),
    /// Classes of tokens, with the number of each by its name.
    TokenClasses(HashMap<String, i32>),
    Summaries,
    Answers,
}

impl RecordRows {
    fn vocabulary(&self) -> Option<&Vocabulary> {
        if let Self::Words(vocabulary) | Self::Sentences(vocabulary, _) = self { Some(vocabulary) } else { None }
    }
}

/// Where a sample comes from, for messages.
#[derive(Clone)]
struct RowLocation {
    path: PathBuf,
    unit: &'static str,
    number: u64,
}

impl EncoderSource {
    /// Opens the source of `spec` as samples of an encoder.
    pub fn open(
        spec: &SourceSpec,
        samples: &EncoderSamples,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, DataError> {
        let mut hasher = blake3::Hasher::new_derive_key("millrace samples of encoders, version 1");
        samples.hash(&mut hasher);
        hasher.update(&(spec.seq_len as u64).to_le_bytes());
        let (rows, special) = match &spec.kind {
            SourceKind::Csv { paths, rows, is_lower_case } => {
                let (source, special) = open_csv(spec, samples, paths, *rows, *is_lower_case)?;
                if let RowSource::Csv { files, vocabulary, order, .. } = &source {
                    hasher.update(&files.digest);
                    hasher.update(&vocabulary.as_ref().map_or([0; 32], |vocabulary| vocabulary.digest));
                    order.hash(&mut hasher);
                }
                (source, special)
            }
            SourceKind::TfRecords { paths, rows, is_lower_case, .. } => {
                let (source, special) = open_records(spec, samples, paths, *rows, *is_lower_case)?;
                if let RowSource::Records { files, rows, order } = &source {
                    hasher.update(&files.digest);
                    hasher.update(&rows.vocabulary().map_or([0; 32], |vocabulary| vocabulary.digest));
                    order.hash(&mut hasher);
                }
                (source, special)
            }
            SourceKind::EncoderHdf5 { paths } => {
                let expected =
                    ExpectedSamples { length: spec.seq_len, is_packed: samples.is_packed, is_for_encoder: true };
                let store = Hdf5Store::open(&expand(paths, "h5")?, expected, samples.vocab_size)?;
                let Hdf5Size::Samples(count) = store.size() else { return Err(DataError::NotForEncoders) };
                let order = order_of(spec, split_range(spec, count))?;
                hasher.update(&store.digest);
                order.hash(&mut hasher);
                (RowSource::Stored { store, order }, SpecialTokens::NONE)
            }
            _ => {
                let windows = Dataset::open(&spec.windows_of_encoder(samples), progress)?;
                hasher.update(&windows.fingerprint());
                let special = special_tokens_of_windows(spec, samples, &windows)?;
                (RowSource::Windows(windows), special)
            }
        };
        let fingerprint = *hasher.finalize().as_bytes();
        let source = Self { samples: samples.clone(), length: spec.seq_len, rows, special, fingerprint };
        // A row that can't be read is found before training begins.
        source.read(0, &mut source.empty())?;
        Ok(source)
    }

    /// Returns the number of samples in a pass.
    pub fn samples_per_pass(&self) -> u64 {
        match &self.rows {
            RowSource::Windows(windows) => windows.windows(),
            RowSource::Csv { order, .. } | RowSource::Records { order, .. } | RowSource::Stored { order, .. } => {
                order.samples_per_pass()
            }
        }
    }

    pub fn vocab_size(&self) -> u32 {
        self.samples.vocab_size
    }

    fn arrays(&self) -> Vec<(&'static str, usize)> {
        self.samples.arrays(self.length)
    }

    /// Returns the classes of tokens whose names begin with B or I, which label the beginning and the inside of an
    /// entity; `None` if the classes have no names.
    pub fn entity_classes(&self) -> Option<Vec<usize>> {
        let classes = match &self.rows {
            RowSource::Csv { vocabulary: Some(vocabulary), rows: CsvRows::TokenClasses, .. } => &vocabulary.classes,
            RowSource::Records { rows: RecordRows::TokenClasses(classes), .. } => classes,
            _ => return None,
        };
        let entities = classes.iter().filter(|(name, _)| name.starts_with(['B', 'I']));
        let mut classes: Vec<usize> = entities.filter_map(|(_, class)| usize::try_from(*class).ok()).collect();
        classes.sort_unstable();
        classes.dedup();
        Some(classes)
    }

    /// Returns the inputs that a sample consists of.
    pub fn inputs(&self) -> Vec<SampleInput> {
        let is_class = |name: &str| matches!(self.samples.task, EncoderLabels::Class { .. }) && name == "labels";
        let shape = |name: &str, elements| {
            if name == "next_sentence_label" || is_class(name) { Vec::new() } else { vec![elements] }
        };
        let input = |(name, elements): (&str, usize)| SampleInput {
            name: name.to_owned(),
            element_type: ElementType::I32,
            shape: shape(name, elements),
        };
        self.arrays().into_iter().map(input).collect()
    }

    /// Returns arrays for [`EncoderSource::read`].
    pub fn empty(&self) -> Vec<Vec<i32>> {
        self.arrays().into_iter().map(|(_, count)| vec![0; count]).collect()
    }

    /// Writes sample `n` to `arrays`, whose sizes are those of [`EncoderSource::empty`].
    pub fn read(&self, n: u64, arrays: &mut [Vec<i32>]) -> Result<(), DataError> {
        let mut random = SampleRandom::new(self.samples.seed, n);
        let (mut row, location) = self.row(n, &mut random)?;
        if let (Some(masking), EncoderLabels::Tokens { max_predictions, .. }) =
            (self.samples.masking, self.samples.task)
        {
            let max_predictions = max_predictions.unwrap_or(self.length);
            let size = self.samples.vocab_size;
            let (tokens, continues) = (&mut row.tokens, &row.continues);
            row.predictions =
                masking::mask(masking, max_predictions, self.special, size, &mut random, tokens, continues);
        }
        let filled = self.fill(&row, arrays);
        filled.map_err(|problem| {
            location
                .unwrap_or_else(|| RowLocation { path: PathBuf::from("the data"), unit: "sample", number: n })
                .error(problem)
        })
    }

    /// Returns the content of sample `n`, and where it is stored; `None` for a window of a text.
    fn row(&self, n: u64, random: &mut SampleRandom) -> Result<(Row, Option<RowLocation>), DataError> {
        let next = self.samples.predicts_next_sentence();
        let (row, location) = match &self.rows {
            RowSource::Windows(windows) => return Ok((self.window(windows, n, random)?, None)),
            RowSource::Csv { files, rows, vocabulary, order } => {
                let found = files.row(order.window(n));
                let location = RowLocation { path: found.path.to_owned(), unit: "row", number: found.number };
                (row::read(*rows, &found, vocabulary.as_ref(), self.length, next), location)
            }
            RowSource::Records { files, rows, order } => {
                let record = files.record(order.window(n));
                let location = RowLocation { path: record.path.to_owned(), unit: "record", number: record.number };
                (self.record_row(rows, &record), location)
            }
            RowSource::Stored { store, order } => {
                let (path, number) = store.location(order.window(n));
                let location = RowLocation { path: path.to_owned(), unit: "sample", number };
                (Ok(store.read_masked(order.window(n), self.length)?), location)
            }
        };
        row.map(|row| (row, Some(location.clone()))).map_err(|problem| location.error(problem))
    }

    /// Reads a record.
    fn record_row(&self, rows: &RecordRows, record: &Record<'_>) -> Result<Row, SampleProblem> {
        let length = self.length;
        match rows {
            RecordRows::Masked => tfrecord::masked_row(record, length, self.samples.predicts_next_sentence()),
            RecordRows::Words(vocabulary) => tfrecord::words_row(record, length, |word| vocabulary.number(word)),
            RecordRows::Sentences(vocabulary, is_pair) => {
                let found = tfrecord::sentences(record, *is_pair)?;
                Ok(row::sentence_row(vocabulary, length, &found.first, found.second.as_deref(), found.class))
            }
            RecordRows::TokenClasses(_) => {
                let counts_padding =
                    matches!(self.samples.task, EncoderLabels::TokenClasses { counts_padding: true, .. });
                tfrecord::token_classes_row(record, length, counts_padding)
            }
            RecordRows::Summaries => tfrecord::summary_row(record, length),
            RecordRows::Answers => tfrecord::answer_row(record, length),
        }
    }

    /// Returns a window of a text, with another one as its second segment in half of the samples.
    fn window(&self, windows: &Dataset, n: u64, random: &mut SampleRandom) -> Result<Row, DataError> {
        let length = windows.seq_len();
        let (mut content, mut ignored) = (vec![0; length], vec![0; length]);
        windows.sample(n, &mut content, &mut ignored)?;
        let SpecialTokens { begin, end, .. } = self.special;
        if !self.samples.predicts_next_sentence() {
            let tokens = [&[begin], content.as_slice(), &[end]].concat();
            return Ok(Row { tokens, ..Row::default() });
        }
        let half = length / 2;
        let is_random = random.below(2) == 1 && windows.windows() > 1;
        if is_random {
            let others = windows.windows() - 1;
            let other = n.wrapping_add(1 + random.below(others)) % windows.windows();
            let mut from_other = vec![0; length];
            windows.sample(other, &mut from_other, &mut ignored)?;
            content[half..].copy_from_slice(&from_other[half..]);
        }
        let tokens = [&[begin], &content[..half], &[end], &content[half..], &[end]].concat();
        let mut segments = vec![0; half + 2];
        segments.resize(tokens.len(), 1);
        Ok(Row { tokens, segments, label: i32::from(is_random), ..Row::default() })
    }

    /// Writes a row to the arrays, padded.
    fn fill(&self, row: &Row, arrays: &mut [Vec<i32>]) -> Result<(), SampleProblem> {
        let (length, vocab_size) = (self.length, self.samples.vocab_size);
        let used = row.tokens.len();
        if used > length {
            return Err(SampleProblem::TooLong { found: used, expected: length });
        }
        let is_token = |token: i32| u32::try_from(token).is_ok_and(|token| token < vocab_size);
        if let Some(&token) = row.tokens.iter().find(|token| !is_token(**token)) {
            return Err(SampleProblem::TokenOutsideVocabulary { token: token.into(), vocab_size });
        }
        let bound = match self.samples.task {
            EncoderLabels::Tokens { .. } => vocab_size,
            EncoderLabels::Class { classes } | EncoderLabels::TokenClasses { classes, .. } => classes,
            EncoderLabels::Sentences { .. } => 2,
            EncoderLabels::Span => u32::try_from(length).unwrap_or(u32::MAX),
        };
        let check = |label: i32, bound: u32| match u32::try_from(label) {
            Ok(number) if number < bound => Ok(label),
            _ => Err(SampleProblem::LabelOutsideVocabulary { label: label.into(), vocab_size: bound }),
        };
        for ((name, count), array) in self.arrays().into_iter().zip(arrays) {
            array.clear();
            match name {
                "input_ids" => {
                    array.extend_from_slice(&row.tokens);
                    array.resize(count, self.special.padding);
                }
                "attention_mask" => {
                    array.resize(used, 1);
                    array.resize(count, 0);
                }
                "token_type_ids" => {
                    array.extend(row.segments.iter().take(used).map(|segment| i32::from(*segment != 0)));
                    array.resize(count, 0);
                }
                "next_sentence_label" => array.push(check(row.label, 2)?),
                "attention_span" | "position_ids" => {
                    let is_span = name == "attention_span";
                    match &row.packing {
                        Some([spans, positions]) => array.extend(if is_span { spans } else { positions }),
                        // One sequence.
                        None if is_span => array.extend((0..used as i32).rev()),
                        None => array.extend(0..used as i32),
                    }
                    array.resize(count, 0);
                }
                "labels" if matches!(self.samples.task, EncoderLabels::Class { .. }) => {
                    array.push(check(row.label, bound)?);
                }
                "labels" if self.samples.task == EncoderLabels::Span => {
                    for &(_, position) in &row.predictions {
                        array.push(if position == NO_LABEL { NO_LABEL } else { check(position, bound)? });
                    }
                }
                _ => {
                    if row.predictions.len() > count {
                        return Err(SampleProblem::TooManyLabels { found: row.predictions.len(), expected: count });
                    }
                    if let Some((position, _)) = row.predictions.iter().find(|(position, _)| *position >= length) {
                        return Err(SampleProblem::PositionOutside { position: *position, length });
                    }
                    self.fill_predictions(name, row, bound, array, count, check)?;
                }
            }
        }
        Ok(())
    }

    fn fill_predictions(
        &self,
        name: &str,
        row: &Row,
        bound: u32,
        array: &mut Vec<i32>,
        count: usize,
        check: impl Fn(i32, u32) -> Result<i32, SampleProblem>,
    ) -> Result<(), SampleProblem> {
        let dense = match self.samples.task {
            EncoderLabels::Tokens { max_predictions: None, .. } => Some(NO_LABEL),
            EncoderLabels::TokenClasses { counts_padding, .. } => Some(if counts_padding { 0 } else { NO_LABEL }),
            _ => None,
        };
        if let Some(padding) = dense {
            array.resize(count, padding);
            for &(position, label) in &row.predictions {
                array[position] = check(label, bound)?;
            }
        } else if name == "labels" {
            for &(_, label) in &row.predictions {
                array.push(check(label, bound)?);
            }
            array.resize(count, NO_LABEL);
        } else {
            array.extend(row.predictions.iter().map(|(position, _)| *position as i32));
            array.resize(count, 0);
        }
        Ok(())
    }
}

impl RowLocation {
    fn error(&self, problem: SampleProblem) -> DataError {
        DataError::BadSample { path: self.path.clone(), unit: self.unit, number: self.number, problem }
    }
}

fn open_csv(
    spec: &SourceSpec,
    samples: &EncoderSamples,
    paths: &[String],
    rows: CsvRows,
    is_lower_case: bool,
) -> Result<(RowSource, SpecialTokens), DataError> {
    let (data, others) = data_and_vocabulary(paths, rows);
    let files = expand(data, rows.extension())?;
    let vocabulary = match others {
        [] => None,
        [words] => Some(Vocabulary::open(words.as_ref(), is_lower_case)?),
        [classes, words, ..] => Some(Vocabulary::open(words.as_ref(), is_lower_case)?.with_classes(classes.as_ref())?),
    };
    let files = CsvFiles::open(&files, rows.dialect(), &rows.columns(samples.predicts_next_sentence()))?;
    let order = order_of(spec, split_range(spec, files.rows()))?;
    let special = special_tokens(samples, vocabulary.as_ref())?;
    Ok((RowSource::Csv { files, rows, vocabulary, order }, special))
}

fn open_records(
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
        TfRecordRows::Summaries => RecordRows::Summaries,
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
fn special_tokens_of_windows(
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
