//! The commands `train`, `eval`, `train_and_eval`, `eval_all` and `run`: run a whole job on this machine.

use std::path::Path;

use millrace_params::Params;

use super::args::RunArgs;
use super::check::{check_datasets, check_memory, check_storage, epoch};
use super::error::CliError;
use super::job::{PreparedJob, prepare, read_params};
use super::plan;
use crate::launch::{Exit, LaunchDocument, LocalRun, run_local};

/// Runs the job of `flags`. `mode` is the mode on the command line, if any.
pub fn run(flags: &RunArgs, mode: Option<&str>) -> Result<Exit, CliError> {
    let (text, params) = read_params(&flags.job.params)?;
    let overrides = flags.overrides(mode_of(mode, &params).map(str::to_owned));
    let prepared = prepare(&flags.job, &overrides, (text, params))?;
    check_isa(flags)?;
    if prepared.resolved.job.run.compile_only {
        plan::print_prepared(&prepared, false)?;
        return Ok(Exit::Success);
    }
    check_memory(&prepared)?;
    prepared.plan.check_streamable()?;
    check_storage(&prepared, flags)?;
    if prepared.resolved.job.run.validate_only {
        epoch(&prepared)?;
        prepared.print_notes();
        super::print_line(format_args!(
            "The params are valid: plan {}, {} parameters",
            prepared.plan.hash(),
            prepared.plan.parameters()
        ));
        return Ok(Exit::Success);
    }
    check_datasets(&prepared)?;
    Ok(run_local(local_run(flags, prepared)))
}

/// Returns the mode that overrides the params. `train` does not override `mode: train_and_eval` of the params.
fn mode_of<'a>(flag: Option<&'a str>, params: &Params) -> Option<&'a str> {
    let params_mode = params.runconfig.as_ref().and_then(|run| run.mode.as_deref());
    if flag == Some("train") && params_mode == Some("train_and_eval") { None } else { flag }
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
