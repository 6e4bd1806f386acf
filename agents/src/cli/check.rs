//! Checks the input of a run before anything is started or written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use millrace_checkpoint::{Checkpoint, Moments, PlanReader, VerificationLevel, newest_complete};
use millrace_data::Dataset;
use millrace_emulator::report::format_size;
use millrace_params::{InputSpec, JobSpec, Mode};

use super::args::RunArgs;
use super::error::CliError;
use super::job::PreparedJob;
use crate::checkpoints::{check_same_profile, contains_checkpoints, load_strictness};
use crate::dataset_epoch::DatasetEpoch;
use crate::error::AgentError;
use crate::host::{self, HostMemory};
use crate::input;

/// Maximum bytes of text that are tokenized only to count its samples, which takes a few seconds.
const MAX_PLANNED_TEXT_BYTES: u64 = 64 << 20;

/// Rejects a job whose data or checkpoint can't be used.
pub fn check_inputs(prepared: &PreparedJob, flags: &RunArgs) -> Result<(), CliError> {
    let job = &prepared.resolved.job;
    check_model_dir(Path::new(&job.run.model_dir))?;
    check_checkpoint(prepared, flags)?;
    if job.run.mode.trains() {
        open_dataset(job, &job.train_input)?;
    }
    if let Some(input) = job.eval_input.as_ref().filter(|_| job.run.mode.evaluates()) {
        open_dataset(job, input)?;
    }
    Ok(())
}

/// Rejects a job whose processes need more memory than this host has. Prints a note if more than the currently
/// available memory is needed.
pub fn check_memory(prepared: &PreparedJob) -> Result<(), CliError> {
    let needed = prepared.report()?.host_bytes;
    let Some(memory) = HostMemory::read() else { return Ok(()) };
    if let Some(message) = host::insufficient_memory(needed, memory) {
        let error = CliError::bad_input(format!("the run does not fit on this host: {message}"));
        return Err(error.hint("choose a smaller model or a larger host; `plan` shows what each role needs"));
    }
    if needed > memory.available {
        let needed = format_size(needed);
        eprintln!(
            "note: the run's processes need {needed} of memory; {memory}: stop other processes, or these may be killed"
        );
    }
    Ok(())
}

/// Inspects the data of `job`, without tokenizing a large text. Returns the size of an epoch of training; `None` if it
/// is unknown or the job does not train.
pub fn epoch(job: &JobSpec) -> Result<Option<DatasetEpoch>, CliError> {
    if let Some(input) = job.eval_input.as_ref().filter(|_| job.run.mode.evaluates()) {
        input::survey(input, job.model.vocab_size)?;
    }
    if !job.run.mode.trains() {
        return Ok(None);
    }
    let (found, samples) = input::survey(&job.train_input, job.model.vocab_size)?;
    let samples = match samples {
        None if (1..=MAX_PLANNED_TEXT_BYTES).contains(&found.bytes) => {
            Some(open_dataset(job, &job.train_input)?.windows())
        }
        known => known,
    };
    Ok(samples.map(|samples| DatasetEpoch::new(samples, &job.train_input)))
}

/// Opens an input's data, tokenizing text that is not in the cache, and checks its tokens against the vocabulary.
pub fn open_dataset(job: &JobSpec, input: &InputSpec) -> Result<Dataset, CliError> {
    let bar = TokenizeProgress::default();
    let dataset = input::open(input, job.model.vocab_size, |done, all| bar.show(done, all))?;
    bar.0.finish_and_clear();
    Ok(dataset)
}

/// The progress bar of tokenizing; invisible if standard error is not a terminal.
struct TokenizeProgress(ProgressBar);

impl Default for TokenizeProgress {
    fn default() -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}");
        // The template is a constant; the default style is the fallback if it is invalid.
        let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar.with_message("Tokenising"))
    }
}

impl TokenizeProgress {
    fn show(&self, done: u64, all: u64) {
        if self.0.length() != Some(all) {
            self.0.set_length(all);
            self.0.enable_steady_tick(Duration::from_millis(200));
        }
        self.0.set_position(done);
    }
}

fn check_model_dir(model_dir: &Path) -> Result<(), CliError> {
    if model_dir.exists() && !model_dir.is_dir() {
        let error = CliError::bad_input(format!("model_dir {} is not a directory", model_dir.display()));
        return Err(error.hint("choose another with -o"));
    }
    Ok(())
}

/// Checks that a checkpoint named by the user exists and has this model and profile. The coordinator later verifies
/// every byte of it before it writes anything. Without a named one, a run that does not train requires a complete
/// checkpoint in model_dir; the coordinator chooses the newest.
fn check_checkpoint(prepared: &PreparedJob, flags: &RunArgs) -> Result<(), CliError> {
    let run = &prepared.resolved.job.run;
    let named = run.checkpoint_path.as_ref().map(PathBuf::from);
    if let (Mode::EvalAll, Some(path)) = (run.mode, &named)
        && contains_checkpoints(path)?
    {
        return Ok(());
    }
    if let Some(path) = named {
        let checkpoint = Checkpoint::open(path)?;
        if run.mode.trains() {
            // All processes run on this machine, so the profile is known before anything is started.
            let now = serde_json::to_string(&prepared.profile(flags.isa)).map_err(AgentError::local)?;
            check_same_profile(checkpoint.numerics_profile(), &now, flags.allow_profile_change)?;
        }
        PlanReader::new(checkpoint, &prepared.plan, &Moments::none(), load_strictness(&prepared.resolved.job))?;
        return Ok(());
    }
    if !run.mode.trains() && newest_complete(Path::new(&run.model_dir), VerificationLevel::Quick)?.0.is_none() {
        let error = CliError::bad_input(format!("no complete checkpoint in {} to evaluate", run.model_dir));
        return Err(error.hint("name one with --checkpoint_path, or the model_dir of a run that has trained with -o"));
    }
    Ok(())
}
