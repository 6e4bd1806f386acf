//! Samples of an encoder with a decoder (T5, Transformer): two sequences of tokens with their masks, and the labels of
//! the second one.
//!
//! ```text
//! windows of a text      spans are replaced when a sample is read, see `spans`
//! lines of words         likewise
//! pairs of lines         a text and its translation
//!
//! input_ids              source, end, padding
//! decoder_input_ids      beginning, target, padding
//! labels                 target, end, -100 at padding
//! ```
//!
//! * A sample is a function of (source, specification, number), spans included.
//! * Every token is below the size of the vocabulary of its side.
//! * The last tokens of the vocabulary are special, the same ones for samples of any length. Of a text, whose tokens
//!   are numbers from 0, these are, from the end: padding, which is also the beginning, the end, and the sentinels.
//!   Files of lines have a vocabulary with beginning and end, so that only sentinels follow it.

mod lines;
mod spans;
mod words;

use std::path::PathBuf;

pub use lines::LinesProblem;
pub use words::line_tokenizer;

use crate::encoder::SampleRandom;
use crate::order::SampleOrder;
use crate::split::{order_of, split_range};
use crate::{DataError, Dataset, ElementType, LineFiles, LineRows, SampleInput, SourceKind, SourceSpec};
use lines::{LineFile, LinePart};
use words::LineVocabulary;

/// A label that does not count.
const NO_LABEL: i32 = -100;
/// Tokens of a text that are neither its own nor sentinels: padding, which is the beginning, and the end.
const MARKERS: u32 = 2;
/// Separates the random numbers of spans from those of masks, which may have the same seed.
const SPANS_KEY: u64 = 0x7370_616e;

/// What a sample of an encoder with a decoder contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seq2SeqSamples {
    /// Tokens that the decoder reads.
    pub target_length: usize,
    /// Size of the vocabulary of the encoder.
    pub vocab_size: u32,
    /// Size of the vocabulary of the decoder.
    pub target_vocab_size: u32,
    /// Seed of the spans.
    pub seed: u64,
}

impl Seq2SeqSamples {
    /// Returns the size of the vocabulary of both sides, whose tokens are the same if spans are replaced.
    fn shared_vocab_size(&self) -> u32 {
        self.vocab_size.min(self.target_vocab_size)
    }

    /// Returns the number of tokens of a text whose spans are replaced.
    pub(crate) fn text_length(&self, source_length: usize) -> Result<usize, DataError> {
        let target_length = self.target_length;
        let found = spans::text_length(source_length, target_length);
        found.ok_or(DataError::ShortSequences { source_length, target_length })
    }

    /// Returns the number of tokens that a text of `length` tokens needs beside its own.
    pub(crate) fn special_tokens(&self, length: usize) -> u32 {
        MARKERS.saturating_add(u32::try_from(spans::sentinels(length)).unwrap_or(u32::MAX))
    }
}

/// An open source of samples of an encoder with a decoder.
pub(crate) struct Seq2SeqSource {
    samples: Seq2SeqSamples,
    length: usize,
    content: Seq2SeqContent,
    pub fingerprint: [u8; 32],
}

enum Seq2SeqContent {
    Windows {
        windows: Dataset,
        begin: i32,
        end: i32,
    },
    Spans {
        files: Vec<LineFile>,
        parts: Vec<LinePart>,
        /// Words of a part.
        length: usize,
        vocabulary: LineVocabulary,
        order: SampleOrder,
    },
    Pairs {
        files: [Vec<LineFile>; 2],
        pairs: Vec<[LinePart; 2]>,
        /// Of the sources, and of the targets if they have another one.
        vocabularies: (LineVocabulary, Option<LineVocabulary>),
        order: SampleOrder,
    },
}

/// A source and its target without padding.
struct Sample {
    source: Vec<i32>,
    target: Vec<i32>,
    begin: i32,
    /// End of the source, and of the target.
    ends: [i32; 2],
}

