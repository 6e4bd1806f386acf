//! Resolves `runconfig` and the command line.

use std::collections::BTreeMap;

use super::FlagOverrides;
use super::check::ResolveContext;
use super::input::ResolvedInputs;
use crate::document::RunParams;
use crate::job::{
    CheckpointStates, DataSource, LogLevel, LossSpikeAction, LossSpikeSpec, Mode, RunSpec, default_checkpoint_seconds,
};
use crate::keywords::{LOG_LEVELS, LOSS_SPIKE_ACTIONS, MODES};

/// Maximum number of systems, more than any appliance has.
const MAX_SYSTEMS: usize = 1 << 16;

/// A year: adding a much longer time to an instant would overflow.
const MAX_CHECKPOINT_SECONDS: usize = 365 * 24 * 3600;

/// Returns the effective value with the name to report for it: the flag's if it was given, else the key's.
fn flag_or_key<T: Clone>(
    flag: &'static str,
    flag_value: &Option<T>,
    key: &'static str,
    key_value: &Option<T>,
) -> (&'static str, Option<T>) {
    match flag_value {
        Some(value) => (flag, Some(value.clone())),
        None => (key, key_value.clone()),
    }
}

pub(super) fn resolve(check: &mut ResolveContext<'_>, run: Option<&RunParams>, overrides: &FlagOverrides) -> RunSpec {
    let none = RunParams::default();
    let p = run.unwrap_or(&none);
    let (key, mode_name) = flag_or_key("--mode", &overrides.mode, "runconfig.mode", &p.mode);
    let mode = check.keyword(key, mode_name.as_deref(), Mode::Train, &MODES);
    let max_epochs = max_epochs(check, p).filter(|_| mode.trains());
    let max_steps = max_steps(check, p, overrides, mode);
    let checkpoint_steps = checkpoint_steps(check, p);
    let log_steps = check.count("runconfig.log_steps", p.log_steps.or(p.save_summary_steps), 1, usize::MAX) as u64;
    let (key, dir) = flag_or_key("--model_dir", &overrides.model_dir, "runconfig.model_dir", &p.model_dir);
    let model_dir = path(check, key, dir).unwrap_or_else(|| "./model_dir".into());
    let (key, checkpoint) =
        flag_or_key("--checkpoint_path", &overrides.checkpoint_path, "runconfig.checkpoint_path", &p.checkpoint_path);
    let checkpoint_path = path(check, key, checkpoint);
    let (key, level) = flag_or_key("--logging", &overrides.logging, "runconfig.logging", &p.logging);
    let logging = check.keyword(key, level.as_deref(), LogLevel::Info, &LOG_LEVELS);
    let (key, eval_steps) = flag_or_key("--eval_steps", &overrides.eval_steps, "runconfig.eval_steps", &p.eval_steps);
    // The zoo's TensorFlow files say by 0 that all data are read.
    let eval_steps =
        eval_steps.filter(|steps| *steps > 0).map(|steps| check.count(key, Some(steps), 1, usize::MAX) as u64);
    let every = if checkpoint_steps > 0 { checkpoint_steps } else { max_steps.max(1) };
    let (compile_only, validate_only) = stop_early(check, p, overrides);
    RunSpec {
        mode,
        summary_dir: path(check, "runconfig.summary_dir", p.summary_dir.clone()).unwrap_or_else(|| model_dir.clone()),
        model_dir,
        max_steps,
        max_epochs,
        eval_steps,
        eval_frequency: check.count("runconfig.eval_frequency", p.eval_frequency, every as usize, usize::MAX) as u64,
        checkpoint_steps,
        checkpoint_seconds: checkpoint_seconds(check, p),
        max_checkpoints: max_checkpoints(check, p),
        save_initial_checkpoint: p.save_initial_checkpoint.unwrap_or(false),
        autoload_last_checkpoint: p.autoload_last_checkpoint.unwrap_or(true),
        checkpoint_path,
        load_checkpoint_states: load_states(check, p, overrides),
        disable_strict_checkpoint_loading: overrides
            .disable_strict_checkpoint_loading
            .or(p.disable_strict_checkpoint_loading)
            .unwrap_or(false),
        log_steps,
        summary_steps: check.count("runconfig.save_summary_steps", p.save_summary_steps, log_steps as usize, usize::MAX)
            as u64,
        logging,
        seed: seed(check, p),
        check_loss_values: check_loss_values(check, p),
        loss_spike: loss_spike(check, p),
        num_csx: num_csx(check, p, overrides),
        num_wgt_servers: servers(
            check,
            "--num_wgt_servers",
            overrides.num_wgt_servers,
            "runconfig.num_wgt_servers",
            p.num_wgt_servers,
        ),
        num_act_servers: servers(
            check,
            "--num_act_servers",
            overrides.num_act_servers,
            "runconfig.num_act_servers",
            p.num_act_servers,
        ),
        compile_only,
        validate_only,
        job_labels: labels(check, p),
    }
}

