//! What a run begins with: a checkpoint or initial values, and the report of what was restored.

use std::collections::VecDeque;
use std::path::Path;

use millrace_checkpoint::{Check, Checkpoint, Moments, PlanReader, Point, list, newest_whole};
use millrace_engine::message::Source;
use millrace_params::{Job, Mode};

use super::saver::Saved;
use crate::checkpoints::{self, checkpoint_failure, holds_checkpoints, strictness};
use crate::control::job::CompiledJob;
use crate::failure::Failure;
use crate::launch::Launch;

/// Where a run begins.
#[derive(Debug)]
pub struct Beginning {
    /// What the shards load.
    pub source: Source,
    /// Updates made already.
    pub step: u64,
    /// The checkpoint of that step in `model_dir`, where it is the one begun with.
    pub saved: Option<Saved>,
    /// Which one of `model_dir`'s it is, if it is one.
    pub from: Option<Point>,
    /// The profile of the checkpoint, JSON, where there is one.
    pub profile: Option<String>,
    /// Sentences for the user.
    pub report: Vec<String>,
}

/// The checkpoint that the user named, verified to its last byte: what is damaged is to be refused before anything is
/// written.
///
/// # Errors
/// It is none, or damaged.
pub fn named(launch: &Launch) -> Result<Option<Checkpoint>, Failure> {
    let Some(path) = &launch.resume.checkpoint_path else { return Ok(None) };
    if launch.mode == Mode::EvalAll && holds_checkpoints(path)? {
        return Ok(None);
    }
    Checkpoint::open_verified(path).map(Some).map_err(|error| checkpoint_failure(&error))
}

/// Chooses the checkpoint: the one `named`, else the newest whole one of `model_dir`, else none. A run that evaluates all
/// has every whole one to begin with, oldest first: of the directory that the user named, else of `model_dir`.
///
/// # Errors
/// It is of another model, or there is nothing to evaluate.
pub fn choose(
    launch: &Launch,
    compiled: &CompiledJob,
    named: Option<Checkpoint>,
) -> Result<VecDeque<Beginning>, Failure> {
    let mut report = Vec::new();
    let checkpoints = match named {
        Some(checkpoint) => vec![checkpoint],
        None if launch.mode == Mode::EvalAll => all_whole(launch, &mut report)?,
        None if launch.resume.autoload || !launch.mode.trains() => newest(launch, &mut report)?.into_iter().collect(),
        None => Vec::new(),
    };
    if checkpoints.is_empty() {
        return without_checkpoint(launch, report).map(|beginning| [beginning].into());
    }
    let begin = |checkpoint| from_checkpoint(launch, compiled, checkpoint, std::mem::take(&mut report));
    checkpoints.into_iter().map(begin).collect()
}

/// The newest whole checkpoint of `model_dir`; sentences about it go to `report`.
fn newest(launch: &Launch, report: &mut Vec<String>) -> Result<Option<Checkpoint>, Failure> {
    let directory = &launch.model_dir;
    report.push(format!(
        "Checkpoint autoloading is enabled. Looking for latest checkpoint in \"{}\".",
        directory.display()
    ));
    let (checkpoint, broken) = newest_whole(directory, Check::Full).map_err(|error| checkpoint_failure(&error))?;
    report.extend(broken.iter().map(|broken| passed_over(&broken.path, &broken.reason)));
    Ok(checkpoint)
}

/// Every whole checkpoint there is to evaluate, oldest first; what is said of the others goes to `report`.
fn all_whole(launch: &Launch, report: &mut Vec<String>) -> Result<Vec<Checkpoint>, Failure> {
    let directory = launch.resume.checkpoint_path.as_deref().unwrap_or(&launch.model_dir);
    let listing = list(directory).map_err(|error| checkpoint_failure(&error))?;
    report.extend(listing.broken.iter().map(|broken| passed_over(&broken.path, &broken.reason)));
    let mut whole = Vec::new();
    for info in listing.whole {
        match Checkpoint::open_verified(&info.path) {
            Ok(checkpoint) => whole.push(checkpoint),
            Err(error) => report.push(passed_over(&info.path, &error)),
        }
    }
    Ok(whole)
}

fn passed_over(path: &Path, reason: impl std::fmt::Display) -> String {
    format!("Checkpoint {} is passed over: {reason}", path.display())
}

