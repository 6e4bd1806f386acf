//! How long, how often and where a resolved job runs.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Where nothing else is said, a fault costs at most ten minutes of training.
pub(crate) const fn default_checkpoint_seconds() -> u64 {
    600
}

/// The run of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// What is done.
    pub mode: Mode,
    /// Directory of checkpoints, logs and metrics, as the user wrote it.
    pub model_dir: String,
    /// Directory of TensorBoard's event files.
    pub summary_dir: String,
    /// The step to train to, counted from step 0; 0 in the modes that only evaluate, and [`RunSpec::UNTIL_EPOCHS_END`]
    /// where only `max_epochs` says how long it trains, until [`Job::end_with_epochs`](super::Job::end_with_epochs) has
    /// settled it.
    pub max_steps: u64,
    /// How many times the training data are gone through at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_epochs: Option<u64>,
    /// Batches of an evaluation; `None` for the whole of the eval input.
    pub eval_steps: Option<u64>,
    /// Steps between evaluations in mode `train_and_eval`, where the last step is always evaluated; at least 1.
    pub eval_frequency: u64,
    /// Steps between checkpoints; 0 for none but the last step's, which is always saved.
    pub checkpoint_steps: u64,
    /// Seconds of training after which a recovery checkpoint is written; 0 for none.
    #[serde(default = "default_checkpoint_seconds")]
    pub checkpoint_seconds: u64,
    /// How many checkpoints are kept, the newest ones, recovery checkpoints not counted; `None` for all.
    pub max_checkpoints: Option<u64>,
    /// Whether step 0 is saved.
    pub save_initial_checkpoint: bool,
    /// Whether the newest whole checkpoint of `model_dir` is loaded when `checkpoint_path` is not given.
    pub autoload_last_checkpoint: bool,
    /// The checkpoint to start from.
    pub checkpoint_path: Option<String>,
    /// Which states of a checkpoint are loaded.
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
    /// Whether a loss that is not finite ends the run.
    pub check_loss_values: bool,
    /// How many systems to use; at least 1 and at most the leaves of the inputs that the mode reads.
    pub num_csx: usize,
    /// Most MemoryX shards to use; 0 for the appliance's choice.
    pub num_wgt_servers: usize,
    /// Most activation servers of a system; 0 for the appliance's choice.
    pub num_act_servers: usize,
    /// Stop after compiling.
    pub compile_only: bool,
    /// Stop after checking.
    pub validate_only: bool,
    /// Labels of the job.
    pub job_labels: BTreeMap<String, String>,
}

impl RunSpec {
    /// `max_steps` of a run whose last step only its data tell.
    pub const UNTIL_EPOCHS_END: u64 = u64::MAX;

    /// The step it trains to, where that is known without its data.
    pub fn known_max_steps(&self) -> Option<u64> {
        Some(self.max_steps).filter(|&steps| steps != Self::UNTIL_EPOCHS_END)
    }
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
    /// The modes with the names users give them.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("train", Self::Train),
        ("eval", Self::Eval),
        ("train_and_eval", Self::TrainAndEval),
        ("eval_all", Self::EvalAll),
    ];

    /// Whether the mode changes weights.
    pub fn trains(self) -> bool {
        matches!(self, Self::Train | Self::TrainAndEval)
    }

    /// Whether the mode reads the eval input.
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

/// Which states of a checkpoint are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStates {
    /// The weights.
    pub model: bool,
    /// The optimizer's moments.
    pub optimizer: bool,
    /// How many samples have been read.
    pub dataloader: bool,
    /// Where the learning rate's schedule stands.
    pub lr_scheduler: bool,
    /// The number of the step.
    pub global_step: bool,
}

impl CheckpointStates {
    /// Everything: an exact resume.
    pub const ALL: Self =
        Self { model: true, optimizer: true, dataloader: true, lr_scheduler: true, global_step: true };
    /// Nothing.
    pub const NONE: Self =
        Self { model: false, optimizer: false, dataloader: false, lr_scheduler: false, global_step: false };
}

/// Level of the logs, from the most to the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What an expert reads.
    Verbose,
    /// What a user reads.
    Info,
    /// What may be wrong.
    Warning,
    /// What is wrong.
    Error,
}