fn path(check: &mut ResolveContext<'_>, key: &str, value: Option<String>) -> Option<String> {
    if value.as_deref().is_some_and(|path| path.trim().is_empty()) {
        check.report_invalid(key, "is an empty path", "give a path or leave it out");
    }
    value
}

fn max_steps(check: &mut ResolveContext<'_>, p: &RunParams, overrides: &FlagOverrides, mode: Mode) -> u64 {
    let (key, steps) = flag_or_key("--max_steps", &overrides.max_steps, "runconfig.max_steps", &p.max_steps);
    if !mode.trains() {
        return 0;
    }
    if let Some(epochs) = steps_of_epochs(check, p) {
        return check.count(key, steps, usize::MAX, usize::MAX).min(epochs) as u64;
    }
    if steps.is_none() && p.max_epochs.or(p.num_epochs).is_some() {
        return RunSpec::STEPS_BOUND_BY_EPOCHS;
    }
    if steps.is_none() {
        check.report_missing(
            key,
            "give the step to train to, here or by --max_steps, or the number of epochs by max_epochs",
        );
    }
    check.count(key, steps, 1, usize::MAX) as u64
}

/// Returns the steps of all epochs, if an epoch is a number of steps.
fn steps_of_epochs(check: &mut ResolveContext<'_>, p: &RunParams) -> Option<usize> {
    let per_epoch = check.count("runconfig.steps_per_epoch", Some(p.steps_per_epoch?), 1, usize::MAX);
    let epochs = usize::try_from(p.max_epochs.or(p.num_epochs)?).unwrap_or(usize::MAX);
    // 0 epochs are reported by `max_epochs`.
    Some(per_epoch.saturating_mul(epochs.max(1)))
}

fn max_epochs(check: &mut ResolveContext<'_>, p: &RunParams) -> Option<u64> {
    let (key, other) = ("runconfig.max_epochs", "runconfig.num_epochs");
    let max_epochs = check.either_spelling(key, p.max_epochs, other, p.num_epochs);
    let key = if p.max_epochs.is_some() { key } else { other };
    let max_epochs = max_epochs.map(|max| check.count(key, Some(max), 1, usize::MAX) as u64);
    // Otherwise they are part of the last step.
    max_epochs.filter(|_| p.steps_per_epoch.is_none())
}

fn checkpoint_steps(check: &mut ResolveContext<'_>, p: &RunParams) -> u64 {
    let older = "runconfig.save_checkpoint_steps";
    let oldest = "runconfig.save_checkpoints_steps";
    let older_value = check.either_spelling(older, p.save_checkpoint_steps, oldest, p.save_checkpoints_steps);
    check.either_spelling("runconfig.checkpoint_steps", p.checkpoint_steps, older, older_value).unwrap_or(0)
}

