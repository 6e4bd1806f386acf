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
use millrace_data::Tokenizer;
use millrace_emulator::inference::{
    InferenceError, InferenceModel, InferenceOptions, InferenceStartError, Sampler, SamplingOptions,
};
use millrace_emulator::kernels::Simd;
use millrace_params::{DataSource, JobSpec, TokenizerName};

use super::args::GenerateArgs;
use super::error::CliError;
use crate::error::AgentError;
use crate::host;
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
    let prompt = Prompt::new(flags, &job)?;
    let mut text = TextWriter { tokenizer: prompt.tokenizer, out: io::stdout().lock(), pending: Vec::new() };
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
    fn new(flags: &GenerateArgs, job: &JobSpec) -> Result<Self, CliError> {
        if !flags.prompt_tokens.is_empty() {
            return Ok(Self { tokenizer: None, tokens: flags.prompt_tokens.clone() });
        }
        let trained_with = match &job.train_input.source {
            DataSource::Text { tokenizer, .. } => Some(*tokenizer),
            _ => None,
        };
        let tokenizer = match (flags.tokenizer.as_deref(), trained_with) {
            (Some("bytes"), _) | (None, Some(TokenizerName::Bytes)) => Tokenizer::Bytes,
            (Some(_), _) | (None, Some(TokenizerName::Gpt2)) => Tokenizer::Gpt2,
            (None, None) => {
                let error = CliError::bad_input("the checkpoint was trained on tokens, and has no tokenizer");
                return Err(error.hint("name it with --tokenizer, or give the tokens with --prompt_tokens"));
            }
        };
        let mut tokens: Vec<u32> = tokenizer.encode(&flags.prompt).into_iter().map(u32::from).collect();
        if tokens.is_empty() {
            // What precedes the first token of a document.
            tokens.push(u32::from(tokenizer.separator()));
        }
        Ok(Self { tokenizer: Some(tokenizer), tokens })
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
    text: &mut TextWriter<impl Write>,
) -> Result<(), GenerateError> {
    let failed = |error: CliError| GenerateError::Failed(error);
    let positions = model.positions();
    let mut logits = model.extend(&prompt.tokens).map_err(|error| failed(prompt_error(error)))?;
    if prompt.tokenizer.is_some() {
        text.out.write_all(flags.prompt.as_bytes())?;
        text.out.flush()?;
    }
    let end = prompt.tokenizer.map(|tokenizer| u32::from(tokenizer.separator())).filter(|_| !flags.ignore_end);
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
struct TextWriter<W> {
    tokenizer: Option<Tokenizer>,
    out: W,
    /// Bytes of a character that is not complete.
    pending: Vec<u8>,
}

impl<W: Write> TextWriter<W> {
    fn write(&mut self, token: u32) -> io::Result<()> {
        let Some(tokenizer) = self.tokenizer else {
            write!(self.out, "{token} ")?;
            return self.out.flush();
        };
        // Tokens of a padded vocabulary have no text.
        if let Ok(token) = u16::try_from(token) {
            self.pending.extend(tokenizer.decode(&[token]));
        }
        self.write_complete()
    }

    /// Writes pending bytes up to a character that may continue. Bytes that are not UTF-8 become U+FFFD.
    fn write_complete(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let (valid, invalid) = match std::str::from_utf8(&self.pending) {
                Ok(text) => (text.len(), Some(0)),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            self.out.write_all(&self.pending[..valid])?;
            self.pending.drain(..valid);
            match invalid {
                None => break,
                Some(0) => {}
                Some(length) => {
                    self.pending.drain(..length);
                    self.out.write_all("\u{fffd}".as_bytes())?;
                }
            }
        }
        self.out.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.out.write_all("\u{fffd}".as_bytes())?;
        }
        writeln!(self.out)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_written_when_they_are_complete() {
        let mut text = TextWriter { tokenizer: Some(Tokenizer::Bytes), out: Vec::new(), pending: Vec::new() };
        let mut written = Vec::new();
        for byte in b"a\xc3\xa9\xff\xe2\x82b\xe2" {
            text.write(u32::from(*byte)).unwrap();
            written.push(String::from_utf8(text.out.clone()).unwrap());
        }
        let expected =
            ["a", "a", "aé", "aé\u{fffd}", "aé\u{fffd}", "aé\u{fffd}", "aé\u{fffd}\u{fffd}b", "aé\u{fffd}\u{fffd}b"];
        assert_eq!(written, expected);
        text.write(70_000).unwrap();
        text.finish().unwrap();
        assert_eq!(String::from_utf8(text.out).unwrap(), "aé\u{fffd}\u{fffd}b\u{fffd}\n");
    }
}
