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

use millrace_checkpoint::{Checkpoint, MANIFEST_FILE, VerificationLevel, newest_complete};
use millrace_data::DataError;
use millrace_emulator::inference::{InferenceError, SamplingError, SamplingOptions};
use millrace_emulator::kernels::Simd;
use millrace_params::JobSpec;

use super::args::GenerateArgs;
use super::bucket::local_checkpoint;
use super::error::CliError;
use crate::checkpoint_tokenizer;
use crate::error::AgentError;
use crate::generation::{
    FinishReason, Generation, GenerationError, GenerationOptions, GenerationResources, Prompt, RunError,
};
use crate::host;
use crate::input::data_failure;
use crate::launch::Exit;

/// Writes the continuation of the prompt to standard output.
pub fn run(flags: &GenerateArgs) -> Result<Exit, CliError> {
    let GenerateArgs { temperature, top_k, top_p, seed, max_tokens, ignore_end, .. } = *flags;
    let sampling = SamplingOptions { temperature, top_k, top_p, seed };
    let options = GenerationOptions { sampling, max_tokens, ignore_end };
    let simd = match flags.isa {
        Some(isa) => Simd::new(isa).map_err(|error| CliError::bad_input(error.to_string()))?,
        None => Simd::detect(),
    };
    let threads = flags.threads.map_or_else(host::cores, usize::from);
    let resources = GenerationResources { threads, simd, max_bytes: u64::MAX };
    let checkpoint = open(&local_checkpoint(&flags.checkpoint)?)?;
    let job = JobSpec::from_json(checkpoint.job()).map_err(|error| {
        AgentError::local(error).context(format!("can't read the job of {}", checkpoint.path().display()))
    })?;
    let prompt = match &flags.prompt_tokens[..] {
        [] => Prompt::Text(flags.prompt.clone()),
        tokens => Prompt::Tokens(tokens.to_vec()),
    };
    let tokenizer = flags.tokenizer.as_deref().map(checkpoint_tokenizer::open_named).transpose();
    let tokenizer = tokenizer.map_err(tokenizer_failure)?;
    let failed = |error| generation_failure(error, checkpoint.path());
    let generation = Generation::start(&checkpoint, &job, (&prompt, tokenizer), options, resources).map_err(failed)?;
    match write_text(generation, &prompt, &mut io::stdout().lock()) {
        // The reader has closed standard output (`| head`), and needs no more.
        Err(RunError::Consumer(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Success),
        Err(RunError::Consumer(error)) => Err(AgentError::local(error).context("can't write the text").into()),
        Err(RunError::Generation(error)) => Err(failed(error)),
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

/// Writes the prompt and the tokens that follow it, each as soon as its characters are complete.
fn write_text(generation: Generation, prompt: &Prompt, out: &mut impl Write) -> Result<(), RunError<io::Error>> {
    let write = |out: &mut dyn Write, text: &str| out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Prompt::Text(text) = prompt {
        write(out, text).map_err(RunError::Consumer)?;
    }
    let start = Instant::now();
    let finish = generation.run(|token, text| match prompt {
        Prompt::Text(_) => write(out, text),
        Prompt::Tokens(_) => write(out, &format!("{token} ")),
    })?;
    write(out, &format!("{}\n", finish.text)).map_err(RunError::Consumer)?;
    let rate = finish.tokens as f64 / start.elapsed().as_secs_f64().max(1e-9);
    let full = match finish.reason {
        FinishReason::MaxPositions => ": all positions of the model are used",
        FinishReason::MaxTokens | FinishReason::EndOfText => "",
    };
    eprintln!("Generated {} tokens, {rate:.1} tokens/sec{full}", finish.tokens);
    Ok(())
}

fn generation_failure(error: GenerationError, checkpoint: &Path) -> CliError {
    let bad_input = |error: GenerationError, hint: &str| CliError::bad_input(error).hint(hint);
    match error {
        GenerationError::Sampling(SamplingError::NotFinite) => AgentError::local(error).into(),
        GenerationError::Sampling(_) => bad_input(error, "--temperature 0.8 --top_k 40 --top_p 0.95 are usual values"),
        GenerationError::Model(error) => {
            CliError::bad_input(format!("can't generate text with {}: {error}", checkpoint.display()))
                .hint("only decoders, such as GPT and LLaMA, continue a text")
        }
        GenerationError::NoTokenizer => {
            bad_input(error, "name it with --tokenizer, or give the tokens with --prompt_tokens")
        }
        GenerationError::Tokenizer(error) => tokenizer_failure(error).into(),
        GenerationError::Prompt(reason) => bad_input(
            error,
            match reason {
                InferenceError::Positions { .. } => "shorten the prompt",
                InferenceError::Vocabulary { .. } => "give the tokenizer of the training data with --tokenizer",
                InferenceError::Empty => "give a prompt",
            },
        ),
        GenerationError::Memory { .. } => bad_input(error, "generate fewer tokens"),
        GenerationError::Weights(error) => error.into(),
        GenerationError::Threads(_) => AgentError::local(error).into(),
    }
}

/// Converts an error of a tokenizer.
fn tokenizer_failure(error: DataError) -> AgentError {
    match error {
        DataError::NotFound { path, .. } => AgentError::bad_input(format!("there is no tokenizer {}", path.display()))
            .hint("name gpt2, bytes or the file tokenizer.json of the training data with --tokenizer"),
        error => data_failure(error),
    }
}
