//! The resolved job: what every agent is sent.
//!
//! Invariants of a [`Job`] that came from [`Params::resolve`](crate::Params::resolve): every default is filled in, every
//! union settled, every value in range and consistent with the others. Its JSON is canonical (fields in order of
//! declaration, sorted maps, shortest decimals that read back to the same f64), so two agents that hold the same job hold
//! the same bytes.

mod input;
mod model;
mod optimizer;
mod run;
mod schedule;

pub use input::{InputSpec, Source, Split, Tokenizer};
pub use model::{Family, Initializer, Initializers, LossScaling, ModelSpec, Nonlinearity, Precision};
pub use optimizer::{OptimizerKind, OptimizerSpec};
pub(crate) use run::default_checkpoint_seconds;
pub use run::{CheckpointStates, LogLevel, Mode, RunSpec};
pub use schedule::{Piece, Schedule, Segment};

use serde::{Deserialize, Serialize};

/// A whole job, nothing left to decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The model.
    pub model: ModelSpec,
    /// How gradients change the weights.
    pub optimizer: OptimizerSpec,
    /// What is trained on.
    pub train_input: InputSpec,
    /// What is evaluated on; always there in the modes that evaluate.
    pub eval_input: Option<InputSpec>,
    /// How long, how often, where.
    pub run: RunSpec,
}

impl Job {
    /// The inputs that its mode reads, with their keys in the params.
    pub fn used_inputs(&self) -> impl Iterator<Item = (&'static str, &InputSpec)> {
        let train = self.run.mode.trains().then_some(("train_input", &self.train_input));
        let eval = self.eval_input.as_ref().filter(|_| self.run.mode.evaluates());
        train.into_iter().chain(eval.map(|eval| ("eval_input", eval)))
    }

    /// Settles `max_steps` of a run with `max_epochs`, whose training data have so many samples: whole batches only,
    /// and none with a sample of a further epoch.
    pub fn end_with_epochs(&mut self, samples: u64) {
        let Some(epochs) = self.run.max_epochs.filter(|_| self.run.mode.trains()) else { return };
        let steps = u128::from(epochs) * u128::from(samples) / self.train_input.batch_size.max(1) as u128;
        let steps = u64::try_from(steps).unwrap_or(u64::MAX).max(1);
        self.run.max_steps = self.run.max_steps.min(steps);
    }

    /// The canonical JSON: equal jobs give equal bytes.
    pub fn to_json(&self) -> String {
        // A Job holds only finite numbers, strings, lists and string-keyed maps, none of which serde_json can refuse.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the JSON of [`Job::to_json`] back, bit for bit.
    ///
    /// # Errors
    /// JSON of anything but a job.
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }
}

/// A job with what its user should be told about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The job.
    pub job: Job,
    /// Sentences to say once: what was understood differently from how it was written.
    pub notes: Vec<String>,
    /// Keys that were given and have no effect here, as `train_input.num_workers`; to be named once.
    pub without_effect: Vec<String>,
}
