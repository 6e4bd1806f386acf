//! Writes the samples of one epoch as HDF5 files that the public model zoo reads.

use std::path::Path;

use millrace_data::write_hdf5;
use millrace_emulator::report::format_thousands;
use millrace_params::DataSource;

use super::super::args::DataArgs;
use super::super::check::open_dataset;
use super::super::error::CliError;
use super::super::print_line;
use crate::error::AgentError;
use crate::input::sample_failure;
use crate::launch::Exit;

/// Bytes of the samples in a file, before compression, unless the user gives their number. A file is written at once.
const FILE_BYTES: u64 = 64 << 20;
/// Bytes of a token: its row of input_ids, of the loss mask and of labels.
const TOKEN_BYTES: u64 = 12;

/// Writes files `output_chunk_N.h5` to `out`, which must not exist or be empty. Samples keep the order of the data.
pub fn run(args: &DataArgs, out: &Path, samples_per_file: Option<u64>) -> Result<Exit, CliError> {
    let (job, mut input) = super::job_input(args)?;
    let is_decoder = job.model.encoder.is_none() && job.model.seq2seq.is_none() && job.model.image.is_none();
    if !is_decoder
        || job.model.decoder.is_packed
        || matches!(input.source, DataSource::Arrays { .. } | DataSource::Python { .. })
    {
        let error = CliError::bad_input("only samples of decoders, which predict the next token, can be converted");
        return Err(error.hint("give params of a decoder, such as GPT or LLaMA"));
    }
    input.shuffle = false;
    let dataset = open_dataset(&job, &input)?;
    create_empty(out)?;
    let samples = dataset.windows();
    let default = FILE_BYTES / (TOKEN_BYTES * dataset.seq_len() as u64).max(1);
    let in_file = samples_per_file.unwrap_or(default).max(1);
    let mut files = 0;
    for first in (0..samples).step_by(usize::try_from(in_file).unwrap_or(usize::MAX)) {
        let path = out.join(format!("output_chunk_{files}.h5"));
        write_hdf5(&dataset, first..samples.min(first.saturating_add(in_file)), &path).map_err(sample_failure)?;
        files += 1;
    }
    print_line(format_args!(
        "Wrote {} samples of {} tokens to {files} HDF5 files in {}",
        format_thousands(samples),
        dataset.seq_len(),
        out.display()
    ));
    Ok(Exit::Success)
}

/// Creates a directory, which may exist if it is empty.
fn create_empty(out: &Path) -> Result<(), CliError> {
    let failed = |error| AgentError::local(error).context(format!("can't create {}", out.display()));
    std::fs::create_dir_all(out).map_err(failed)?;
    if std::fs::read_dir(out).map_err(failed)?.next().is_some() {
        let error = CliError::bad_input(format!("{} is not empty", out.display()));
        return Err(error.hint("name a new directory"));
    }
    Ok(())
}