fn checkpoint_seconds(check: &mut ResolveContext<'_>, p: &RunParams) -> u64 {
    let key = "runconfig.checkpoint_seconds";
    match p.checkpoint_seconds {
        Some(0) => 0,
        value => check.count(key, value, default_checkpoint_seconds() as usize, MAX_CHECKPOINT_SECONDS) as u64,
    }
}

fn max_checkpoints(check: &mut ResolveContext<'_>, p: &RunParams) -> Option<u64> {
    let (key, older) = ("runconfig.max_checkpoints", "runconfig.keep_checkpoint_max");
    let older_value = p.keep_checkpoint_max.filter(|max| *max > 0);
    let max_checkpoints = check.either_spelling(key, p.max_checkpoints, older, older_value);
    max_checkpoints.map(|max| check.count(key, Some(max), 1, usize::MAX) as u64)
}

/// Returns the value of a key that nothing reads: every update by such a loss would make all parameters NaN.
fn check_loss_values(check: &mut ResolveContext<'_>, p: &RunParams) -> bool {
    let is_checked = p.check_loss_values.unwrap_or(true);
    if !is_checked {
        check.note(
            "runconfig.check_loss_values: false has no effect: a loss that is not finite ends the run; \
             runconfig.loss_spike_action: skip executes the step with the next batch instead",
        );
    }
    is_checked
}

fn loss_spike(check: &mut ResolveContext<'_>, p: &RunParams) -> Option<LossSpikeSpec> {
    let (most, default) = (LossSpikeSpec::MAX_WINDOW_STEPS, LossSpikeSpec::DEFAULT_WINDOW_STEPS);
    let window = check.count("runconfig.loss_spike_window", p.loss_spike_window, default as usize, most as usize);
    let (key, keyword) = ("runconfig.loss_spike_action", p.loss_spike_action.as_deref());
    let action = check.keyword(key, keyword, LossSpikeAction::Stop, &LOSS_SPIKE_ACTIONS);
    let key = "runconfig.loss_spike_factor";
    let factor = p.loss_spike_factor.map(|factor| check.above_one(key, Some(factor), 2.0));
    let has_effect = factor.is_some() || action == LossSpikeAction::Skip;
    has_effect.then_some(LossSpikeSpec { factor, window: window as u32, action })
}

fn num_csx(check: &mut ResolveContext<'_>, p: &RunParams, overrides: &FlagOverrides) -> usize {
    let (key, systems) = flag_or_key("--num_csx", &overrides.num_csx, "runconfig.num_csx", &p.num_csx);
    check.count(key, systems, 1, MAX_SYSTEMS)
}

fn servers(
    check: &mut ResolveContext<'_>,
    flag: &'static str,
    flag_value: Option<u64>,
    key: &'static str,
    key_value: Option<u64>,
) -> usize {
    let (key, count) = flag_or_key(flag, &flag_value, key, &key_value);
    match count {
        None | Some(0) => 0,
        count => check.count(key, count, 1, MAX_SYSTEMS),
    }
}

/// Resolves `compile_only` and `validate_only`, which exclude each other.
fn stop_early(check: &mut ResolveContext<'_>, p: &RunParams, overrides: &FlagOverrides) -> (bool, bool) {
    let (_, compile) = flag_or_key("", &overrides.compile_only, "", &p.compile_only);
    let (key, validate) =
        flag_or_key("--validate_only", &overrides.validate_only, "runconfig.validate_only", &p.validate_only);
    let (compile, validate) = (compile.unwrap_or(false), validate.unwrap_or(false));
    if compile && validate {
        check.report_invalid(key, "excludes compile_only, which is given too", "keep one of the two");
    }
    (compile, validate)
}

fn seed(check: &mut ResolveContext<'_>, p: &RunParams) -> u64 {
    let key = "runconfig.seed";
    let value = check.either_spelling(key, p.seed, "runconfig.tf_random_seed", p.tf_random_seed);
    check.either_spelling(key, value, "runconfig.random_seed", p.random_seed).unwrap_or(1)
}

