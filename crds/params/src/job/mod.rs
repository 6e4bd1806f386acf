//! The resolved job, which every agent receives.
//!
//! A [`JobSpec`] that [`Params::resolve`](crate::Params::resolve) has built has these properties:
//!
//! * Every default is filled in, every union settled, and every value in range and consistent with the others.
//! * Its JSON is canonical (fields in order of declaration, sorted maps, shortest decimals that parse to the same f64),
//!   so two agents with the same job have the same bytes.

mod encoder;
mod image;
mod input;
mod model;
mod momentum;
mod optimizer;
mod run;
mod schedule;
mod schedule_curves;
mod seq2seq;
mod sparsity;

pub use encoder::{EncoderOptions, EncoderTask, MaskingSpec};
pub use image::{ImageFormat, ImageNetwork, ImageOptions, ImagePart, ImageShape, ImageSource, ImageTransform};
pub use input::{
    CsvRows, DEFAULT_TEXT_KEY, DataSource, InputSpec, LineRows, MixturePart, SinkTokens, Split, TfRecordRows,
    TokenType, TokenizerName,
};
pub use model::{
    DecoderOptions, Fan, InitializerSpec, Initializers, LossScaling, ModelFamily, ModelSize, ModelSpec, Nonlinearity,
    Norm, ParallelBlocks, Positions, Precision, RotaryPositions, RotaryScaling, ScalingDistribution,
};
pub use momentum::{MomentumCurve, MomentumSchedule};
pub use optimizer::{LearningRateScale, OptimizerGroup, OptimizerSpec, TensorSettings};
pub(crate) use run::default_checkpoint_seconds;
pub use run::{CheckpointStates, LogLevel, LossSpikeAction, LossSpikeSpec, Mode, RunSpec};
pub use schedule::{AnnealStrategy, CycleAmplitude, Schedule, ScheduleSegment, ScheduleSegmentKind};
pub use seq2seq::{Seq2SeqDecoder, Seq2SeqOptions, Seq2SeqPositions};
pub use sparsity::{DropFraction, MaskGrowth, MaskUpdate, ParameterFilter, SparsitySpec};
pub(crate) use sparsity::{compile as compile_pattern, regex_of_glob};

use serde::{Deserialize, Serialize};

use crate::MachineSpec;

/// A complete, resolved job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The model.
    pub model: ModelSpec,
    /// How gradients change the weights.
    pub optimizer: OptimizerSpec,
    /// The training data.
    pub train_input: InputSpec,
    /// The evaluation data; always given in the modes that evaluate.
    pub eval_input: Option<InputSpec>,
    /// Lengths, intervals, directories and systems of the run.
    pub run: RunSpec,
    /// Weights that stay zero; `None` if all are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<SparsitySpec>,
}

impl JobSpec {
    /// Returns the inputs that the job's mode reads, with their keys in the params.
    pub fn active_inputs(&self) -> impl Iterator<Item = (&'static str, &InputSpec)> {
        let train = self.run.mode.trains().then_some(("train_input", &self.train_input));
        let eval = self.eval_input.as_ref().filter(|_| self.run.mode.evaluates());
        train.into_iter().chain(eval.map(|eval| ("eval_input", eval)))
    }

    /// Returns the number of MemoryX shards on `appliance`: the job's own number, or else the appliance's.
    pub const fn memoryx_shards(&self, appliance: &MachineSpec) -> usize {
        match self.run.num_wgt_servers {
            0 => appliance.memoryx.shards,
            shards => shards,
        }
    }

    /// Sets `max_steps` of a run with `max_epochs` whose training data have this many samples: only whole batches, none
    /// of them with a sample of a further epoch.
    pub fn limit_by_epochs(&mut self, samples: u64) {
        let Some(epochs) = self.run.max_epochs.filter(|_| self.run.mode.trains()) else { return };
        let steps = u128::from(epochs) * u128::from(samples) / self.train_input.batch_size.max(1) as u128;
        let steps = u64::try_from(steps).unwrap_or(u64::MAX).max(1);
        self.run.max_steps = self.run.max_steps.min(steps);
    }

    /// Returns the canonical JSON: equal jobs have equal bytes.
    pub fn to_json(&self) -> String {
        // A JobSpec contains only finite numbers, strings, lists and maps with string keys, all of which serde_json can
        // write.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the JSON of [`JobSpec::to_json`], bit for bit.
    ///
    /// # Errors
    /// The JSON is not a job.
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }
}

/// A job, with the notes for its user.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolveOutput {
    /// The job.
    pub job: JobSpec,
    /// Sentences to report once: where the document was interpreted differently from how it is written.
    pub notes: Vec<String>,
    /// Keys that were given but have no effect here, such as `train_input.num_workers`; to be reported once.
    pub ignored_keys: Vec<String>,
}
