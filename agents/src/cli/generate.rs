//! The command `generate`: continues a text with the model of a checkpoint.
//!
//! ```text
//! millrace-agent generate -c model_dir --prompt "In the beginning" --temperature 0.8 --seed 1
//! ```
//!
//! Tokens are written to standard output as they are chosen. The same checkpoint, prompt, options and numerics profile
//! give the same text, on any number of threads.

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use millrace_checkpoint::{Checkpoint, MANIFEST_FILE, Section, VerificationLevel, newest_complete};
use millrace_data::{DataError, TextDecoder, Tokenizer};
use millrace_emulator::inference::{
    InferenceError, InferenceModel, InferenceOptions, InferenceStartError, Sampler, SamplingOptions,
};
use millrace_emulator::kernels::Simd;
use millrace_params::JobSpec;

use super::args::GenerateArgs;
use super::error::CliError;
use crate::checkpoint_tokenizer;
use crate::error::AgentError;
use crate::host;
use crate::input::data_failure;
use crate::launch::Exit;

/// Writes the continuation of the prompt to standard output.
pub fn run(flags: &GenerateArgs) -> Result<Exit, CliError> {
    let options =
        SamplingOptions { temperature: flags.temperature, top_k: flags.top_k, top_p: flags.top_p, seed: flags.seed };
    let sampler = Sampler::new(options).map_err(|error| {
        CliError::bad_input(error).hint("--temperature 0.8 --top_k 40 --top_p 0.95 are usual values")
    })?;
    let checkpoint = open(&flags.checkpoint)?;
    let job = JobSpec::from_json(checkpoint.job()).map_err(|error| {
        AgentError::local(error).context(format!("can't read the job of {}", checkpoint.path().display()))
    })?;
    // What the model can't do is reported before what the prompt lacks.
    let model = load(&checkpoint, &job, flags)?;
    let prompt = Prompt::new(flags, &job, checkpoint.path())?;
    let mut text = TextWriter::new(&prompt, io::stdout().lock());
    match generate(model, sampler, &prompt, flags, &mut text) {
        // The reader has closed standard output (`| head`), and needs no more.
        Err(GenerateError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Success),
        Err(GenerateError::Output(error)) => Err(AgentError::local(error).context("can't write the text").into()),
        Err(GenerateError::Failed(error)) => Err(error),
        Ok(()) => Ok(Exit::Success),
    }
}

/// Opens a checkpoint, or the newest one of a model_dir.
fn open(path: &Path) -> Result<Checkpoint, CliError> {
    if !path.is_dir() {
        return Err(CliError::bad_input(format!("{} is not a directory", path.display()))
            .hint("name a checkpoint such as model_dir/checkpoint_100, or a model_dir"));
    }
    if path.join(MANIFEST_FILE).exists() {
        return Ok(Checkpoint::open(path)?);
    }
    let (newest, _) = newest_complete(path, VerificationLevel::Quick)?;
    newest.ok_or_else(|| {
        CliError::bad_input(format!("{} has no checkpoint", path.display()))
            .hint("name a checkpoint such as model_dir/checkpoint_100, or a model_dir")
    })
}

/// What the text begins with, and how it is written.
struct Prompt {
    /// `None` if tokens are written as numbers.
    tokenizer: Option<Tokenizer>,
    tokens: Vec<u32>,
}

impl Prompt {
    fn new(flags: &GenerateArgs, job: &JobSpec, checkpoint: &Path) -> Result<Self, CliError> {
        if !flags.prompt_tokens.is_empty() {
            return Ok(Self { tokenizer: None, tokens: flags.prompt_tokens.clone() });
        }
        let tokenizer = match &flags.tokenizer {
            Some(name) => checkpoint_tokenizer::open_named(name).map(Some),
            None => checkpoint_tokenizer::open(job, checkpoint),
        };
        let tokenizer = tokenizer.map_err(tokenizer_failure)?.ok_or_else(|| {
            let error = CliError::bad_input("the checkpoint was trained on tokens, and has no tokenizer");
            error.hint("name it with --tokenizer, or give the tokens with --prompt_tokens")
        })?;
        let mut tokens = tokenizer.encode(&flags.prompt).map_err(data_failure)?;
        if tokens.is_empty() {
            // What precedes the first token of a document.
            tokens.push(tokenizer.separator());
        }
        Ok(Self { tokenizer: Some(tokenizer), tokens })
    }
}