fn load_states(check: &mut ResolveContext<'_>, p: &RunParams, overrides: &FlagOverrides) -> CheckpointStates {
    let (key, names) = flag_or_key(
        "--load_checkpoint_states",
        &overrides.load_checkpoint_states,
        "runconfig.load_checkpoint_states",
        &p.load_checkpoint_states,
    );
    let Some(names) = names else {
        let is_model_only = p.is_pretrained_checkpoint.unwrap_or(false);
        return if is_model_only {
            CheckpointStates { model: true, ..CheckpointStates::NONE }
        } else {
            CheckpointStates::ALL
        };
    };
    let mut states = CheckpointStates::NONE;
    for word in names.split(',').map(str::trim) {
        match word {
            "all" => states = CheckpointStates::ALL,
            "model" => states.model = true,
            "optimizer" => states.optimizer = true,
            "dataloader" => states.dataloader = true,
            "lr_scheduler" => states.lr_scheduler = true,
            "global_step" => states.global_step = true,
            "grad_scaler" => check.note("there is no grad_scaler state: neither bf16 nor f32 needs a loss scale"),
            _ => check.report_invalid(
                key,
                format!("names the unknown state \"{word}\""),
                "use all, or a list of model, optimizer, dataloader, lr_scheduler, global_step",
            ),
        }
    }
    states
}

fn labels(check: &mut ResolveContext<'_>, p: &RunParams) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for label in p.job_labels.iter().flat_map(|labels| labels.as_slice()) {
        match label.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                labels.insert(key.to_owned(), value.to_owned());
            }
            _ => check.report_invalid(
                "runconfig.job_labels",
                format!("has \"{label}\""),
                "write each label as key=value",
            ),
        }
    }
    labels
}

/// Checks the inputs against the run: enough leaves for the systems, and an end for evaluations and epochs.
pub(super) fn check_against_inputs(
    check: &mut ResolveContext<'_>,
    run: &mut RunSpec,
    inputs: &ResolvedInputs,
    overrides: &FlagOverrides,
) {
    let key = if overrides.num_csx.is_some() { "--num_csx" } else { "runconfig.num_csx" };
    let train = run.mode.trains().then_some(("train_input", &inputs.train));
    let eval = inputs.eval.as_ref().filter(|_| run.mode.evaluates());
    // The leaves follow from the batch size, which evaluation takes from training by default.
    let is_batch_known = |check: &ResolveContext<'_>, name: &str| {
        let batch_keys = [format!("{name}.batch_size"), format!("{name}.micro_batch_size")];
        let all = batch_keys.iter().map(String::as_str).chain(["train_input", "train_input.batch_size"]);
        all.into_iter().all(|key| !check.has_problem(key))
    };
    for (name, input) in train.into_iter().chain(eval.map(|eval| ("eval_input", eval))) {
        if !is_batch_known(check, name) {
            continue;
        }
        let leaves = input.leaves();
        if run.num_csx > leaves {
            let message = format!("is {}, more systems than the batch of {name} has leaves ({leaves})", run.num_csx);
            let max = input.batch_size / run.num_csx;
            let hint = match max {
                0 => format!("use at most {leaves} systems, or raise {name}.batch_size"),
                _ => format!("use at most {leaves} systems, or set {name}.micro_batch_size to at most {max}"),
            };
            check.report_invalid(key, message, hint);
        }
    }
    if run.max_epochs.is_some() && matches!(inputs.train.source, DataSource::Synthetic {}) {
        let hint = "give max_steps instead";
        check.report_invalid("runconfig.max_epochs", "is given, but synthetic samples have no end", hint);
    }
    if run.eval_steps.is_none() && eval.is_some_and(|eval| matches!(eval.source, DataSource::Synthetic {})) {
        check.report_missing(
            "runconfig.eval_steps",
            "synthetic samples have no end: give the number of batches of an evaluation",
        );
    }
}
