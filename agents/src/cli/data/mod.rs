//! The commands `data inspect`, `data verify` and `data convert`: what an input of a job contains, and what the model
//! sees of it.

mod convert;
mod inspect;
mod verify;

use millrace_data::Dataset;
use millrace_params::{InputSpec, JobSpec};

use super::args::{DataArgs, DataCommand};
use super::check::open_dataset;
use super::error::CliError;
use super::job::{read_phase, resolve_params};
use crate::launch::Exit;

/// Executes a command.
pub fn run(command: &DataCommand) -> Result<Exit, CliError> {
    match command {
        DataCommand::Inspect { samples, data } => inspect::print(data, *samples),
        DataCommand::Verify { data } => verify::run(data),
        DataCommand::Convert { out, samples_per_file, data } => convert::run(data, out, *samples_per_file),
    }
}

/// Returns the job of the params, and a copy of the input that the arguments name.
fn job_input(args: &DataArgs) -> Result<(JobSpec, InputSpec), CliError> {
    let (_, params) = read_phase(&args.params, args.phase)?;
    let job = resolve_params(&args.params, &args.overrides(), &params)?.job;
    let input = match args.input.as_str() {
        "eval" => job.eval_input.clone().ok_or_else(|| {
            CliError::bad_input("the params have no eval_input").hint("leave --input out to read train_input")
        })?,
        _ => job.train_input.clone(),
    };
    Ok((job, input))
}

/// Opens the input that the arguments name.
fn open(args: &DataArgs) -> Result<(JobSpec, InputSpec, Dataset), CliError> {
    let (job, input) = job_input(args)?;
    let dataset = open_dataset(&job, &input)?;
    Ok((job, input, dataset))
}
