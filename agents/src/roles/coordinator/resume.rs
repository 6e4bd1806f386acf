//! Determines what a run begins with: a checkpoint or initial values. Reports what was restored.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_checkpoint::{
    Checkpoint, LineagePoint, ModelDirLock, Moments, PlanReader, VerificationLevel, check_weights,
    contains_checkpoints, import_weights, list, newest_complete,
};
use millrace_emulator::numerics::{Isa, NumericsProfile, largest_chunk};
use millrace_engine::message::ParameterSource;
use millrace_engine::types::TrainingHistory;
use millrace_params::{CheckpointStates, InputSpec, JobSpec, Mode};
use millrace_telemetry::journal::OutcomeReason;

use super::checkpoint_writer::PublishedCheckpoint;
use crate::checkpoints::{
    self, check_last_step, checkpoint_failure, imported_metadata, load_strictness, restored_history,
};
use crate::control::job::{BatchCuts, CompiledJob, JobDocument};
use crate::error::AgentError;
use crate::launch::LaunchDocument;

/// The state that a run begins with.
#[derive(Debug)]
pub struct StartPoint {
    /// The source from which the shards load parameters.
    pub source: ParameterSource,
    /// Number of updates made so far.
    pub step: u64,
    /// The checkpoint of this step in `model_dir`, if the run begins with it.
    pub saved: Option<PublishedCheckpoint>,
    /// The identity of that checkpoint within `model_dir`, if the run begins with one of `model_dir`.
    pub from: Option<LineagePoint>,
    /// Numerics profile of the checkpoint, JSON; `None` for initial values.
    pub profile: Option<String>,
    /// Skipped batches and means up to `step`.
    pub history: TrainingHistory,
    /// Sentences for the user.
    pub report: Vec<String>,
}

impl StartPoint {
    /// Returns the instruction set of the checkpoint, if the run begins with one whose profile is known.
    pub fn isa(&self) -> Option<Isa> {
        checkpoints::isa_of_profile(self.profile.as_deref()?)
    }
}

/// What the user named for a run to start from.
pub enum NamedStart {
    /// A checkpoint, of which every byte is verified.
    Checkpoint(Box<Checkpoint>),
    /// A safetensors file with the tensors of the model.
    Weights(PathBuf),
}

/// Opens what the user named for the run to start from, and checks it, because damaged data must be rejected before
/// anything is written. Returns `None` if the user named nothing, or if the run evaluates all checkpoints of the named
/// directory.
///
/// # Errors
/// The path is neither a checkpoint nor a safetensors file with the model's tensors, or the checkpoint is damaged.
pub fn named_start(launch: &LaunchDocument, compiled: &CompiledJob) -> Result<Option<NamedStart>, AgentError> {
    open_named_start(launch, compiled, VerificationLevel::Full)
}

fn open_named_start(
    launch: &LaunchDocument,
    compiled: &CompiledJob,
    level: VerificationLevel,
) -> Result<Option<NamedStart>, AgentError> {
    let Some(path) = &launch.resume.checkpoint_path else { return Ok(None) };
    if millrace_roots::is_file(path) {
        check_weights(path, &compiled.plan).map_err(checkpoint_failure)?;
        return Ok(Some(NamedStart::Weights(path.clone())));
    }
    if launch.mode == Mode::EvalAll && contains_checkpoints(path).map_err(checkpoint_failure)? {
        return Ok(None);
    }
    let opened = match level {
        VerificationLevel::Full => Checkpoint::open_verified(path),
        VerificationLevel::Quick => Checkpoint::open(path),
    };
    Ok(Some(NamedStart::Checkpoint(Box::new(opened.map_err(checkpoint_failure)?))))
}

/// Returns what a training run that has begun can be restored from: the newest complete checkpoint of its lineage in
/// model_dir, with all of its states; if there is none, what the run began with. At [`VerificationLevel::Quick`] only
/// manifests, lengths and headers of files are read: the shards verify what they load.
///
/// # Errors
/// Checkpoints can't be read, or what the run began with is no longer there.
pub fn newest_of_run(
    launch: &LaunchDocument,
    compiled: &CompiledJob,
    level: VerificationLevel,
    lock: &Arc<ModelDirLock>,
) -> Result<StartPoint, AgentError> {
    let (checkpoint, skipped) = newest_complete(&launch.model_dir, level).map_err(checkpoint_failure)?;
    let report = skipped.iter().map(|skipped| skipped_message(&skipped.path, &skipped.reason)).collect();
    if let Some(checkpoint) = checkpoint {
        let mut exact = launch.clone();
        exact.resume.states = CheckpointStates::ALL;
        return start_from_checkpoint(&exact, compiled, checkpoint, report);
    }
    match open_named_start(launch, compiled, level)? {
        Some(NamedStart::Checkpoint(checkpoint)) => start_from_checkpoint(launch, compiled, *checkpoint, report),
        Some(NamedStart::Weights(file)) => start_from_weights(launch, compiled, &file, lock),
        None => start_without_checkpoint(launch, report),
    }
}

