//! Opens the inputs of a job as datasets.

use std::sync::Arc;

use millrace_data::{
    CsvRows, Dataset, EncoderLabels, EncoderSamples, LineFiles, LineRows, Masking, SampleReader, Seq2SeqSamples,
    TextFiles, TfRecordRows, Tokenizer,
};
pub use millrace_data::{DataError, DataSummary, PythonPackage, SourceKind, SourceSpec, inspect as survey_source};
use millrace_emulator::graph::Graph;
use millrace_loader::{LoaderPool, LoaderServer, LoaderStream};
use millrace_params::{
    DataSource, EncoderOptions, EncoderTask, InputSpec, JobSpec, MixturePart, ModelSpec, Seq2SeqOptions, SinkTokens,
    Split,
};
use millrace_telemetry::journal::OutcomeReason;

use crate::error::AgentError;
use crate::loader_args::LoaderArgs;
use crate::model::check_samples;

/// Training and evaluation data of a job.
pub(crate) struct JobInputs {
    /// Training data, if the mode trains.
    pub train: Option<Dataset>,
    /// Evaluation data, if the mode evaluates.
    pub eval: Option<Dataset>,
    /// Maximum samples of one request: those of the larger batch.
    pub max_samples: u64,
}

/// Returns the specification of the dataset of `input`.
pub fn source_spec(input: &InputSpec, model: &ModelSpec) -> SourceSpec {
    let vocab_size = model.vocab_size;
    let kind = match &input.source {
        DataSource::Text { paths, tokenizer, text_key } => {
            SourceKind::Text(TextFiles { paths: paths.clone(), tokenizer: *tokenizer, text_key: text_key.clone() })
        }
        DataSource::Tokens { paths, token_type } => {
            SourceKind::Tokens { paths: paths.clone(), token_type: *token_type }
        }
        DataSource::Hdf5 { paths, mixture } => {
            let part = |part: &MixturePart| millrace_data::MixturePart { paths: part.paths, weight: part.weight };
            SourceKind::Hdf5 {
                paths: paths.clone(),
                mixture: mixture.iter().map(part).collect(),
                vocab_size: u32::try_from(vocab_size).unwrap_or(u32::MAX),
            }
        }
        DataSource::Arrays { paths } => SourceKind::Arrays { paths: paths.clone() },
        DataSource::Python { paths } => SourceKind::Python { paths: paths.clone() },
        DataSource::EncoderHdf5 { paths } => SourceKind::EncoderHdf5 { paths: paths.clone() },
        DataSource::TfRecords { paths, rows, is_lower_case } => SourceKind::TfRecords {
            paths: paths.clone(),
            rows: record_rows(*rows),
            is_lower_case: *is_lower_case,
            vocab_size: u32::try_from(vocab_size).unwrap_or(u32::MAX),
        },
        DataSource::Csv { paths, rows, is_lower_case } => {
            SourceKind::Csv { paths: paths.clone(), rows: csv_rows(*rows), is_lower_case: *is_lower_case }
        }
        DataSource::Lines { paths, rows, targets, vocabularies, is_lower_case } => SourceKind::Lines(LineFiles {
            paths: paths.clone(),
            rows: match rows {
                millrace_params::LineRows::Spans => LineRows::Spans,
                millrace_params::LineRows::Pairs => LineRows::Pairs,
            },
            targets: *targets,
            vocabularies: *vocabularies,
            is_lower_case: *is_lower_case,
        }),
        DataSource::Images { paths, images } => SourceKind::Images { paths: paths.clone(), images: images.clone() },
        DataSource::Synthetic {} => SourceKind::Synthetic {
            vocab_size: u32::try_from(vocab_size).unwrap_or(u32::MAX),
            seed: input.shuffle_seed,
        },
    };
    let (split, validation_fraction) = match input.split {
        Split::All {} => (millrace_data::SplitPart::Train, 0.0),
        Split::Train { fraction } => (millrace_data::SplitPart::Train, fraction),
        Split::Validation { fraction } => (millrace_data::SplitPart::Validation, fraction),
    };
    SourceSpec {
        kind,
        seq_len: input.max_sequence_length,
        split,
        validation_fraction,
        shuffle: input.shuffle,
        shuffle_seed: input.shuffle_seed,
        subset: input.data_subset.clone(),
        num_samples: input.num_samples,
        cache_dir: None,
        sinks: input.sinks.map(|SinkTokens { token, count, position, keeps_length }| millrace_data::SinkTokens {
            token,
            count,
            position,
            keeps_length,
        }),
        is_packed: model.decoder.is_packed,
        encoder: model.encoder.as_ref().map(|encoder| EncoderSamples {
            is_packed: model.decoder.is_packed,
            ..encoder_samples(encoder, input, vocab_size)
        }),
        seq2seq: model.seq2seq.as_ref().map(|options| seq2seq_samples(options, input, vocab_size)),
    }
}