/// Converts an error of the tokenizer of a checkpoint.
fn tokenizer_failure(error: DataError) -> AgentError {
    match error {
        DataError::NotFound { path, .. } => AgentError::bad_input(format!("there is no tokenizer {}", path.display()))
            .hint("name gpt2, bytes or the file tokenizer.json of the training data with --tokenizer"),
        error => data_failure(error),
    }
}

/// Reads the weights of a checkpoint.
fn load(checkpoint: &Checkpoint, job: &JobSpec, flags: &GenerateArgs) -> Result<InferenceModel, CliError> {
    let graph = checkpoint.layout().graph();
    let simd = match flags.isa {
        Some(isa) => Simd::new(isa).map_err(|error| CliError::bad_input(error.to_string()))?,
        None => Simd::detect(),
    };
    let options = InferenceOptions {
        threads: flags.threads.map_or_else(host::cores, usize::from),
        simd,
        precision: job.model.precision,
        positions: job.model.max_position_embeddings.max(graph.sequence()),
    };
    let read = |tensor| checkpoint.read_tensor(tensor, Section::Parameters);
    InferenceModel::new(graph.clone(), options, read).map_err(|error| match error {
        InferenceStartError::Weights(error) => error.into(),
        InferenceStartError::Threads(error) => AgentError::local(error).into(),
        error => CliError::bad_input(format!("can't generate text with {}: {error}", checkpoint.path().display()))
            .hint("only decoders, such as GPT and LLaMA, continue a text"),
    })
}

/// Why a text ended early.
enum GenerateError {
    Output(io::Error),
    Failed(CliError),
}

impl From<io::Error> for GenerateError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Writes the prompt, and tokens until the end of the document, `max_tokens`, or the model's last position.
fn generate(
    mut model: InferenceModel,
    mut sampler: Sampler,
    prompt: &Prompt,
    flags: &GenerateArgs,
    text: &mut TextWriter<'_, impl Write>,
) -> Result<(), GenerateError> {
    let failed = |error: CliError| GenerateError::Failed(error);
    let positions = model.positions();
    let mut logits = model.extend(&prompt.tokens).map_err(|error| failed(prompt_error(error)))?;
    if prompt.tokenizer.is_some() {
        text.out.write_all(flags.prompt.as_bytes())?;
        text.out.flush()?;
    }
    let end = prompt.tokenizer.as_ref().map(Tokenizer::separator).filter(|_| !flags.ignore_end);
    let (start, first) = (Instant::now(), prompt.tokens.len() as u64);
    let mut count = 0;
    while count < flags.max_tokens {
        let token = sampler.choose(logits, first + count).map_err(|error| failed(AgentError::local(error).into()))?;
        if Some(token) == end {
            break;
        }
        text.write(token)?;
        count += 1;
        if first + count >= positions as u64 || count == flags.max_tokens {
            break;
        }
        logits = model.extend(&[token]).map_err(|error| failed(AgentError::local(error).into()))?;
    }
    text.finish()?;
    let rate = count as f64 / start.elapsed().as_secs_f64().max(1e-9);
    let full = if first + count >= positions as u64 { ": all positions of the model are used" } else { "" };
    eprintln!("Generated {count} tokens, {rate:.1} tokens/sec{full}");
    Ok(())
}

fn prompt_error(error: InferenceError) -> CliError {
    let hint = match error {
        InferenceError::Positions { .. } => "shorten the prompt",
        InferenceError::Vocabulary { .. } => "give the tokenizer of the training data with --tokenizer",
        InferenceError::Empty => "give a prompt",
    };
    CliError::bad_input(format!("can't continue the prompt: {error}")).hint(hint)
}

/// Writes tokens as text, each as soon as its characters are complete.
struct TextWriter<'a, W> {
    /// `None` if tokens are written as numbers.
    decoder: Option<TextDecoder<'a>>,
    out: W,
}

impl<'a, W: Write> TextWriter<'a, W> {
    fn new(prompt: &'a Prompt, out: W) -> Self {
        let decoder = prompt.tokenizer.as_ref().map(|tokenizer| TextDecoder::new(tokenizer, &prompt.tokens));
        Self { decoder, out }
    }

    fn write(&mut self, token: u32) -> io::Result<()> {
        match &mut self.decoder {
            Some(decoder) => self.out.write_all(decoder.push(token).as_bytes())?,
            None => write!(self.out, "{token} ")?,
        }
        self.out.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(decoder) = self.decoder.take() {
            self.out.write_all(decoder.finish().as_bytes())?;
        }
        writeln!(self.out)?;
        self.out.flush()
    }
}
