//! The commands `train`, `eval`, `train_and_eval`, `eval_all` and `run`: run a whole job on this machine.

use std::path::Path;

use millrace_params::RunSpec;
use tokio::sync::watch;

use super::args::RunArgs;
use super::bucket::{self, BucketRun};
use super::check::{check_datasets, check_memory, check_storage, epoch};
use super::error::CliError;
use super::job::{PreparedJob, prepare_phases, read_params};
use super::phases::next_phase;
use super::plan;
use crate::launch::{Exit, LaunchDocument, LocalRun, run_local};

/// Runs the job of `flags`, one phase after the other. `mode` is the mode on the command line, if any.
pub fn run(flags: &RunArgs, mode: Option<&str>) -> Result<Exit, CliError> {
    let overrides = flags.overrides(mode.map(str::to_owned));
    let mut phases = prepare_phases(&flags.job, &overrides, read_params(&flags.job.params)?)?;
    check_isa(flags)?;
    let is_set = |flag: fn(&RunSpec) -> bool| phases.iter().any(|phase| flag(&phase.resolved.job.run));
    if is_set(|run| run.compile_only) {
        plan::print_phases(&phases, false)?;
        return Ok(Exit::Success);
    }
    for phase in &phases {
        check_memory(phase)?;
        phase.plan.check_streamable()?;
    }
    if is_set(|run| run.validate_only) {
        return validate(flags, &phases);
    }
    let is_in_bucket = is_in_bucket(&phases)?;
    if is_in_bucket {
        // Bad data is rejected before anything is written to the bucket.
        phases.iter().try_for_each(check_datasets)?;
    }
    let bucket_run = BucketRun::open(&mut phases)?;
    let has_ended = bucket_run.as_ref().map(BucketRun::has_ended);
    let run = || {
        let next = next_phase(&phases)?;
        check_storage(&phases[next], flags)?;
        if !is_in_bucket {
            phases.iter().try_for_each(check_datasets)?;
        }
        run_phases(flags, phases, next, has_ended)
    };
    match (run(), bucket_run) {
        (exit, None) => exit,
        (Ok(exit), Some(bucket_run)) => bucket_run.finish(exit),
        (Err(error), Some(bucket_run)) => bucket_run.finish(Exit::Failed).and(Err(error)),
    }
}

/// Checks the storage, inspects the data of all phases, and prints that the params are valid.
fn validate(flags: &RunArgs, phases: &[PreparedJob]) -> Result<Exit, CliError> {
    if !is_in_bucket(phases)? {
        check_storage(&phases[next_phase(phases)?], flags)?;
    }
    for (number, phase) in phases.iter().enumerate() {
        epoch(phase)?;
        phase.print_notes();
        let of = if phases.len() > 1 { format!(" of phase {}", number + 1) } else { String::new() };
        super::print_line(format_args!(
            "The params{of} are valid: plan {}, {} parameters",
            phase.plan.hash(),
            phase.plan.parameters()
        ));
    }
    Ok(Exit::Success)
}

/// Returns whether the model_dir of a job lies in a bucket, which is then checked.
fn is_in_bucket(phases: &[PreparedJob]) -> Result<bool, CliError> {
    phases.first().map_or(Ok(false), |first| bucket::check(&first.resolved.job.run))
}

/// Runs the phases from `next` on. Ends with the first that does not succeed, or when `stop` becomes true.
fn run_phases(
    flags: &RunArgs,
    phases: Vec<PreparedJob>,
    next: usize,
    stop: Option<watch::Receiver<bool>>,
) -> Result<Exit, CliError> {
    let count = phases.len();
    for (index, phase) in phases.into_iter().enumerate().skip(next) {
        if count > 1 {
            super::print_line(format_args!("Phase {} of {count}", index + 1));
        }
        if index > next {
            // The phase before has written the checkpoint that this one begins with.
            check_storage(&phase, flags)?;
        }
        let mut run = local_run(flags, phase);
        run.launch.precedes_phase = index + 1 < count;
        match run_local(run, stop.clone()) {
            Exit::Success => {}
            exit => return Ok(exit),
        }
    }
    Ok(Exit::Success)
}

fn check_isa(flags: &RunArgs) -> Result<(), CliError> {
    match flags.isa {
        Some(isa) if !isa.available() => {
            let best = millrace_emulator::numerics::Isa::detect();
            let error = CliError::bad_input(format!("this machine's CPU does not support {isa}"));
            Err(error.hint(format!("the best that it supports is {best}; leave --isa out to use that")))
        }
        _ => Ok(()),
    }
}

fn local_run(flags: &RunArgs, prepared: PreparedJob) -> LocalRun {
    let PreparedJob { resolved, appliance, params_yaml, .. } = prepared;
    let mut launch = LaunchDocument::new(resolved, appliance, params_yaml);
    launch.isa = flags.isa;
    launch.resume.accept_other_profile = flags.allow_profile_change;
    // The roles run in the working directory of this process; an empty path would be unreadable in messages.
    if launch.model_dir == Path::new("") {
        launch.model_dir = Path::new(".").to_owned();
    }
    LocalRun {
        threads: flags.threads.map(usize::from),
        base_port: flags.base_port,
        python: flags.python.clone(),
        ..LocalRun::new(launch)
    }
}
