//! The command `samples`: writes the samples that the model receives to a file.

use std::path::Path;

use millrace_data::{Dataset, write_samples};

use super::args::JobArgs;
use super::check::open_dataset;
use super::error::CliError;
use super::job::{prepare, read_phase};
use crate::input::data_failure;
use crate::launch::Exit;

/// Writes the samples of the first `steps` training steps of a phase to `out`.
pub fn write(flags: &JobArgs, phase: u32, steps: u64, out: &Path) -> Result<Exit, CliError> {
    let prepared = prepare(flags, &flags.overrides(), read_phase(&flags.params, phase)?)?;
    let job = &prepared.resolved.job;
    let dataset: Dataset = open_dataset(job, &job.train_input)?;
    write_samples(&dataset, job.train_input.batch_size as u64, steps, 0, out).map_err(data_failure)?;
    super::print_line(format_args!("Wrote the samples of {steps} steps to {}", out.display()));
    Ok(Exit::Success)
}
