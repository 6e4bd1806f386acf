//! The commands `checkpoint info`, `verify` and `export`; `import` is a separate module.

use std::path::Path;

use millrace_checkpoint::hf::export_hf;
use millrace_checkpoint::{Checkpoint, verify};

use super::args::CheckpointCommand;
use super::error::CliError;
use super::import::import;
use crate::error::AgentError;
use crate::launch::Exit;

pub fn run(command: &CheckpointCommand) -> Result<Exit, CliError> {
    match command {
        CheckpointCommand::Info { dir, json } => info(dir, *json),
        CheckpointCommand::Verify { dir } => verify_all(dir),
        CheckpointCommand::Export { dir, to: _, out } => export(dir, out),
        CheckpointCommand::Import { dir, from: _, model_dir, params, machine } => {
            import(dir, model_dir.clone(), params, machine)
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
        places => Err(AgentError::local(format!("{} is damaged in {places} place(s)", dir.display()))
            .hint("resume from an older checkpoint with --checkpoint_path")
            .into()),
    }
}

fn export(dir: &Path, out: &Path) -> Result<Exit, CliError> {
    let exported = export_hf(&Checkpoint::open(dir)?, out)?;
    super::print_line(format_args!(
        "Wrote {} tensors, {} bytes, to {}",
        exported.tensors,
        exported.bytes,
        exported.path.display()
    ));
    Ok(Exit::Success)
}