/// Returns whether the checkpoint in `path` is one of model_dir.
pub fn is_in_model_dir(launch: &LaunchDocument, path: &Path) -> bool {
    let directory = path.parent().and_then(|parent| parent.canonicalize().ok());
    directory.is_some() && directory == launch.model_dir.canonicalize().ok()
}

/// Checks that a run of `compiled` computes the same bits from `found` as from the checkpoint that it was compiled for.
///
/// # Errors
/// Leaves, chunks or the numerics profile are others.
pub fn check_same_bits(
    launch: &LaunchDocument,
    compiled: &CompiledJob,
    found: &mut StartPoint,
) -> Result<(), AgentError> {
    let kept = recompile_with_checkpoint_cuts(launch, compiled.clone(), found)?;
    if kept.hash != compiled.hash {
        let reason = "the newest undamaged checkpoint was computed in other leaves or chunks than this attempt";
        return Err(AgentError::local(reason).hint("run the job again: it resumes from that checkpoint"));
    }
    check_profile(launch, compiled, found.profile.as_deref()).map(drop)
}

/// Chooses the checkpoint: `named`, or else the newest complete one of the lock's model_dir, or else none. A run that
/// evaluates all checkpoints begins with each complete one, oldest first: of the directory that the user named, or else
/// of model_dir.
///
/// # Errors
/// A checkpoint is of another model, there is none to evaluate, or weights can't be imported.
pub fn choose_checkpoint(
    launch: &LaunchDocument,
    compiled: &CompiledJob,
    named: Option<NamedStart>,
    lock: &Arc<ModelDirLock>,
) -> Result<VecDeque<StartPoint>, AgentError> {
    let mut report = Vec::new();
    let checkpoints = match named {
        Some(NamedStart::Checkpoint(checkpoint)) => vec![*checkpoint],
        Some(NamedStart::Weights(file)) => {
            return start_from_weights(launch, compiled, &file, lock).map(|start| [start].into());
        }
        None if launch.mode == Mode::EvalAll => complete_checkpoints(launch, &mut report)?,
        None if launch.resume.autoload || !launch.mode.trains() => newest(launch, &mut report)?.into_iter().collect(),
        None => Vec::new(),
    };
    if checkpoints.is_empty() {
        return start_without_checkpoint(launch, report).map(|beginning| [beginning].into());
    }
    let begin = |checkpoint| start_from_checkpoint(launch, compiled, checkpoint, std::mem::take(&mut report));
    checkpoints.into_iter().map(begin).collect()
}

/// Opens the newest complete checkpoint of `model_dir`; adds sentences about it to `report`.
fn newest(launch: &LaunchDocument, report: &mut Vec<String>) -> Result<Option<Checkpoint>, AgentError> {
    let directory = &launch.model_dir;
    report.push(format!(
        "Checkpoint autoloading is enabled. Looking for latest checkpoint in \"{}\".",
        directory.display()
    ));
    let (checkpoint, broken) = newest_complete(directory, VerificationLevel::Full).map_err(checkpoint_failure)?;
    report.extend(broken.iter().map(|broken| skipped_message(&broken.path, &broken.reason)));
    Ok(checkpoint)
}

/// Opens every complete checkpoint to evaluate, oldest first; adds sentences about the skipped ones to `report`.
fn complete_checkpoints(launch: &LaunchDocument, report: &mut Vec<String>) -> Result<Vec<Checkpoint>, AgentError> {
    let directory = launch.resume.checkpoint_path.as_deref().unwrap_or(&launch.model_dir);
    let listing = list(directory).map_err(checkpoint_failure)?;
    report.extend(listing.damaged.iter().map(|broken| skipped_message(&broken.path, &broken.reason)));
    let mut complete = Vec::new();
    for info in listing.complete {
        match Checkpoint::open_verified(&info.path) {
            Ok(checkpoint) => complete.push(checkpoint),
            Err(error) => report.push(skipped_message(&info.path, &error)),
        }
    }
    Ok(complete)
}

