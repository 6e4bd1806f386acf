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
mod open;
mod row;
mod samples;
mod summary_words;
mod word_piece;
mod words;

use std::collections::HashMap;
use std::path::PathBuf;

pub use csv::CsvProblem;
pub(crate) use masking::SampleRandom;
pub use masking::{Masking, SpecialTokens};
pub(crate) use open::data_and_vocabulary;
pub use row::CsvRows;
pub(crate) use row::Row;
pub use samples::{EncoderLabels, EncoderSamples};
pub use word_piece::word_piece_tokenizer;
pub use words::VocabularyProblem;
pub(crate) use words::read_vocabulary;

use crate::files::expand;
use crate::hdf5::{ExpectedSamples, Hdf5Size, Hdf5Store, SampleProblem};
use crate::order::SampleOrder;
use crate::split::{order_of, split_range};
use crate::tfrecord::{self, Record, TfRecordFiles};
use crate::{DataError, Dataset, ElementType, SampleInput, SourceKind, SourceSpec};
use csv::CsvFiles;
use open::{open_csv, open_records, special_tokens_of_windows};
use samples::{SENTENCE_IDS, WORD_IDS};
use summary_words::SummaryWords;
use words::Vocabulary;

/// A label that does not count.
const NO_LABEL: i32 = -1;
/// Number of special tokens at the end of the vocabulary of an encoder that reads text.
pub const SPECIAL_TOKENS: u32 = 4;

/// An open source of samples of an encoder.
pub(crate) struct EncoderSource {
    samples: EncoderSamples,
    length: usize,
    rows: RowSource,
    special: SpecialTokens,
    /// The words of tokens, if the source has a vocabulary and its samples contain words.
    summary_words: Option<SummaryWords>,
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
        let summary_words = spec.kind.summary_vocabulary().map(SummaryWords::open).transpose()?;
        hasher.update(summary_words.as_ref().map_or(&[], |words| words.digest.as_slice()));
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
        let source = Self { samples: samples.clone(), length: spec.seq_len, rows, special, summary_words, fingerprint };
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
                WORD_IDS => {
                    match &self.summary_words {
                        Some(words) => array.extend(words.word_ids(&row.tokens)),
                        None => array.resize(used, NO_LABEL),
                    }
                    array.resize(count, NO_LABEL);
                }
                SENTENCE_IDS => fill_sentences(row, array, count),
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

/// Writes the sentence that each token belongs to: the last one that begins at the token or before it. Tokens before
/// all sentences, of which none is a word, belong to the first.
fn fill_sentences(row: &Row, array: &mut Vec<i32>, count: usize) {
    array.resize(count, 0);
    for (sentence, &(start, _)) in row.predictions.iter().enumerate() {
        array.iter_mut().skip(start).for_each(|id| *id = sentence as i32);
    }
}

impl RowLocation {
    fn error(&self, problem: SampleProblem) -> DataError {
        DataError::BadSample { path: self.path.clone(), unit: self.unit, number: self.number, problem }
    }
}
