//! The commands `checkpoint info`, `verify` and `export`; `import` is a separate module.

use std::path::Path;

use millrace_checkpoint::hf::export_hf;
use millrace_checkpoint::{Checkpoint, verify};

use super::arguments::CheckpointTask;
use super::import::import;
use super::refusal::Refusal;
use crate::failure::Failure;
use crate::launch::Exit;

/// Executes `task`.
pub fn run(task: &CheckpointTask) -> Result<Exit, Refusal> {
    match task {
        CheckpointTask::Info { dir, json } => info(dir, *json),
        CheckpointTask::Verify { dir } => verify_all(dir),
        CheckpointTask::Export { dir, to: _, out } => export(dir, out),
        CheckpointTask::Import { dir, from: _, model_dir, params, machine } => {
            import(dir, model_dir.clone(), params, machine)
        }
    }
}

fn info(dir: &Path, json: bool) -> Result<Exit, Refusal> {
    let info = Checkpoint::open(dir)?.info();
    if json {
        super::say(super::pretty(&info)?);
    } else {
        super::say(&info);
    }
    Ok(Exit::Done)
}

/// Prints every damaged place. A directory without a manifest counts as a damaged checkpoint.
fn verify_all(dir: &Path) -> Result<Exit, Refusal> {
    let damages = match verify(dir, |_| ()) {
        Err(error @ millrace_checkpoint::Error::NotACheckpoint { .. }) if dir.is_dir() => {
            return Err(Failure::own(error).hint("name a directory such as model_dir/checkpoint_100").into());
        }
        verified => verified?,
    };
    for damage in &damages {
        super::say(format_args!("damaged: {damage}"));
    }
    match damages.len() {
        0 => {
            super::say(format_args!("{} is whole", dir.display()));
            Ok(Exit::Done)
        }
        places => Err(Failure::own(format!("{} is damaged in {places} place(s)", dir.display()))
            .hint("go on from an older checkpoint with --checkpoint_path")
            .into()),
    }
}

fn export(dir: &Path, out: &Path) -> Result<Exit, Refusal> {
    let exported = export_hf(&Checkpoint::open(dir)?, out)?;
    super::say(format_args!(
        "Wrote {} tensors, {} bytes, to {}",
        exported.tensors,
        exported.bytes,
        exported.path.display()
    ));
    Ok(Exit::Done)
}