fn skipped_message(path: &Path, reason: impl std::fmt::Display) -> String {
    format!("Skipping checkpoint {}: {reason}", path.display())
}

fn start_without_checkpoint(launch: &LaunchDocument, mut report: Vec<String>) -> Result<StartPoint, AgentError> {
    if !launch.mode.trains() {
        let directory = launch.model_dir.display();
        return Err(AgentError::bad_input(format!("no checkpoint in {directory} to evaluate"))
            .hint("name one with --checkpoint_path, or train first"));
    }
    report.push("No checkpoint was provided. Using randomly initialized model parameters.".to_owned());
    Ok(StartPoint {
        source: ParameterSource::Initial,
        step: 0,
        saved: None,
        from: None,
        profile: None,
        history: TrainingHistory::default(),
        report,
    })
}

/// Imports the weights in `file` as the checkpoint of step 0, so that the shards load them as those of any checkpoint.
fn start_from_weights(
    launch: &LaunchDocument,
    compiled: &CompiledJob,
    file: &Path,
    lock: &Arc<ModelDirLock>,
) -> Result<StartPoint, AgentError> {
    let metadata = imported_metadata(&compiled.job, &compiled.plan, &compiled.profile)?;
    let imported = import_weights(file, lock, &compiled.plan, metadata).map_err(checkpoint_failure)?;
    let checkpoint = Checkpoint::open(&imported.path).map_err(checkpoint_failure)?;
    let report = vec![format!("Imported the weights in {}.", file.display())];
    let start = start_from_checkpoint(launch, compiled, checkpoint, report)?;
    // No profile has computed these weights, so none has to be kept.
    Ok(StartPoint { profile: None, ..start })
}

fn start_from_checkpoint(
    launch: &LaunchDocument,
    compiled: &CompiledJob,
    checkpoint: Checkpoint,
    mut report: Vec<String>,
) -> Result<StartPoint, AgentError> {
    let (states, max_steps) = (launch.resume.states, compiled.job.run.max_steps);
    let step = if states.global_step || !launch.mode.trains() { checkpoint.step() } else { 0 };
    if launch.mode.trains() {
        if launch.precedes_phase && step > max_steps {
            return Err(completed_phase(checkpoint.path(), step, max_steps));
        }
        check_last_step(checkpoint.path(), step, max_steps)?;
    }
    let reader = PlanReader::new(checkpoint, &compiled.plan, &Moments::none(), load_strictness(&compiled.job))
        .map_err(checkpoint_failure)?;
    report.extend(
        reader.missing_tensors().iter().map(|name| format!("{name} is not in the checkpoint and is initialized.")),
    );
    let checkpoint = reader.checkpoint();
    let path = checkpoint.path();
    let optimizer = states.optimizer && launch.mode.trains();
    let contents = if optimizer { "parameters, optimizer state" } else { "parameters" };
    report.push(format!("Loaded {contents} of step {} from {}.", checkpoint.step(), path.display()));
    report.extend(changes(&compiled.job, checkpoint.job()));
    let is_own = step == checkpoint.step() && is_in_model_dir(launch, path);
    let digest = || checkpoint.info().parameters_blake3.to_string();
    let saved = is_own.then(|| PublishedCheckpoint { path: path.to_owned(), step, digest: digest() });
    Ok(StartPoint {
        source: ParameterSource::Checkpoint { path: path.to_string_lossy().into_owned(), optimizer, step },
        step,
        saved,
        from: is_own.then(|| checkpoint.lineage_point()),
        profile: Some(profile_of(checkpoint, &compiled.job, step)),
        // A run that counts from step 0 again reads the data from the beginning.
        history: if states.global_step { restored_history(checkpoint.history()) } else { TrainingHistory::default() },
        report,
    })
}

/// Returns why a run has nothing to do: a checkpoint is of a phase of the job that follows.
fn completed_phase(path: &Path, step: u64, max_steps: u64) -> AgentError {
    let sentence = format!("Nothing to train to step {max_steps}: {} is of step {step}.", path.display());
    AgentError::with_reason(OutcomeReason::Succeeded, sentence)
}

