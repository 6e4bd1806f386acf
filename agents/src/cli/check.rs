//! Checks the input of a run before anything is started or written.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use millrace_checkpoint::{Moments, PlanReader, check_weights};
use millrace_data::Dataset;
use millrace_emulator::report::format_size;
use millrace_params::{DataSource, InputSpec, JobSpec};
use rustix::fs::Access;

use super::args::RunArgs;
use super::error::CliError;
use super::job::PreparedJob;
use crate::checkpoints::{check_last_step, check_same_profile, isa_of_profile, load_strictness};
use crate::dataset_epoch::DatasetEpoch;
use crate::error::AgentError;
use crate::host::{self, HostMemory};
use crate::input;
use crate::model::check_samples;
use crate::start_checkpoint::{StartCheckpoint, find_start_checkpoint};

/// Maximum bytes of text that are tokenized only to count its samples, which takes a few seconds.
const MAX_PLANNED_TEXT_BYTES: u64 = 64 << 20;

/// Rejects a job whose model_dir or checkpoint can't be used. Writes nothing.
pub fn check_storage(prepared: &PreparedJob, flags: &RunArgs) -> Result<(), CliError> {
    check_model_dir(Path::new(&prepared.resolved.job.run.model_dir))?;
    check_checkpoint(prepared, flags)
}

/// Opens the data of the job, and rejects data that can't be used. May tokenize a text.
pub fn check_datasets(prepared: &PreparedJob) -> Result<(), CliError> {
    let job = &prepared.resolved.job;
    for (name, input) in job.active_inputs() {
        let dataset = open_dataset(job, input)?;
        check_samples(name, &dataset.inputs(), &prepared.plan.graph)?;
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
pub fn epoch(prepared: &PreparedJob) -> Result<Option<DatasetEpoch>, CliError> {
    let job = &prepared.resolved.job;
    let has_arrays = |input: &InputSpec| matches!(input.source, DataSource::Arrays { .. } | DataSource::Python { .. });
    for (name, input) in job.active_inputs().filter(|(_, input)| has_arrays(input)) {
        check_samples(name, &open_dataset(job, input)?.inputs(), &prepared.plan.graph)?;
    }
    if let Some(input) = job.eval_input.as_ref().filter(|_| job.run.mode.evaluates()) {
        input::survey(input, &job.model)?;
    }
    if !job.run.mode.trains() {
        return Ok(None);
    }
    let (found, samples) = input::survey(&job.train_input, &job.model)?;
    let samples = match samples {
        None if (1..=MAX_PLANNED_TEXT_BYTES).contains(&found.bytes) => {
            Some(open_dataset(job, &job.train_input)?.windows())
        }
        samples => samples,
    };
    Ok(samples.map(|samples| DatasetEpoch::new(samples, &job.train_input)))
}

/// Opens an input's data, tokenizing text that is not in the cache, and checks its tokens against the vocabulary.
pub fn open_dataset(job: &JobSpec, input: &InputSpec) -> Result<Dataset, CliError> {
    let bar = TokenizeProgress::default();
    let dataset = input::open(input, &job.model, |done, all| bar.show(done, all))?;
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
        Self(bar.with_message("Tokenizing"))
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

/// Rejects a model_dir that is not a directory, or that this user may not write to. If it does not exist, that holds
/// for the nearest existing directory above it, in which the run creates it.
fn check_model_dir(model_dir: &Path) -> Result<(), CliError> {
    let name = model_dir.display();
    let existing = model_dir.ancestors().find(|path| path.exists()).filter(|path| *path != Path::new(""));
    let existing = existing.unwrap_or(Path::new("."));
    let message = match (existing.is_dir(), rustix::fs::access(existing, Access::WRITE_OK | Access::EXEC_OK)) {
        (true, Ok(())) => return Ok(()),
        (false, _) if existing == model_dir => format!("model_dir {name} is not a directory"),
        (false, _) => format!("can't create model_dir {name}: {} is not a directory", existing.display()),
        (true, Err(error)) => format!("can't write to model_dir {name}: {}: {error}", existing.display()),
    };
    Err(CliError::bad_input(message).hint("choose another with -o"))
}

/// Checks that the checkpoint that the run starts from has this model and is not beyond the last step; one that the
/// user named must have this profile. The coordinator later verifies every byte of it before it writes anything.
fn check_checkpoint(prepared: &PreparedJob, flags: &RunArgs) -> Result<(), CliError> {
    let run = &prepared.resolved.job.run;
    let explicit = run.checkpoint_path.as_deref().map(Path::new);
    let checkpoint = match find_start_checkpoint(run, explicit, Path::new(&run.model_dir))? {
        StartCheckpoint::Named(checkpoint) | StartCheckpoint::Newest(checkpoint) => checkpoint,
        StartCheckpoint::Weights(file) => return Ok(check_weights(&file, &prepared.plan)?),
        StartCheckpoint::Every(_) | StartCheckpoint::Initial => return Ok(()),
        StartCheckpoint::Missing => {
            let error = CliError::bad_input(format!("no complete checkpoint in {} to evaluate", run.model_dir));
            let hint = "name one with --checkpoint_path, or the model_dir of a run that has trained with -o";
            return Err(error.hint(hint));
        }
    };
    if run.mode.trains() && explicit.is_some() {
        // All processes run on this machine, so the profile is known before anything is started.
        let before = checkpoint.numerics_profile();
        // A run keeps the instruction set of the checkpoint if it can.
        let kept = isa_of_profile(before).filter(|isa| !flags.allow_profile_change && isa.available());
        let isa = flags.isa.or(kept);
        let current = serde_json::to_string(&prepared.profile(isa)).map_err(AgentError::local)?;
        check_same_profile(before, &current, flags.allow_profile_change)?;
    }
    if run.mode.trains() && run.load_checkpoint_states.global_step {
        check_last_step(checkpoint.path(), checkpoint.step(), run.max_steps)?;
    }
    PlanReader::new(checkpoint, &prepared.plan, &Moments::none(), load_strictness(&prepared.resolved.job))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn model_dir_must_be_a_directory_that_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let check_error = |inside: &str| check_model_dir(&dir.path().join(inside)).unwrap_err().to_string();
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(check_error("file").contains("is not a directory"));
        assert!(check_error("file/m").contains("can't create model_dir"));
        assert!(check_model_dir(dir.path()).is_ok() && check_model_dir(&dir.path().join("a/b/c")).is_ok());
        assert!(check_model_dir(Path::new("")).is_ok() && check_model_dir(Path::new("no-such-dir")).is_ok());
        assert!(!dir.path().join("a").exists(), "a check writes nothing");

        let closed = dir.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, Permissions::from_mode(0o555)).unwrap();
        // The superuser may write everywhere.
        if !rustix::process::geteuid().is_root() {
            assert!(check_error("closed").contains("can't write to model_dir"));
            assert!(check_error("closed/m").contains("can't write to model_dir"));
        }
    }
}