const fn record_rows(rows: millrace_params::TfRecordRows) -> TfRecordRows {
    match rows {
        millrace_params::TfRecordRows::Tokens => TfRecordRows::Tokens,
        millrace_params::TfRecordRows::Masked => TfRecordRows::Masked,
        millrace_params::TfRecordRows::Words => TfRecordRows::Words,
        millrace_params::TfRecordRows::Sentences => TfRecordRows::Sentences,
        millrace_params::TfRecordRows::SentencePairs => TfRecordRows::SentencePairs,
        millrace_params::TfRecordRows::TokenClasses => TfRecordRows::TokenClasses,
        millrace_params::TfRecordRows::Summaries => TfRecordRows::Summaries,
        millrace_params::TfRecordRows::SummariesWithWords => TfRecordRows::SummariesWithWords,
        millrace_params::TfRecordRows::Answers => TfRecordRows::Answers,
    }
}

const fn csv_rows(rows: millrace_params::CsvRows) -> CsvRows {
    match rows {
        millrace_params::CsvRows::Words => CsvRows::Words,
        millrace_params::CsvRows::Masked => CsvRows::Masked,
        millrace_params::CsvRows::Sentences => CsvRows::Sentences,
        millrace_params::CsvRows::SentencePairs => CsvRows::SentencePairs,
        millrace_params::CsvRows::TokenClasses => CsvRows::TokenClasses,
        millrace_params::CsvRows::Summaries => CsvRows::Summaries,
        millrace_params::CsvRows::SummariesWithWords => CsvRows::SummariesWithWords,
        millrace_params::CsvRows::Answers => CsvRows::Answers,
    }
}

/// Returns what the samples of an encoder contain: one array for each input of its graph.
fn encoder_samples(encoder: &EncoderOptions, input: &InputSpec, vocab_size: usize) -> EncoderSamples {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let task = match encoder.task {
        EncoderTask::Pretraining { max_predictions, predicts_next_sentence, .. } => {
            EncoderLabels::Tokens { max_predictions, predicts_next_sentence }
        }
        EncoderTask::Classifier { classes, .. } => EncoderLabels::Class { classes: count(classes) },
        EncoderTask::TokenClassifier { classes, counts_padding, .. } => {
            EncoderLabels::TokenClasses { classes: count(classes), counts_padding }
        }
        EncoderTask::Summarization { max_sentences, compares_words } => {
            EncoderLabels::Sentences { max_sentences, has_words: compares_words }
        }
        EncoderTask::QuestionAnswering {} => EncoderLabels::Span,
    };
    EncoderSamples {
        task,
        has_segments: encoder.use_segment_embedding,
        vocab_size: count(vocab_size),
        mask_token: encoder.mask_token,
        masking: input
            .masking
            .map(|masking| Masking { probability: masking.probability, whole_words: masking.whole_words }),
        seed: input.shuffle_seed,
        is_packed: false,
    }
}

/// Returns what the samples of an encoder with a decoder contain.
fn seq2seq_samples(options: &Seq2SeqOptions, input: &InputSpec, vocab_size: usize) -> Seq2SeqSamples {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Seq2SeqSamples {
        target_length: options.target_length,
        vocab_size: count(vocab_size),
        target_vocab_size: count(options.target_vocab_size),
        seed: input.shuffle_seed,
    }
}

/// Opens the tokenizer of the text that an input reads; returns `None` if its tokens are not those of a tokenizer.
///
/// # Errors
/// The tokenizer is a file that can't be used.
pub(crate) fn text_tokenizer(job: &JobSpec, input: &InputSpec) -> Result<Option<Tokenizer>, AgentError> {
    source_spec(input, &job.model).kind.tokenizer().map_err(data_failure)
}

/// Checks that the model's vocabulary has all tokens of the tokenizer of an input.
///
/// # Errors
/// It has not, or the tokenizer is a file that can't be used.
pub fn check_tokenizer(spec: &SourceSpec, model: &ModelSpec) -> Result<(), DataError> {
    let Some(tokenizer) = spec.kind.tokenizer()? else { return Ok(()) };
    let (vocab_size, tokens) = (model.vocab_size as u64, tokenizer.vocab_size());
    match u64::from(tokens) > vocab_size {
        true => Err(DataError::VocabularyTooSmall { vocab_size, max_token: tokens - 1 }),
        false => Ok(()),
    }
}