/// Returns the numerics profile of `checkpoint`, JSON, as far as a run of `job` that continues at `step` can keep it:
/// another model has other chunks, and another batch size has other leaves. If the params leave the size of leaves to
/// the appliance, the run keeps the leaves of the checkpoint, unless it counts from step 0 again.
fn profile_of(checkpoint: &Checkpoint, job: &JobSpec, step: u64) -> String {
    let text = checkpoint.numerics_profile();
    let Ok(mut profile) = serde_json::from_str::<NumericsProfile>(text) else { return text.to_owned() };
    if profile.chunk_elements.is_none() && checkpoint.step() > 0 {
        // Written by 0.1.0, which did not record the size of chunks; the layout has the chunks.
        profile.chunk_elements = largest_chunk(checkpoint.layout().chunks());
    }
    let current: serde_json::Value = serde_json::from_str(&job.to_json()).unwrap_or_default();
    let recorded: serde_json::Value = serde_json::from_str(checkpoint.job()).unwrap_or_default();
    let is_unchanged = |path: &str| current.pointer(path) == recorded.pointer(path);
    if !is_unchanged("/model") {
        profile.chunk_elements = None;
    }
    let input = serde_json::from_value::<InputSpec>(recorded["train_input"].clone()).ok();
    let input = input.filter(|_| is_unchanged("/model"));
    profile.leaf_samples = leaf_samples_to_keep(profile.leaf_samples, input.as_ref(), &job.train_input, step);
    serde_json::to_string(&profile).unwrap_or_else(|_| text.to_owned())
}

/// Returns the samples of a leaf that a run with the input `now` keeps when it continues at `step`. The checkpoint has
/// leaves of `recorded` samples and the input `then`. `None` if the run cuts its batch by its own params.
fn leaf_samples_to_keep(recorded: Option<u32>, then: Option<&InputSpec>, now: &InputSpec, step: u64) -> Option<u32> {
    let then = then.filter(|then| then.batch_size == now.batch_size)?;
    if !now.is_micro_batch_auto {
        return recorded.filter(|_| then.micro_batch_size == now.micro_batch_size);
    }
    // Release 0.1.0 recorded only the bound, in the job.
    let recorded = recorded.or_else(|| u32::try_from(then.leaf_size()).ok());
    recorded.filter(|_| step > 0)
}

/// Compiles the job with the leaves and chunks of the checkpoint that training continues from, whatever this appliance
/// would choose. If the user accepts another profile, returns the job unchanged.
///
/// # Errors
/// The leaves of the checkpoint do not fit on this appliance's wafer, or there are fewer of them than systems in the
/// run.
pub fn recompile_with_checkpoint_cuts(
    launch: &LaunchDocument,
    compiled: CompiledJob,
    start_point: &mut StartPoint,
) -> Result<CompiledJob, AgentError> {
    let recorded =
        start_point.profile.as_deref().and_then(|recorded| serde_json::from_str::<NumericsProfile>(recorded).ok());
    let Some(recorded) = recorded.filter(|_| launch.mode.trains() && !launch.resume.accept_other_profile) else {
        return Ok(compiled);
    };
    let (recompiled, sentence) = with_cuts_of(&recorded, compiled)?;
    check_systems(&recompiled, launch.agent_counts.systems)?;
    start_point.report.extend(sentence);
    Ok(recompiled)
}

/// Rejects more systems than the batch has leaves. The leaves may be those of the checkpoint instead of those of the
/// params.
fn check_systems(compiled: &CompiledJob, systems: usize) -> Result<(), AgentError> {
    let leaves = compiled.plan.leaves;
    if systems <= leaves.count as usize {
        return Ok(());
    }
    Err(AgentError::bad_input(format!(
        "the checkpoint was computed in {} of {} sample(s), too few for {systems} systems to share",
        pluralize(leaves.count, "leaf", "leaves"),
        leaves.samples
    ))
    .hint(format!(
        "use at most {}, or cut the batch into smaller leaves, which gives different bits, with --allow_profile_change",
        pluralize(leaves.count, "system", "systems")
    )))
}

