//! The job's inputs as datasets.

pub use millrace_data::{DataError, DataSummary, SourceSpec, inspect as survey_source};
use millrace_data::{Dataset, SourceKind};
use millrace_params::{InputSpec, Job, Source, Split};

use crate::failure::Failure;

/// Training and evaluation data of a job.
pub(crate) struct Inputs {
    /// What is trained on, in the modes that train.
    pub train: Option<Dataset>,
    /// What is evaluated on, in the modes that evaluate.
    pub eval: Option<Dataset>,
    /// Most samples one request may ask for: the larger batch.
    pub most_samples: u64,
}

/// What a dataset is made from.
pub fn source_spec(input: &InputSpec, vocab_size: usize) -> SourceSpec {
    let kind = match &input.source {
        Source::Text { paths, tokenizer } => SourceKind::Text {
            paths: paths.clone(),
            tokenizer: match tokenizer {
                millrace_params::Tokenizer::Gpt2 => millrace_data::Tokenizer::Gpt2,
                millrace_params::Tokenizer::Bytes => millrace_data::Tokenizer::Bytes,
            },
        },
        Source::Tokens { paths } => SourceKind::Tokens { paths: paths.clone() },
        Source::Synthetic {} => SourceKind::Synthetic {
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
        cache_dir: None,
    }
}

/// A data error as a failure with its hint.
pub(crate) fn data_failure(error: &DataError) -> Failure {
    let failure = if error.is_bad_input() { Failure::bad_input(error) } else { Failure::own(error) };
    failure.hint(error.hint())
}

/// Looks at the files of one input without reading them through; what they have, and the samples of an epoch where that
/// is known without tokenising.
///
/// # Errors
/// Files missing, empty, or of another format.
pub(crate) fn survey(input: &InputSpec, vocab_size: usize) -> Result<(DataSummary, Option<u64>), Failure> {
    let spec = source_spec(input, vocab_size);
    let found = survey_source(&spec).and_then(|found| Ok((found, found.samples(&spec)?)));
    found.map_err(|error| data_failure(&error))
}

/// Opens one input; `progress` gets bytes done and in all while it is tokenised.
///
/// # Errors
/// Files missing, empty or not text; tokens that the vocabulary has not got.
pub(crate) fn open(input: &InputSpec, vocab_size: usize, progress: impl FnMut(u64, u64)) -> Result<Dataset, Failure> {
    let dataset = Dataset::open(&source_spec(input, vocab_size), progress).map_err(|error| data_failure(&error))?;
    dataset.check_vocab(vocab_size as u64).map_err(|error| data_failure(&error))?;
    Ok(dataset)
}

impl Inputs {
    /// Opens what the job's mode reads.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(job: &Job, mut progress: impl FnMut(u64, u64)) -> Result<Self, Failure> {
        let vocab = job.model.vocab_size;
        let train = job.run.mode.trains().then(|| open(&job.train_input, vocab, &mut progress)).transpose()?;
        let eval = job.eval_input.as_ref().filter(|_| job.run.mode.evaluates());
        let batches = [Some(&job.train_input), eval].into_iter().flatten().map(|input| input.batch_size as u64);
        let most_samples = batches.max().unwrap_or(0);
        let eval = eval.map(|input| open(input, vocab, &mut progress)).transpose()?;
        Ok(Self { train, eval, most_samples })
    }
}
