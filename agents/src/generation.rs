//! Continues a text with the model of a checkpoint: for the command `generate`, and for the REST server.
//!
//! ```text
//! Generation::start    checks options and prompt, reads the weights, computes the tokens of the prompt
//! Generation::run      chooses and computes one token at a time
//! ```
//!
//! * The same checkpoint, prompt, options and numerics profile give the same text, on any number of threads.
//! * What needs no weights is checked before they are read.

use millrace_checkpoint::{Checkpoint, Section};
use millrace_data::{DataError, TextDecoder, Tokenizer};
pub use millrace_emulator::inference::{InferenceError, NotADecoder, SamplingError, SamplingOptions};
use millrace_emulator::inference::{
    InferenceModel, InferenceOptions, InferenceStartError, Sampler, check_tokens, decoder_vocabulary, max_positions,
    memory_bytes,
};
use millrace_emulator::kernels::Simd;
use millrace_emulator::kernels::pool::PoolError;
use millrace_params::JobSpec;

use crate::{checkpoint_tokenizer, host};

/// What the model continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text; if it is empty, the beginning of a document.
    Text(String),
    /// Token ids. The continuation consists of token ids only, too.
    Tokens(Vec<u32>),
}

/// How to continue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationOptions {
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Maximum number of tokens to generate.
    pub max_tokens: u64,
    /// Whether to continue after the end of the document.
    pub ignore_end: bool,
}

impl GenerationOptions {
    /// Checks that every option is in its range, as [`Generation::start`] does.
    ///
    /// # Errors
    /// One is not.
    pub fn check(&self) -> Result<(), SamplingError> {
        Sampler::new(self.sampling).map(|_| ())
    }
}

/// What to compute with.
#[derive(Clone, Copy, Debug)]
pub struct GenerationResources {
    /// Number of compute threads, at least one.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub simd: Simd,
    /// Limit on the memory of weights and values.
    pub max_bytes: u64,
}

impl GenerationResources {
    /// Returns all cores of this host, with its best instruction set.
    pub fn of_this_host(max_bytes: u64) -> Self {
        Self { threads: host::cores(), simd: Simd::detect(), max_bytes }
    }
}

/// Why a text can't be continued.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// An option is out of range, or the model's logits are not finite.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error("can't generate text with this checkpoint")]
    Model(#[from] NotADecoder),
    #[error("the checkpoint was trained on tokens, and has no tokenizer")]
    NoTokenizer,
    /// The tokenizer can't be read, or the prompt can't be encoded.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
    #[error("can't continue the prompt")]
    Prompt(#[from] InferenceError),
    #[error(
        "generating this text takes about {} MB of memory, but at most {} MB are allowed", needed / 1_000_000,
        allowed / 1_000_000
    )]
    Memory { needed: u64, allowed: u64 },
    #[error(transparent)]
    Weights(#[from] millrace_checkpoint::Error),
    #[error("can't start threads")]
    Threads(#[from] PoolError),
}

/// Why a text ended early. `E` is the error of its consumer.
#[derive(Debug)]
pub enum RunError<E> {
    /// The consumer needs no more tokens, or failed.
    Consumer(E),
    /// The model failed.
    Generation(GenerationError),
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the document.
    EndOfText,
    /// The maximum number of tokens was generated.
    MaxTokens,
    /// All positions of the model are used.
    MaxPositions,
}

/// The end of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// Number of tokens that were generated.
    pub tokens: u64,
    /// The end of the text: characters that are incomplete, as replacement characters.
    pub text: String,
}

/// A model that has read a prompt.
#[derive(Debug)]
pub struct Generation {
    model: InferenceModel,
    sampler: Sampler,
    /// `None` if tokens are not converted to text.
    tokenizer: Option<Tokenizer>,
    prompt: Vec<u32>,
    options: GenerationOptions,
}