fn without_checkpoint(launch: &Launch, mut report: Vec<String>) -> Result<Beginning, Failure> {
    if !launch.mode.trains() {
        let directory = launch.model_dir.display();
        return Err(Failure::bad_input(format!("there is no checkpoint in {directory} to evaluate"))
            .hint("name one with --checkpoint_path, or train first"));
    }
    report.push("No checkpoint was provided. Using randomly initialized model parameters.".to_owned());
    Ok(Beginning { source: Source::Initial, step: 0, saved: None, from: None, profile: None, report })
}

fn from_checkpoint(
    launch: &Launch,
    compiled: &CompiledJob,
    checkpoint: Checkpoint,
    mut report: Vec<String>,
) -> Result<Beginning, Failure> {
    let reader = PlanReader::new(checkpoint, &compiled.plan, &Moments::none(), strictness(&compiled.job))
        .map_err(|error| checkpoint_failure(&error))?;
    report.extend(reader.absent_tensors().iter().map(|name| format!("{name} is not in it and starts anew.")));
    let checkpoint = reader.checkpoint();
    let (states, path) = (launch.resume.states, checkpoint.path());
    let step = if states.global_step || !launch.mode.trains() { checkpoint.step() } else { 0 };
    let optimizer = states.optimizer && launch.mode.trains();
    let max_steps = compiled.job.run.max_steps;
    if launch.mode.trains() && step > max_steps {
        return Err(Failure::bad_input(format!("{} is at step {step}, beyond max_steps {max_steps}", path.display()))
            .hint("give a larger max_steps: it counts from step 0"));
    }
    let what = if optimizer { "parameters, optimizer state" } else { "parameters" };
    report.push(format!("Loaded {what} of step {} from {}.", checkpoint.step(), path.display()));
    report.extend(changes(&compiled.job, checkpoint.job()));
    let here = path.parent().and_then(|parent| parent.canonicalize().ok());
    let is_own = step == checkpoint.step() && here == launch.model_dir.canonicalize().ok();
    let digest = || checkpoint.info().parameters_blake3.to_string();
    let saved = is_own.then(|| Saved { path: path.to_owned(), step, digest: digest() });
    Ok(Beginning {
        source: Source::Checkpoint { path: path.to_string_lossy().into_owned(), optimizer, step },
        step,
        saved,
        from: is_own.then(|| checkpoint.point()),
        profile: Some(checkpoint.numerics_profile().to_owned()),
        report,
    })
}

/// What the params say differently from the run that wrote the checkpoint. The params win; a user who resumes with
/// another learning rate is told so.
fn changes(job: &Job, then: &str) -> Vec<String> {
    let now: serde_json::Value = serde_json::from_str(&job.to_json()).unwrap_or_default();
    let then: serde_json::Value = serde_json::from_str(then).unwrap_or_default();
    let mut changes = Vec::new();
    for section in ["model", "optimizer", "train_input", "eval_input"] {
        compare(section, &then[section], &now[section], &mut changes);
    }
    changes
}

fn compare(key: &str, then: &serde_json::Value, now: &serde_json::Value, changes: &mut Vec<String>) {
    use serde_json::Value::{Null, Object};
    match (then, now) {
        (Object(before), Object(after)) => {
            let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
            for inner in keys {
                let of = |map: &serde_json::Map<String, _>| map.get(inner).cloned().unwrap_or(Null);
                compare(&format!("{key}.{inner}"), &of(before), &of(after), changes);
            }
        }
        (then, now) if then != now => {
            changes.push(format!("Changed since that checkpoint: {key} was {then}, is {now}."))
        }
        _ => {}
    }
}

/// Compares the pinned numerics profile with that of the checkpoint, if there is one that training goes on from.
///
/// # Errors
/// As [`checkpoints::check_profile`].
pub fn check_profile(launch: &Launch, compiled: &CompiledJob, then: Option<&str>) -> Result<Option<String>, Failure> {
    match then.filter(|_| launch.mode.trains()) {
        Some(then) => checkpoints::check_profile(then, &profile_json(compiled), launch.resume.accept_other_profile),
        None => Ok(None),
    }
}

/// The profile as manifests hold it.
pub fn profile_json(compiled: &CompiledJob) -> String {
    // Two names, a number and a flag: nothing JSON could refuse.
    serde_json::to_string(&compiled.profile).unwrap_or_default()
}

/// Whether `model_dir` already has the evaluation of `step`.
pub fn evaluated(model_dir: &Path, step: u64) -> bool {
    let points = millrace_telemetry::metrics::read(model_dir).unwrap_or_default();
    points.iter().any(|point| matches!(point, millrace_telemetry::metrics::Point::Eval(eval) if eval.step == step))
}
