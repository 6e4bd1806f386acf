//! The keys of the `trainer` layout, each with the key of the classic layout that means the same.

/// What a key of the `trainer` layout stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrainerKey {
    /// A key of the classic layout.
    Same(&'static str),
    /// A section of the classic layout, with the same keys.
    Section(&'static str),
    /// Accepted without effect; the description says what it configures.
    NoEffect(&'static str),
    /// Rejected, with a remedy.
    Unsupported(&'static str),
    /// One optimizer, by its name.
    Optimizer,
    /// A list of schedules of the learning rate.
    Schedulers,
    /// A list of callbacks.
    Callbacks,
    /// The evaluation data of `validate`.
    ValidationData,
    /// The evaluation data of `validate_all`.
    AllValidationData,
}

use TrainerKey::{
    AllValidationData, Callbacks, NoEffect, Optimizer, Same, Schedulers, Section, Unsupported, ValidationData,
};

/// The keys below `trainer`, in the order in which they are documented.
#[rustfmt::skip]
pub(crate) const TRAINER_KEYS: &[(&str, TrainerKey)] = &[
    ("init.model", Section("model")),
    ("init.optimizer", Optimizer),
    ("init.schedulers", Schedulers),
    ("init.seed", Same("runconfig.seed")),
    ("init.model_dir", Same("runconfig.model_dir")),
    ("init.precision.enabled", Same("model.mixed_precision")),
    ("init.precision.fp16_type", Same("model.fp16_type")),
    ("init.precision.precision_opt_level", Same("runconfig.precision_opt_level")),
    ("init.precision.max_gradient_norm", Same("optimizer.max_gradient_norm")),
    ("init.precision.max_gradient_value", Same("optimizer.max_gradient_value")),
    ("init.precision.loss_scaling_factor", Same("optimizer.loss_scaling_factor")),
    ("init.precision.initial_loss_scale", Same("optimizer.initial_loss_scale")),
    ("init.precision.steps_per_increase", Same("optimizer.steps_per_increase")),
    ("init.precision.min_loss_scale", Same("optimizer.min_loss_scale")),
    ("init.precision.max_loss_scale", Same("optimizer.max_loss_scale")),
    ("init.precision.log_loss_scale", Same("optimizer.log_loss_scale")),
    ("init.loop.max_steps", Same("runconfig.max_steps")),
    ("init.loop.num_steps", Same("runconfig.num_steps")),
    ("init.loop.num_epochs", Same("runconfig.num_epochs")),
    ("init.loop.steps_per_epoch", Same("runconfig.steps_per_epoch")),
    ("init.loop.eval_frequency", Same("runconfig.eval_frequency")),
    ("init.loop.eval_steps", Same("runconfig.eval_steps")),
    ("init.loop.grad_accum_steps", Unsupported("set fit.train_dataloader.micro_batch_size instead")),
    ("init.checkpoint.steps", Same("runconfig.checkpoint_steps")),
    ("init.checkpoint.save_initial_checkpoint", Same("runconfig.save_initial_checkpoint")),
    ("init.checkpoint.autoload_last_checkpoint", Same("runconfig.autoload_last_checkpoint")),
    ("init.checkpoint.disable_strict_checkpoint_loading", Same("runconfig.disable_strict_checkpoint_loading")),
    ("init.checkpoint.checkpoint_root", Unsupported("leave it out; checkpoints are below model_dir")),
    ("init.checkpoint.checkpoint_name", NoEffect("Pattern of checkpoints' file names.")),
    ("init.checkpoint.strict_version", NoEffect("Whether checkpoints of other releases are rejected.")),
    ("init.logging.log_steps", Same("runconfig.log_steps")),
    ("init.logging.log_level", Same("runconfig.logging")),
    ("init.logging.wsc_log_level", Same("runconfig.wsc_log_level")),
    ("init.logging.enable_act_frequency", Same("runconfig.enable_act_frequency")),
    ("init.callbacks", Callbacks),
    ("init.loggers", NoEffect("Loggers; Millrace writes its log, metrics and TensorBoard's events in any case.")),
    ("init.sparsity", Section("sparsity")),
    ("init.autorestart", NoEffect("Restarts of the real cluster; a TrainJob has restart policies instead.")),
    ("init.backend.backend_type", Same("runconfig.target_device")),
    ("init.backend.compile_dir", Same("runconfig.compile_dir")),
    ("init.backend.compile_only", Same("runconfig.compile_only")),
    ("init.backend.validate_only", Same("runconfig.validate_only")),
    ("init.backend.drop_data", Same("runconfig.drop_data")),
    ("init.backend.retrace_every_iteration", Same("runconfig.retrace_every_iteration")),
    ("init.backend.enable_distributed", Same("runconfig.enable_distributed")),
    ("init.backend.dist_addr", Same("runconfig.dist_addr")),
    ("init.backend.dist_backend", Same("runconfig.dist_backend")),
    ("init.backend.init_method", Same("runconfig.init_method")),
    ("init.backend.main_process_id", Same("runconfig.main_process_id")),
    ("init.backend.sync_batchnorm", Same("runconfig.sync_batchnorm")),
    ("init.backend.cluster_config.num_csx", Same("runconfig.num_csx")),
    ("init.backend.cluster_config.max_wgt_servers", Same("runconfig.num_wgt_servers")),
    ("init.backend.cluster_config.max_act_per_csx", Same("runconfig.num_act_servers")),
    ("init.backend.cluster_config.num_workers_per_csx", Same("runconfig.num_workers_per_csx")),
    ("init.backend.cluster_config.mgmt_address", Same("runconfig.mgmt_address")),
    ("init.backend.cluster_config.mgmt_namespace", Same("runconfig.mgmt_namespace")),
    ("init.backend.cluster_config.credentials_path", Same("runconfig.credentials_path")),
    ("init.backend.cluster_config.mount_dirs", Same("runconfig.mount_dirs")),
    ("init.backend.cluster_config.python_paths", Same("runconfig.python_paths")),
    ("init.backend.cluster_config.cbcore_image", Same("runconfig.cbcore_image")),
    ("init.backend.cluster_config.job_labels", Same("runconfig.job_labels")),
    ("init.backend.cluster_config.job_priority", Same("runconfig.job_priority")),
    ("init.backend.cluster_config.job_time_sec", Same("runconfig.job_time_sec")),
    ("init.backend.cluster_config.debug_args", Same("runconfig.debug_args")),
    ("init.backend.cluster_config.disable_version_check", Same("runconfig.disable_version_check")),
    ("init.backend.cluster_config.workflow_id", NoEffect("Workflow of the real cluster.")),
    ("fit.train_dataloader", Section("train_input")),
    ("fit.val_dataloader", Section("eval_input")),
    ("fit.ckpt_path", Same("runconfig.checkpoint_path")),
    ("validate.val_dataloader", ValidationData),
    ("validate.ckpt_path", NoEffect("Checkpoint to evaluate; `--checkpoint_path` names it.")),
    ("validate_all.val_dataloaders", AllValidationData),
    ("validate_all.ckpt_paths", NoEffect("Checkpoints to evaluate; those of model_dir are.")),
];

/// Prefix of the flags of the real compiler and runtime, in the backend and in callbacks.
pub(super) const MACHINE_FLAG_PREFIX: &str = "csx.";
/// The only one of these flags that changes how Millrace computes a batch.
pub(super) const MICRO_BATCH_FLAG: &str = "csx.performance.micro_batch_size";

/// Callbacks that only observe a run or check the real machine.
pub(super) const CALLBACKS_WITHOUT_EFFECT: &[&str] = &[
    "ActivationNorm",
    "CheckLoss",
    "ComputeNorm",
    "DebugArgsPath",
    "DumpActivations",
    "DumpAvailableTensorNames",
    "FlopUtilization",
    "ListenerMode",
    "LogInputSummaries",
    "LogOptimizerParamGroup",
    "LogSparsity",
    "MoETensorStats",
    "ModelEvalMetrics",
    "NumericsVerification",
    "RateProfiler",
    "ResultsWriter",
    "SavePerformanceData",
    "TimeRemaining",
    "WeightNorm",
];

/// Returns the key below `trainer` that means the same as a key or section of the classic layout.
pub(super) fn trainer_key_of(classic: &str) -> Option<&'static str> {
    let is_it = |key: &TrainerKey| match key {
        Same(path) | Section(path) => *path == classic,
        Optimizer => classic == "optimizer",
        Schedulers => classic == "optimizer.learning_rate",
        Callbacks | NoEffect(_) | Unsupported(_) | ValidationData | AllValidationData => false,
    };
    TRAINER_KEYS.iter().find(|(_, key)| is_it(key)).map(|(path, _)| *path)
}