impl Seq2SeqSource {
    /// Opens the source of `spec`, and reads its first sample.
    pub fn open(
        spec: &SourceSpec,
        samples: &Seq2SeqSamples,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, DataError> {
        let mut hasher = blake3::Hasher::new_derive_key("millrace samples of two sequences, version 1");
        let [source_length, target_length] = [spec.seq_len, samples.target_length].map(|length| length as u64);
        let [vocab_size, target_vocab_size] = [samples.vocab_size, samples.target_vocab_size].map(u64::from);
        for number in [source_length, target_length, vocab_size, target_vocab_size, samples.seed] {
            hasher.update(&number.to_le_bytes());
        }
        let content = match &spec.kind {
            SourceKind::Lines(files) => open_lines(spec, samples, files, &mut hasher)?,
            SourceKind::Csv { .. } | SourceKind::TfRecords { .. } | SourceKind::EncoderHdf5 { .. } => {
                return Err(DataError::NotForDecoders);
            }
            SourceKind::Images { .. } => return Err(DataError::NoTokens),
            _ => open_windows(spec, samples, &mut hasher, progress)?,
        };
        let fingerprint = *hasher.finalize().as_bytes();
        let source = Self { samples: samples.clone(), length: spec.seq_len, content, fingerprint };
        source.read(0, &mut source.empty())?;
        Ok(source)
    }

    /// Returns the number of samples in a pass.
    pub fn samples_per_pass(&self) -> u64 {
        match &self.content {
            Seq2SeqContent::Windows { windows, .. } => windows.windows(),
            Seq2SeqContent::Spans { order, .. } | Seq2SeqContent::Pairs { order, .. } => order.samples_per_pass(),
        }
    }

    pub fn vocab_size(&self) -> u32 {
        self.samples.vocab_size
    }

    fn arrays(&self) -> [(&'static str, usize); 5] {
        let (source, target) = (self.length, self.samples.target_length);
        [
            ("input_ids", source),
            ("attention_mask", source),
            ("decoder_input_ids", target),
            ("decoder_attention_mask", target),
            ("labels", target),
        ]
    }

    /// Returns the inputs that a sample consists of.
    pub fn inputs(&self) -> Vec<SampleInput> {
        let input = |(name, elements): (&str, usize)| SampleInput {
            name: name.to_owned(),
            element_type: ElementType::I32,
            shape: vec![elements],
        };
        self.arrays().map(input).into()
    }

    /// Returns arrays for [`Seq2SeqSource::read`].
    pub fn empty(&self) -> Vec<Vec<i32>> {
        self.arrays().map(|(_, count)| vec![0; count]).into()
    }

    /// Writes sample `n` to `arrays`, whose sizes are those of [`Seq2SeqSource::empty`].
    pub fn read(&self, n: u64, arrays: &mut [Vec<i32>]) -> Result<(), DataError> {
        let Sample { source, target, begin, ends: [source_end, target_end] } = self.sample(n)?;
        let follows = |first: &[i32], last: &[i32]| [first, last].concat();
        let sequences = [
            (follows(&source, &[source_end]), source_end),
            (vec![1; source.len() + 1], 0),
            // Padding of the decoder is not attended to, so that any token will do.
            (follows(&[begin], &target), begin),
            (vec![1; target.len() + 1], 0),
            (follows(&target, &[target_end]), NO_LABEL),
        ];
        for ((array, (mut tokens, padding)), (_, count)) in arrays.iter_mut().zip(sequences).zip(self.arrays()) {
            tokens.resize(count, padding);
            *array = tokens;
        }
        Ok(())
    }

    fn sample(&self, n: u64) -> Result<Sample, DataError> {
        match &self.content {
            Seq2SeqContent::Windows { windows, begin, end } => {
                let mut tokens = vec![0; windows.seq_len()];
                let mut ignored = tokens.clone();
                windows.sample(n, &mut tokens, &mut ignored)?;
                Ok(self.corrupted(n, &tokens, *begin, *end, self.samples.shared_vocab_size() - MARKERS))
            }
            Seq2SeqContent::Spans { files, parts, length, vocabulary, order } => {
                let Some(&part) = at(parts, order.window(n)) else { return Err(DataError::NoPaths) };
                let tokens: Vec<i32> = lines::words(files, part, *length).map(|word| vocabulary.number(word)).collect();
                Ok(self.corrupted(n, &tokens, vocabulary.begin, vocabulary.end, self.samples.shared_vocab_size()))
            }
            Seq2SeqContent::Pairs { files, pairs, vocabularies: (vocabulary, other), order } => {
                let Some(&[source, target]) = at(pairs, order.window(n)) else { return Err(DataError::NoPaths) };
                let of_target = other.as_ref().unwrap_or(vocabulary);
                let [sources, targets] = files;
                let numbers = |files, part, vocabulary: &LineVocabulary| {
                    lines::words(files, part, usize::MAX).map(|word| vocabulary.number(word)).collect()
                };
                Ok(Sample {
                    source: numbers(sources, source, vocabulary),
                    target: numbers(targets, target, of_target),
                    begin: of_target.begin,
                    ends: [vocabulary.end, of_target.end],
                })
            }
        }
    }

    /// Replaces the spans of sample `n` by sentinels that end at `sentinel_end`.
    fn corrupted(&self, n: u64, tokens: &[i32], begin: i32, end: i32, sentinel_end: u32) -> Sample {
        let mut random = SampleRandom::new(self.samples.seed ^ SPANS_KEY, n);
        let text = spans::corrupt(tokens, sentinel_end, &mut random);
        Sample { source: text.inputs, target: text.targets, begin, ends: [end, end] }
    }
}

fn at<T>(items: &[T], number: u64) -> Option<&T> {
    usize::try_from(number).ok().and_then(|number| items.get(number))
}

fn open_windows(
    spec: &SourceSpec,
    samples: &Seq2SeqSamples,
    hasher: &mut blake3::Hasher,
    progress: impl FnMut(u64, u64),
) -> Result<Seq2SeqContent, DataError> {
    let spec = spec.windows_of_seq2seq(samples)?;
    let windows = Dataset::open(&spec, progress)?;
    let special = samples.special_tokens(spec.seq_len);
    let vocab_size = samples.shared_vocab_size();
    let needed = windows.max_token().saturating_add(special);
    if needed >= vocab_size {
        return Err(DataError::VocabularyTooSmall { vocab_size: vocab_size.into(), max_token: needed });
    }
    hasher.update(&windows.fingerprint());
    let [begin, end] = [1, 2].map(|from_end| i32::try_from(vocab_size - from_end).unwrap_or(i32::MAX));
    Ok(Seq2SeqContent::Windows { windows, begin, end })
}

fn open_lines(
    spec: &SourceSpec,
    samples: &Seq2SeqSamples,
    source: &LineFiles,
    hasher: &mut blake3::Hasher,
) -> Result<Seq2SeqContent, DataError> {
    let [sources, targets] = line_files(source)?;
    let [_, _, vocabularies] = source.divided();
    let open = |path: &String| LineVocabulary::open(path.as_ref(), source.is_lower_case);
    let vocabulary = vocabularies.first().map(open).transpose()?.ok_or(DataError::NoPaths)?;
    let other = vocabularies.get(1).map(open).transpose()?;
    let of_target = other.as_ref().unwrap_or(&vocabulary);
    for (vocabulary, size) in [(&vocabulary, samples.vocab_size), (of_target, samples.target_vocab_size)] {
        hasher.update(&vocabulary.digest);
        check_room(vocabulary, 0, size)?;
    }
    let read = |paths: &[PathBuf]| paths.iter().map(|path| LineFile::open(path)).collect::<Result<Vec<_>, _>>();
    let (sources, targets) = (read(&sources)?, read(&targets)?);
    sources.iter().chain(&targets).for_each(|file| file.hash(hasher));
    let order_of_samples = |count: usize| order_of(spec, split_range(spec, count as u64));
    let (content, order) = match source.rows {
        LineRows::Spans => {
            let length = samples.text_length(spec.seq_len)?;
            check_room(&vocabulary, spans::sentinels(length), samples.shared_vocab_size())?;
            let parts = lines::parts(&sources, length)?;
            let order = order_of_samples(parts.len())?;
            let content = Seq2SeqContent::Spans { files: sources, parts, length, vocabulary, order: order.clone() };
            (content, order)
        }
        LineRows::Pairs => {
            // One token is the end of the source, or the beginning of the target.
            let lengths = [spec.seq_len, samples.target_length].map(|length| length.saturating_sub(1));
            let pairs = lines::pairs(&sources, &targets, lengths)?;
            let order = order_of_samples(pairs.len())?;
            let (files, vocabularies) = ([sources, targets], (vocabulary, other));
            (Seq2SeqContent::Pairs { files, pairs, vocabularies, order: order.clone() }, order)
        }
    };
    order.hash(hasher);
    Ok(content)
}

/// Checks that the words of a vocabulary and the sentinels are tokens of the model.
fn check_room(vocabulary: &LineVocabulary, sentinels: usize, vocab_size: u32) -> Result<(), DataError> {
    let needed = vocabulary.entries.saturating_add(u32::try_from(sentinels).unwrap_or(u32::MAX));
    if needed <= vocab_size {
        return Ok(());
    }
    Err(DataError::VocabularyTooSmall { vocab_size: vocab_size.into(), max_token: needed - 1 })
}

/// Returns the files of sources and of targets.
pub(crate) fn line_files(source: &LineFiles) -> Result<[Vec<PathBuf>; 2], DataError> {
    let [sources, targets, _] = source.divided();
    lines::find_files(sources, targets, source.rows == LineRows::Pairs)
}
