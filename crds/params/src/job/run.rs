//! Lengths, intervals, directories and systems of a resolved job's run.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Default in seconds: a fault costs at most ten minutes of training.
pub(crate) const fn default_checkpoint_seconds() -> u64 {
    600
}

/// The run of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The activity of the run.
    pub mode: Mode,
    /// Directory of checkpoints, logs and metrics, as the user wrote it.
    pub model_dir: String,
    /// Directory of TensorBoard event files.
    pub summary_dir: String,
    /// The step to train to, counted from step 0; 0 in the modes that only evaluate. [`RunSpec::STEPS_BOUND_BY_EPOCHS`] if
    /// only `max_epochs` bounds the training, until [`JobSpec::limit_by_epochs`](super::JobSpec::limit_by_epochs) sets the
    /// number.
    pub max_steps: u64,
    /// Maximum number of passes over the training data; `None` for no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_epochs: Option<u64>,
    /// Batches of an evaluation; `None` for the whole eval input.
    pub eval_steps: Option<u64>,
    /// Steps between evaluations in mode `train_and_eval`, at least 1; the last step is always evaluated.
    pub eval_frequency: u64,
    /// Steps between checkpoints; 0 for only the last step's, which is always saved.
    pub checkpoint_steps: u64,
    /// Seconds of training after which a recovery checkpoint is written; 0 for no recovery checkpoints.
    #[serde(default = "default_checkpoint_seconds")]
    pub checkpoint_seconds: u64,
    /// Number of newest checkpoints that are kept, without recovery checkpoints; `None` for all.
    pub max_checkpoints: Option<u64>,
    /// Whether step 0 is saved.
    pub save_initial_checkpoint: bool,
    /// Whether the newest complete checkpoint of `model_dir` is loaded if `checkpoint_path` is not given.
    pub autoload_last_checkpoint: bool,
    /// The checkpoint to start from; `None` if none is given.
    pub checkpoint_path: Option<String>,
    /// The states of a checkpoint that are loaded.
    pub load_checkpoint_states: CheckpointStates,
    /// Whether a checkpoint may lack some of the model's tensors.
    pub disable_strict_checkpoint_loading: bool,
    /// Steps between progress lines; at least 1.
    pub log_steps: u64,
    /// Steps between points in TensorBoard; at least 1.
    pub summary_steps: u64,
    /// Level of the logs.
    pub logging: LogLevel,
    /// Seed of initial weights and dropout.
    pub seed: u64,
    /// Whether the run ends at a loss that is not finite.
    pub check_loss_values: bool,
    /// What counts as a jump of the loss, and what follows; `None` if only a loss that is not finite ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_spike: Option<LossSpikeSpec>,
    /// Number of systems; at least 1 and at most the leaves of the inputs that the mode reads.
    pub num_csx: usize,
    /// Maximum number of MemoryX shards; 0 for the appliance's number.
    pub num_wgt_servers: usize,
    /// Maximum number of activation servers of a system; 0 for the appliance's number.
    pub num_act_servers: usize,
    /// Whether to stop after compiling.
    pub compile_only: bool,
    /// Whether to stop after checking.
    pub validate_only: bool,
    /// Labels of the job.
    pub job_labels: BTreeMap<String, String>,
}

impl RunSpec {
    /// Value of `max_steps` for a run whose last step depends on its data.
    pub const STEPS_BOUND_BY_EPOCHS: u64 = u64::MAX;

    /// Returns the step to train to; `None` if it depends on the data.
    pub fn known_max_steps(&self) -> Option<u64> {
        Some(self.max_steps).filter(|&steps| steps != Self::STEPS_BOUND_BY_EPOCHS)
    }

    /// Returns the maximum number of checkpoints that are kept; 0 for all.
    pub fn checkpoint_limit(&self) -> usize {
        self.max_checkpoints.map_or(0, |max| usize::try_from(max).unwrap_or(usize::MAX))
    }
}

/// What counts as a jump of the loss or of the gradient norm, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossSpikeSpec {
    /// A value above this multiple of the mean is a jump; greater than 1. `None` for no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Number of steps that the mean is over; at least 1.
    pub window: u32,
    /// What follows.
    pub action: LossSpikeAction,
}

impl LossSpikeSpec {
    /// Default of `window`.
    pub const DEFAULT_WINDOW_STEPS: u32 = 50;
    /// Largest `window`.
    pub const MAX_WINDOW_STEPS: u32 = 1_000_000;
}

/// What follows from a step whose loss or gradient is not finite or jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossSpikeAction {
    /// The run ends.
    Stop,
    /// The step is executed with the next batch instead.
    Skip,
}

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Train.
    Train,
    /// Evaluate one checkpoint.
    Eval,
    /// Train and evaluate every `eval_frequency` steps and at the end.
    TrainAndEval,
    /// Evaluate every checkpoint of `model_dir`.
    EvalAll,
}

impl Mode {
    /// The modes with their names in params and flags.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("train", Self::Train),
        ("eval", Self::Eval),
        ("train_and_eval", Self::TrainAndEval),
        ("eval_all", Self::EvalAll),
    ];

    /// Returns whether the mode changes weights.
    pub fn trains(self) -> bool {
        matches!(self, Self::Train | Self::TrainAndEval)
    }

    /// Returns whether the mode reads the eval input.
    pub fn evaluates(self) -> bool {
        self != Self::Train
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, mode)| mode == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// The states of a checkpoint that are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStates {
    /// The weights.
    pub model: bool,
    /// The optimizer's moments.
    pub optimizer: bool,
    /// The number of samples that have been read.
    pub dataloader: bool,
    /// The position in the learning rate's schedule.
    pub lr_scheduler: bool,
    /// The step number.
    pub global_step: bool,
}

impl CheckpointStates {
    /// All states: an exact resume.
    pub const ALL: Self =
        Self { model: true, optimizer: true, dataloader: true, lr_scheduler: true, global_step: true };
    /// No states.
    pub const NONE: Self =
        Self { model: false, optimizer: false, dataloader: false, lr_scheduler: false, global_step: false };
}

/// Level of the logs, from most to least verbose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    /// All messages.
    Debug,
    /// Messages for experts.
    Verbose,
    /// Messages for users.
    Info,
    /// Warnings.
    Warning,
    /// Errors.
    Error,
}
