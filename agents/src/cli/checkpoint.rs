//! `checkpoint info`, `verify`, `export`, `import`.

use std::path::Path;
use std::sync::Arc;

use millrace_checkpoint::hf::{export_hf, import_hf};
use millrace_checkpoint::{Checkpoint, Facts, LockRequest, ModelDirLock, list, verify};
use millrace_params::Overrides;

use super::arguments::{CheckpointTask, JobFlags};
use super::job::{Prepared, prepare, read_params};
use super::refusal::Refusal;
use crate::failure::Failure;
use crate::launch::Exit;

/// Does `task`.
pub fn run(task: &CheckpointTask) -> Result<Exit, Refusal> {
    match task {
        CheckpointTask::Info { dir, json } => info(dir, *json),
        CheckpointTask::Verify { dir } => verify_all(dir),
        CheckpointTask::Export { dir, to: _, out } => export(dir, out),
        CheckpointTask::Import { dir, from: _, model_dir, flags } => import(dir, model_dir.clone(), flags),
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

/// Names every damaged place. What should be a checkpoint and has lost its manifest is damaged, too.
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

fn import(dir: &Path, model_dir: Option<String>, flags: &JobFlags) -> Result<Exit, Refusal> {
    let overrides = Overrides { model_dir, ..flags.overrides() };
    let prepared = prepare(flags, &overrides, read_params(&flags.params)?)?;
    let model_dir = Path::new(&prepared.resolved.job.run.model_dir);
    if let Some(newest) = list(model_dir)?.whole.last() {
        let refusal =
            Refusal::bad_input(format!("{} already has a checkpoint of step {}", model_dir.display(), newest.step));
        return Err(refusal.hint("choose another model_dir with -o"));
    }
    let existed = model_dir.exists();
    let lock = ModelDirLock::acquire(model_dir, &LockRequest::local()).map_err(millrace_checkpoint::Error::from)?;
    let lock = Arc::new(lock);
    let imported = import_hf(dir, &lock, &prepared.plan, facts(&prepared)?);
    if imported.is_err() && !existed {
        drop(lock);
        // As it was before; a failure leaves a directory without a checkpoint.
        let _ = std::fs::remove_dir_all(model_dir);
    }
    super::say(format_args!("Imported {} as {}", dir.display(), imported?.display()));
    Ok(Exit::Done)
}

/// What is known of weights that nobody here has trained.
fn facts(prepared: &Prepared) -> Result<Facts, Refusal> {
    let job = &prepared.resolved.job;
    let profile = prepared.profile(None);
    let optimizer = serde_json::to_value(job.optimizer.kind).map_err(Failure::own)?;
    Ok(Facts {
        plan: prepared.plan.hash(),
        seed: job.run.seed,
        next_sample: 0,
        numerics_profile: serde_json::to_string(&profile).map_err(Failure::own)?,
        precision: profile.precision.to_string(),
        optimizer: optimizer["name"].as_str().unwrap_or_default().to_owned(),
        loss: None,
        grad_norm: None,
        notes: Vec::new(),
        job: job.to_json(),
        recovery: false,
    })
}
