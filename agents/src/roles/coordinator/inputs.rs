//! What the coordinator derives from the data: the last step of a run that is limited by epochs, the batches of an
//! evaluation, and whether samples are what the model reads. The samples themselves are read by activation servers.

use std::sync::Arc;

use millrace_data::Dataset;
use millrace_params::{DataSource, EncoderTask, JobSpec};

use super::Console;
use crate::control::job::CompiledJob;
use crate::dataset_epoch::DatasetEpoch;
use crate::error::AgentError;
use crate::input::{InputChoice, JobInputs};
use crate::launch::LaunchDocument;

/// The inputs that a coordinator opens.
pub struct OpenedInputs {
    job: Arc<JobSpec>,
    choice: InputChoice,
}

impl OpenedInputs {
    /// Chooses all inputs of `job`, so that they are checked. For a run that an earlier coordinator `began`, chooses
    /// only those without which the params do not determine the number of steps, or of batches of an evaluation, or
    /// the names of classes.
    pub fn for_job(job: &Arc<JobSpec>, began: bool) -> Self {
        let has_named_classes = job
            .model
            .encoder
            .as_ref()
            .is_some_and(|encoder| matches!(encoder.task, EncoderTask::TokenClassifier { .. }));
        let choice = InputChoice {
            train: !began || job.run.max_epochs.is_some(),
            eval: !began || job.run.eval_steps.is_none() || has_named_classes,
        };
        Self { job: job.clone(), choice }
    }

    /// Opens them. `progress` receives the bytes done and the total while an input is tokenized.
    ///
    /// # Errors
    /// See [`JobInputs::open`].
    pub fn open(&self, progress: impl FnMut(u64, u64)) -> Result<JobInputs, AgentError> {
        JobInputs::open(&self.job, self.choice, progress)
    }
}

/// Prints the size of an epoch, and sets the last step of a run that is limited to a number of epochs.
pub fn end_with_epochs(launch: &mut LaunchDocument, compiled: &mut CompiledJob, inputs: &JobInputs, console: &Console) {
    let has_end = !matches!(launch.job.train_input.source, DataSource::Synthetic {});
    let train = inputs.train.as_ref().filter(|train| has_end && !train.is_endless());
    let Some(samples) = train.map(Dataset::windows) else { return };
    let epoch = DatasetEpoch::new(samples, &launch.job.train_input);
    console.line(format!("One epoch of the training data is {epoch}."));
    let Some(epochs) = launch.job.run.max_epochs else { return };
    launch.job.limit_by_epochs(samples);
    let mut job = (*compiled.job).clone();
    job.limit_by_epochs(samples);
    compiled.job = Arc::new(job);
    let last = launch.job.run.max_steps;
    console.line(format!("Training ends at step {last}: at most {epochs} epoch(s) by the params."));
}

/// Returns the batches of an evaluation: `eval_steps`, or else all complete batches of the input. 0 if the run does not
/// evaluate.
///
/// # Errors
/// The input has no end, or fewer samples than a batch.
pub fn eval_batches(launch: &LaunchDocument, inputs: &JobInputs) -> Result<u64, AgentError> {
    let run = &launch.job.run;
    let given = run.eval_steps.filter(|_| run.mode.evaluates() && launch.job.eval_input.is_some());
    let (None, Some(dataset)) = (given, &inputs.eval) else { return Ok(given.unwrap_or(0)) };
    let batch = launch.job.eval_input.as_ref().map_or(1, |input| input.batch_size as u64).max(1);
    let available = dataset.windows() / batch;
    match available {
        _ if dataset.is_endless() => Err(AgentError::bad_input("the evaluation data have no end")
            .hint("set runconfig.eval_steps, or eval_input.num_samples")),
        0 => Err(AgentError::bad_input(format!(
            "the evaluation data hold {} samples, fewer than one batch of {batch}",
            dataset.windows()
        ))
        .hint("lower eval_input.batch_size or give a larger validation fraction")),
        available => Ok(available),
    }
}