/// Converts a data error to a failure with its hint.
pub(crate) fn data_failure(error: DataError) -> AgentError {
    let hint = error.hint();
    let failure = if error.is_bad_input() { AgentError::bad_input(error) } else { AgentError::local(error) };
    failure.hint(hint)
}

/// Converts an error of a sample that was read during a run to a failure with its hint. A file that can't be read may
/// be readable later; any other sample is the same in every attempt.
pub(crate) fn sample_failure(error: DataError) -> AgentError {
    let hint = error.hint();
    let reason = if error.is_temporary() { OutcomeReason::Failed } else { OutcomeReason::BadData };
    AgentError::with_reason(reason, error).hint(hint)
}

/// Inspects the files of one input without reading them completely. Returns a summary, and the samples of an epoch if
/// they are known without tokenizing.
///
/// # Errors
/// Files are missing, empty, or of another format.
pub(crate) fn survey(input: &InputSpec, model: &ModelSpec) -> Result<(DataSummary, Option<u64>), AgentError> {
    let spec = source_spec(input, model);
    let found = check_tokenizer(&spec, model).and_then(|()| survey_source(&spec));
    let found = found.and_then(|found| Ok((found, found.epoch_samples(&spec)?)));
    found.map_err(data_failure)
}

/// Opens one input. `progress` receives the bytes done and the total while the input is tokenized.
///
/// # Errors
/// Files are missing, empty or not text; tokens are outside the vocabulary.
pub(crate) fn open(
    input: &InputSpec,
    model: &ModelSpec,
    progress: impl FnMut(u64, u64),
) -> Result<Dataset, AgentError> {
    let spec = source_spec(input, model);
    check_tokenizer(&spec, model).map_err(data_failure)?;
    let dataset = Dataset::open(&spec, progress).map_err(data_failure)?;
    dataset.check_vocab(model.vocab_size as u64).map_err(data_failure)?;
    Ok(dataset)
}

/// The inputs of a job to open, among those that its mode reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InputChoice {
    pub train: bool,
    pub eval: bool,
}

impl InputChoice {
    /// Every input.
    pub const ALL: Self = Self { train: true, eval: true };
}

impl JobInputs {
    /// Opens the chosen inputs that the job's mode reads.
    ///
    /// # Errors
    /// See [`open`].
    pub fn open(job: &JobSpec, choice: InputChoice, mut progress: impl FnMut(u64, u64)) -> Result<Self, AgentError> {
        let (model, mode) = (&job.model, job.run.mode);
        let opens_train = choice.train && mode.trains();
        let train = opens_train.then(|| open(&job.train_input, model, &mut progress)).transpose()?;
        let eval = job.eval_input.as_ref().filter(|_| mode.evaluates());
        let batches = [Some(&job.train_input), eval].into_iter().flatten().map(|input| input.batch_size as u64);
        let most_samples = batches.max().unwrap_or(0);
        let eval = eval.filter(|_| choice.eval).map(|input| open(input, model, &mut progress)).transpose()?;
        Ok(Self { train, eval, max_samples: most_samples })
    }

    /// Starts what reads the samples of Python datasets, and returns it. Does nothing if the inputs are other data.
    ///
    /// # Errors
    /// This process may not read them, or the socket of the loader can't be opened.
    pub fn start_loaders(&mut self, args: &LoaderArgs) -> Result<Option<Arc<LoaderServer>>, AgentError> {
        let mut server = None;
        for dataset in [&mut self.train, &mut self.eval].into_iter().flatten() {
            let Some(package) = dataset.python_package() else { continue };
            let server = match &server {
                Some(server) => server,
                None => server.insert(LoaderServer::open(args.location(package)?).map_err(AgentError::local)?),
            };
            let reader: Arc<dyn SampleReader> = if package.is_stream() {
                Arc::new(LoaderStream::new(server, package, self.max_samples))
            } else {
                Arc::new(LoaderPool::new(server, package).map_err(AgentError::local)?)
            };
            dataset.set_reader(reader);
        }
        Ok(server)
    }

    /// Checks that samples consist of what `graph` reads.
    ///
    /// # Errors
    /// See [`check_samples`].
    pub fn check(&self, graph: &Graph) -> Result<(), AgentError> {
        for (name, dataset) in [("train_input", &self.train), ("eval_input", &self.eval)] {
            dataset.as_ref().map_or(Ok(()), |dataset| check_samples(name, &dataset.inputs(), graph))?;
        }
        Ok(())
    }
}
