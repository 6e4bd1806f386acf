//! The commands `checkpoint info`, `verify` and `export`; `import` is a separate module.

use std::path::Path;

use millrace_checkpoint::hf::{ExportedTokenizer, export_hf};
use millrace_checkpoint::{Checkpoint, export_weights, verify};
use millrace_params::JobSpec;

use super::args::{CheckpointCommand, WeightFormat};
use super::bucket::local_checkpoint;
use super::error::CliError;
use super::import::import;
use crate::checkpoint_tokenizer;
use crate::error::AgentError;
use crate::exported_tokenizer::{exported_for, exported_tokenizer};
use crate::input::data_failure;
use crate::launch::Exit;

pub fn run(command: &CheckpointCommand) -> Result<Exit, CliError> {
    match command {
        CheckpointCommand::Info { dir, json } => info(&local_checkpoint(dir)?, *json),
        CheckpointCommand::Verify { dir } => verify_all(&local_checkpoint(dir)?),
        CheckpointCommand::Export { dir, to, out, tokenizer } => {
            export(&local_checkpoint(dir)?, *to, out, tokenizer.as_deref())
        }
        CheckpointCommand::Import { path, from, model_dir, params, machine } => {
            import(path, *from, model_dir.clone(), params, machine)
        }
    }
}

fn info(dir: &Path, json: bool) -> Result<Exit, CliError> {
    let info = Checkpoint::open(dir)?.info();
    if json {
        super::print_line(super::to_pretty_json(&info)?);
    } else {
        super::print_line(&info);
    }
    Ok(Exit::Success)
}

/// Prints every damaged place. A directory without a manifest counts as a damaged checkpoint.
fn verify_all(dir: &Path) -> Result<Exit, CliError> {
    let damages = match verify(dir, |_| ()) {
        Err(error @ millrace_checkpoint::Error::NotACheckpoint { .. }) if dir.is_dir() => {
            return Err(AgentError::local(error).hint("name a directory such as model_dir/checkpoint_100").into());
        }
        verified => verified?,
    };
    for damage in &damages {
        super::print_line(format_args!("damaged: {damage}"));
    }
    match damages.len() {
        0 => {
            super::print_line(format_args!("{} is complete and undamaged", dir.display()));
            Ok(Exit::Success)
        }
        count => Err(AgentError::local(format!("{} is damaged in {count} place(s)", dir.display()))
            .hint("resume from an older checkpoint with --checkpoint_path")
            .into()),
    }
}

fn export(dir: &Path, format: WeightFormat, out: &Path, tokenizer: Option<&str>) -> Result<Exit, CliError> {
    let checkpoint = Checkpoint::open(dir)?;
    let exported = match format {
        WeightFormat::Hf => export_hf(&checkpoint, out, tokenizer_of_export(&checkpoint, tokenizer)?.as_ref())?,
        WeightFormat::Safetensors if tokenizer.is_some() => {
            let error = CliError::bad_input("a safetensors file has no tokenizer");
            return Err(error.hint("leave --tokenizer out, or export with --to hf"));
        }
        WeightFormat::Safetensors => export_weights(&checkpoint, out)?,
    };
    super::print_line(format_args!(
        "Wrote {} tensors, {} bytes, to {}",
        exported.tensors,
        exported.bytes,
        exported.path.display()
    ));
    Ok(Exit::Success)
}

/// Returns the tokenizer that is named, or that of the training data of a checkpoint; `None` if there is none.
fn tokenizer_of_export(checkpoint: &Checkpoint, name: Option<&str>) -> Result<Option<ExportedTokenizer>, CliError> {
    let job = JobSpec::from_json(checkpoint.job()).map_err(|error| {
        AgentError::local(error).context(format!("can't read the job of {}", checkpoint.path().display()))
    })?;
    let found = match name {
        Some(name) => checkpoint_tokenizer::open_named(name).and_then(|tokenizer| exported_for(&tokenizer, &job)),
        None => exported_tokenizer(&job, checkpoint.path()),
    };
    let found = found.map_err(data_failure)?;
    if found.is_none() && name.is_some() {
        eprintln!(
            "The export has no tokenizer: its tokens have the names or the numbers of the model's special tokens."
        );
    } else if found.is_none() && job.train_input.vocabulary_paths() > 0 {
        eprintln!(
            "The export has no tokenizer: that of the training data is missing beside the checkpoint, or does not suit \
             the model; --tokenizer FILE adds it."
        );
    }
    Ok(found)
}