impl Generation {
    /// Loads the model of a checkpoint of `job`, and computes the tokens of the prompt. `tokenizer` replaces that of
    /// the training data.
    ///
    /// # Errors
    /// The options, the model, the prompt or the checkpoint can't be used.
    pub fn start(
        checkpoint: &Checkpoint,
        job: &JobSpec,
        (prompt, tokenizer): (&Prompt, Option<Tokenizer>),
        options: GenerationOptions,
        resources: GenerationResources,
    ) -> Result<Self, GenerationError> {
        let sampler = Sampler::new(options.sampling)?;
        let graph = &checkpoint.layout().graph().without_packing();
        let vocabulary = decoder_vocabulary(graph)?;
        let (prompt, tokenizer) = encode(prompt, tokenizer, job, checkpoint)?;
        let positions = job.model.max_position_embeddings.max(graph.sequence()).min(max_positions(graph));
        check_tokens(&prompt, 0, vocabulary, positions)?;
        let tokens = (prompt.len() as u64).saturating_add(options.max_tokens).min(positions as u64);
        let needed = memory_bytes(graph, tokens as usize);
        if needed > resources.max_bytes {
            return Err(GenerationError::Memory { needed, allowed: resources.max_bytes });
        }
        let GenerationResources { threads, simd, .. } = resources;
        let inference = InferenceOptions { threads, simd, precision: job.model.precision, positions };
        let read = |tensor| checkpoint.read_tensor(tensor, Section::Parameters);
        let mut model = InferenceModel::new(graph.clone(), inference, read).map_err(|error| match error {
            InferenceStartError::Graph(error) => GenerationError::from(error),
            InferenceStartError::Threads(error) => error.into(),
            InferenceStartError::Weights(error) => error.into(),
        })?;
        model.extend(&prompt)?;
        Ok(Self { model, sampler, tokenizer, prompt, options })
    }

    /// Returns the number of tokens of the prompt.
    pub const fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    /// Generates tokens until the end of the document, `max_tokens`, or the model's last position. `on_token` receives
    /// each token, and the text that it completes: a character may consist of several tokens.
    ///
    /// # Errors
    /// `on_token` fails, or the logits are not finite.
    pub fn run<E>(self, mut on_token: impl FnMut(u32, &str) -> Result<(), E>) -> Result<Finish, RunError<E>> {
        let Self { mut model, mut sampler, tokenizer, prompt, options } = self;
        let end = tokenizer.as_ref().map(Tokenizer::separator).filter(|_| !options.ignore_end);
        let mut decoder = tokenizer.as_ref().map(|tokenizer| TextDecoder::new(tokenizer, &prompt));
        let (first, positions) = (prompt.len() as u64, model.positions() as u64);
        let mut tokens = 0;
        let reason = loop {
            if tokens >= options.max_tokens {
                break FinishReason::MaxTokens;
            }
            let token = sampler.choose(model.logits(), first + tokens);
            let token = token.map_err(|error| RunError::Generation(error.into()))?;
            if Some(token) == end {
                break FinishReason::EndOfText;
            }
            let text = decoder.as_mut().map(|decoder| decoder.push(token)).unwrap_or_default();
            on_token(token, &text).map_err(RunError::Consumer)?;
            tokens += 1;
            if first + tokens >= positions {
                break FinishReason::MaxPositions;
            }
            if tokens < options.max_tokens {
                model.extend(&[token]).map_err(|error| RunError::Generation(error.into()))?;
            }
        };
        Ok(Finish { reason, tokens, text: decoder.map(TextDecoder::finish).unwrap_or_default() })
    }
}

/// Returns the tokens of a prompt, and the tokenizer for what follows.
fn encode(
    prompt: &Prompt,
    tokenizer: Option<Tokenizer>,
    job: &JobSpec,
    checkpoint: &Checkpoint,
) -> Result<(Vec<u32>, Option<Tokenizer>), GenerationError> {
    let text = match prompt {
        Prompt::Tokens(tokens) => return Ok((tokens.clone(), None)),
        Prompt::Text(text) => text,
    };
    let tokenizer = match tokenizer {
        Some(tokenizer) => tokenizer,
        None => checkpoint_tokenizer::open(job, checkpoint.path())?.ok_or(GenerationError::NoTokenizer)?,
    };
    let mut tokens = tokenizer.encode(text)?;
    if tokens.is_empty() {
        // What precedes the first token of a document.
        tokens.push(tokenizer.separator());
    }
    Ok((tokens, Some(tokenizer)))
}