fn pluralize(count: u32, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Returns `compiled` if it has the cuts of `before`; otherwise the same job compiled with these cuts, and a sentence
/// about them.
fn with_cuts_of(before: &NumericsProfile, compiled: CompiledJob) -> Result<(CompiledJob, Option<String>), AgentError> {
    let cuts_agree = |profile: &NumericsProfile| {
        let NumericsProfile { leaf_samples, chunk_elements, .. } = *before;
        NumericsProfile { leaf_samples, chunk_elements, ..*profile }.agrees_with(profile)
    };
    if cuts_agree(&compiled.profile) {
        return Ok((compiled, None));
    }
    let (samples, elements) = (compiled.profile.leaf_samples, compiled.profile.chunk_elements);
    let say = |leaf: Option<u32>, chunk: Option<u32>| {
        let number = |number: Option<u32>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
        format!("leaves of {} sample(s) and chunks of at most {} elements", number(leaf), number(chunk))
    };
    let was = say(before.leaf_samples.or(samples), before.chunk_elements.or(elements));
    let document = JobDocument { cuts: Some(BatchCuts::of(before)), ..compiled.document() };
    match document.compile(compiled.profile.isa) {
        Ok(kept) if cuts_agree(&kept.profile) => {
            let sentence = format!(
                "Kept as in the checkpoint: {was}. This appliance's default is {}, which gives different bits.",
                say(samples, elements)
            );
            Ok((kept, Some(sentence)))
        }
        _ => Err(AgentError::bad_input(format!(
            "the checkpoint was computed with {was}, which do not fit on this appliance"
        ))
        .hint(
            "other leaves would not give the same bits; use a wafer of at least the previous size, or override with \
             --allow_profile_change",
        )),
    }
}

/// Returns sentences on the differences between the params and those of the run that wrote the checkpoint. The params
/// take precedence; a user who resumes with, for example, another learning rate is informed of it.
fn changes(job: &JobSpec, before: &str) -> Vec<String> {
    let now: serde_json::Value = serde_json::from_str(&job.to_json()).unwrap_or_default();
    let before: serde_json::Value = serde_json::from_str(before).unwrap_or_default();
    let mut changes = Vec::new();
    for section in ["model", "optimizer", "train_input", "eval_input"] {
        compare(section, &before[section], &now[section], &mut changes);
    }
    // Not reported: a change between a given size of leaves and `auto`. With `auto` the user leaves the size open.
    let is_leaf_size = |change: &String| change.contains("_input.is_micro_batch_auto ");
    changes.retain(|change| !is_leaf_size(change));
    changes
}

fn compare(key: &str, recorded: &serde_json::Value, current: &serde_json::Value, changes: &mut Vec<String>) {
    use serde_json::Value::{Null, Object};
    match (recorded, current) {
        (Object(recorded), Object(current_map)) => {
            let keys = recorded.keys().chain(current_map.keys().filter(|key| !recorded.contains_key(*key)));
            for inner in keys {
                let value_of = |map: &serde_json::Map<String, _>| map.get(inner).cloned().unwrap_or(Null);
                compare(&format!("{key}.{inner}"), &value_of(recorded), &value_of(current_map), changes);
            }
        }
        (recorded, current) if recorded != current => {
            changes.push(format!("Changed since that checkpoint: {key} was {recorded}, is {current}."))
        }
        _ => {}
    }
}

/// Compares the pinned numerics profile with that of the checkpoint, if training continues from one.
///
/// # Errors
/// See [`checkpoints::check_same_profile`].
pub fn check_profile(
    launch: &LaunchDocument,
    compiled: &CompiledJob,
    before: Option<&str>,
) -> Result<Option<String>, AgentError> {
    match before.filter(|_| launch.mode.trains()) {
        Some(before) => {
            checkpoints::check_same_profile(before, &compiled.profile_json(), launch.resume.accept_other_profile)
        }
        None => Ok(None),
    }
}

/// Returns whether `model_dir` already has an evaluation of `step`.
pub fn has_evaluation(model_dir: &Path, step: u64) -> bool {
    let points = millrace_telemetry::metrics_log::read(model_dir).unwrap_or_default();
    points
        .iter()
        .any(|point| matches!(point, millrace_telemetry::metrics_log::MetricPoint::Eval(eval) if eval.step == step))
}

#[cfg(test)]
mod tests {
    use millrace_params::{FlagOverrides, MachineSpec, Params};

    use super::*;

    fn job() -> JobSpec {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-tiny.yaml");
        let text = std::fs::read_to_string(path).unwrap().replace("micro_batch_size: 1", "micro_batch_size: 4");
        Params::parse_yaml(&text).unwrap().resolve(&FlagOverrides::default()).unwrap().job
    }

    fn compiled(wafer_bytes: u64, chunk_bytes: u64) -> CompiledJob {
        let mut appliance = MachineSpec::default();
        (appliance.wafer.memory_bytes, appliance.link.chunk_bytes) = (wafer_bytes, chunk_bytes);
        JobDocument::new(job(), appliance).unwrap().compile(Isa::Portable).unwrap()
    }

    /// Wafer memory with which leaves have the size of their bound, and with which they are smaller.
    const LARGE: u64 = 1 << 30;
    const SMALL: u64 = 1 << 20;

    #[test]
    fn leaves_and_chunks_of_checkpoint_are_kept() {
        let (small, large) = (compiled(SMALL, 1 << 14), compiled(LARGE, 1 << 16));
        assert!(!small.profile.agrees_with(&large.profile), "both appliances give the same cuts");
        assert!(small.profile.leaf_samples < large.profile.leaf_samples);
        let (hash, profile) = (small.hash, small.profile);
        let (recompiled, message) = with_cuts_of(&small.profile, large).unwrap();
        assert_eq!((recompiled.profile, recompiled.plan.leaves), (small.profile, small.plan.leaves));
        assert_eq!(recompiled.plan.chunks, small.plan.chunks);
        assert!(message.is_some());
        // Every agent compiles the same plan from the document that it receives.
        let received: JobDocument =
            serde_json::from_str(&serde_json::to_string(&recompiled.document()).unwrap()).unwrap();
        assert_eq!(received.compile(Isa::Portable).unwrap().hash, recompiled.hash);
        // If nothing changed, the job is not compiled again and nothing is reported.
        let (unchanged, message) = with_cuts_of(&profile, small).unwrap();
        assert_eq!((unchanged.hash, message), (hash, None));
    }

    #[test]
    fn leaves_that_do_not_fit_are_refused() {
        let then = compiled(LARGE, 1 << 16).profile;
        let error = with_cuts_of(&then, compiled(SMALL, 1 << 16)).unwrap_err();
        assert!(error.to_string().contains("--allow_profile_change"), "{error}");
    }

    #[test]
    fn v0_1_0_checkpoint_derives_chunks_from_its_layout() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/0.1.0/model_dir/checkpoint_4");
        let checkpoint = Checkpoint::open(path).unwrap();
        let job: JobSpec = serde_json::from_str(checkpoint.job()).unwrap();
        let profile: NumericsProfile = serde_json::from_str(&profile_of(&checkpoint, &job, 4)).unwrap();
        let largest = checkpoint.layout().chunks().iter().map(|chunk| chunk.elements as u32).max();
        assert_eq!((profile.leaf_samples, profile.chunk_elements), (None, largest));
        let other = profile_of(&checkpoint, &self::job(), 4);
        let profile: NumericsProfile = serde_json::from_str(&other).unwrap();
        assert_eq!(profile.chunk_elements, None, "another model's chunks are others");
    }

    #[test]
    fn params_without_a_leaf_size_keep_the_leaves_of_the_checkpoint() {
        let now = InputSpec { micro_batch_size: 1, is_micro_batch_auto: true, ..job().train_input };
        let then = InputSpec { micro_batch_size: 8, is_micro_batch_auto: false, ..now.clone() };
        assert_eq!(leaf_samples_to_keep(Some(4), Some(&then), &now, 7), Some(4));
        assert_eq!(leaf_samples_to_keep(None, Some(&then), &now, 7), Some(8), "as release 0.1.0 wrote it");
        assert_eq!(leaf_samples_to_keep(Some(4), Some(&then), &now, 0), None, "it counts from step 0 again");
        let other_batch = InputSpec { batch_size: 16, ..then.clone() };
        assert_eq!(leaf_samples_to_keep(Some(4), Some(&other_batch), &now, 7), None);
        let explicit = InputSpec { is_micro_batch_auto: false, ..now };
        assert_eq!(leaf_samples_to_keep(Some(4), Some(&then), &explicit, 7), None, "the params give another bound");
        assert_eq!(leaf_samples_to_keep(Some(4), Some(&then), &then, 7), Some(4));
    }

    #[test]
    fn more_systems_than_the_checkpoint_has_leaves_are_refused() {
        let compiled = compiled(LARGE, 1 << 16);
        assert_eq!(compiled.plan.leaves.count, 2);
        assert!(check_systems(&compiled, 2).is_ok());
        let one_leaf = NumericsProfile { leaf_samples: Some(8), ..compiled.profile };
        let (recompiled, _) = with_cuts_of(&one_leaf, compiled).unwrap();
        assert_eq!(recompiled.plan.leaves.count, 1, "larger than the bound of the params");
        let error = check_systems(&recompiled, 2).unwrap_err().to_string();
        assert!(error.contains("1 leaf of 8") && error.contains("--allow_profile_change"), "{error}");
    }
}
