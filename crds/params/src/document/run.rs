//! The section `runconfig` of the params.
//!
//! Lists the keys that Millrace uses, keys that only configure the real machine (`ignored`), and keys that are rejected
//! with a remedy (`unsupported`). `section!` generates the type, the schema and the reader.

use super::OneOrMany;
use crate::keys::facts::{alias_of, default, default_from, otherwise, required_if};
use crate::keywords::{LOG_LEVELS, LOSS_SPIKE_ACTIONS, MODES};
use crate::yaml::section;

section! {
    /// Length, intervals, directories and systems of the run.
    pub struct RunParams {
        /// Activity of the run: train, evaluate one checkpoint, train and evaluate, or evaluate every checkpoint.
        mode: String = default("train").one_of(&MODES),
        /// Directory of checkpoints, logs and metrics.
        model_dir: String = default("./model_dir"),
        /// Directory of TensorBoard's event files.
        summary_dir: String = default_from("runconfig.model_dir"),
        /// Step to train to, counted from step 0 of the first run.
        max_steps: u64 = required_if("the mode trains and `max_epochs` is omitted"),
        /// Number of passes over the training data, counted from step 0 of the first run. If `max_steps` is given too,
        /// the run stops at the first of the two ends. The last batch is omitted if it would contain samples of the
        /// next epoch.
        max_epochs: u64 = otherwise("no limit"),
        /// Other spelling of `max_epochs`.
        num_epochs: u64 = alias_of("max_epochs"),
        /// Number of steps in an epoch. If it is given, `max_epochs` counts epochs of this length instead of passes
        /// over the data.
        steps_per_epoch: u64 = otherwise("a pass over the training data"),
        /// Number of batches in an evaluation; 0 for all.
        eval_steps: u64 = otherwise("all batches of `eval_input`"),
        /// Number of steps between evaluations in mode `train_and_eval`; the last step is always evaluated.
        eval_frequency: u64 = otherwise("the value of `checkpoint_steps`, or only the last step if that is 0"),
        /// Number of steps between checkpoints; with 0, only the last step is saved.
        checkpoint_steps: u64 = default("0"),
        /// Older spelling of `checkpoint_steps`.
        save_checkpoint_steps: u64 = alias_of("checkpoint_steps"),
        /// Oldest spelling of `checkpoint_steps`.
        save_checkpoints_steps: u64 = alias_of("checkpoint_steps"),
        /// Number of seconds of training after which a recovery checkpoint is written; 0 for none. Only the newest
        /// recovery checkpoint is kept, and only until another checkpoint is written.
        checkpoint_seconds: u64 = default("600"),
        /// Number of newest checkpoints that are kept, without recovery checkpoints.
        max_checkpoints: u64 = otherwise("all"),
        /// Older spelling of `max_checkpoints`, with 0 for all.
        keep_checkpoint_max: u64 = alias_of("max_checkpoints"),
        /// Whether step 0 is saved too.
        save_initial_checkpoint: bool = default("false"),
        /// Whether the run starts from the newest checkpoint of `model_dir` if `checkpoint_path` is omitted.
        autoload_last_checkpoint: bool = default("true"),
        /// Checkpoint to start from, or a safetensors file with the model's own tensors.
        checkpoint_path: String = otherwise("none, see `autoload_last_checkpoint`"),
        /// States of the checkpoint that are loaded: `all`, or a comma-separated list of `model`, `optimizer`,
        /// `dataloader`, `lr_scheduler`, `global_step` and `grad_scaler`.
        load_checkpoint_states: String = default("all"),
        /// Older spelling of `load_checkpoint_states: model`.
        is_pretrained_checkpoint: bool = otherwise("what `load_checkpoint_states` says"),
        /// Whether the checkpoint may lack some of the model's tensors.
        disable_strict_checkpoint_loading: bool = default("false"),
        /// Number of steps between progress lines.
        log_steps: u64 = otherwise("the value of `save_summary_steps`, or 1"),
        /// Number of steps between points in TensorBoard.
        save_summary_steps: u64 = default_from("runconfig.log_steps"),
        /// Level of the logs.
        logging: String = default("INFO").one_of(&LOG_LEVELS),
        /// Seed of initial weights, dropout and, if the input has no seed, the order of samples.
        seed: u64 = default("1"),
        /// Older spelling of `seed`.
        tf_random_seed: u64 = alias_of("seed"),
        /// Oldest spelling of `seed`.
        random_seed: u64 = alias_of("seed"),
        /// Whether the run ends if the loss is not finite. `false` has no effect.
        check_loss_values: bool = default("true"),
        /// Multiple of the mean of recent steps above which a loss or a gradient norm is a jump. Greater than 1.
        loss_spike_factor: f64 = otherwise("no bound"),
        /// Number of recent steps that the mean is over. There are no jumps before that many steps.
        loss_spike_window: u64 = default("50"),
        /// What follows from a jump, and from a loss or a gradient that is not finite: `stop` ends the run, `skip`
        /// executes the step with the next batch instead, before any parameter has changed. Ten batches in a row are
        /// skipped at most.
        loss_spike_action: String = default("stop").one_of(&LOSS_SPIKE_ACTIONS),
        /// Number of systems.
        num_csx: u64 = default("1"),
        /// Maximum number of MemoryX shards; with 0, the appliance chooses.
        num_wgt_servers: u64 = default("0"),
        /// Maximum number of activation servers of a system; with 0, the appliance chooses.
        num_act_servers: u64 = default("0"),
        /// Whether to stop after compiling.
        compile_only: bool = default("false"),
        /// Whether to stop after checking.
        validate_only: bool = default("false"),
        /// Labels of the job, each as `key=value`.
        job_labels: OneOrMany = otherwise("no labels"),
    }
    ignored {
        /// Device; Millrace emulates CSX systems on any machine.
        target_device: String,
        /// Whether input is read by several workers in an older release.
        multiple_workers: bool,
        /// Casts of an older release; `model.mixed_precision` determines the precision.
        mixed_precision: bool,
        /// Casts at the boundary of the real machine.
        boundary_casting: bool,
        /// Summaries of an older release.
        tf_summary: bool,
        /// Minimum seconds between evaluations of an older release.
        throttle_secs: u64,
        /// Priority in the cluster's queue; a TrainJob has a priority class instead.
        job_priority: String,
        /// Time limit in seconds; a TrainJob has deadlines instead.
        job_time_sec: u64,
        /// Paths to mount into worker pods; a TrainJob has volumes instead.
        mount_dirs: OneOrMany,
        /// Additional Python paths of worker pods.
        python_paths: OneOrMany,
        /// Number of input worker pods of a system.
        num_workers_per_csx: u64,
        /// Number of processes that transfer tensors.
        transfer_processes: u64,
        /// Directory of the real compiler's cache.
        compile_dir: String,
        /// Address of the management server.
        mgmt_address: String,
        /// Address of the system of an older release.
        cs_ip: String,
        /// Namespace at the management server.
        mgmt_namespace: String,
        /// Certificate of the management server.
        credentials_path: String,
        /// Image of the real appliance.
        cbcore_image: String,
        /// Debugging settings of the real server.
        debug_args: serde_json::Value,
        /// File with debugging settings of the real server.
        debug_args_path: String,
        /// Settings of the real server.
        ini: serde_json::Value,
        /// Fabrics that may not be used.
        fabric_type_blacklist: OneOrMany,
        /// Whether client and server may differ in version.
        disable_version_check: bool,
        /// Memory of the coordinator while it compiles, in GiB.
        compile_crd_memory_gi: i64,
        /// Memory of the coordinator while it runs, in GiB.
        execute_crd_memory_gi: i64,
        /// Memory of input workers, in GiB.
        wrk_memory_gi: i64,
        /// Memory of activation servers, in GiB.
        act_memory_gi: i64,
        /// Memory of command servers, in GiB.
        cmd_memory_gi: i64,
        /// Memory of weight servers, in GiB.
        wgt_memory_gi: i64,
        /// Memory of the chief, in GiB.
        chf_memory_gi: i64,
        /// Whether GPU runs are data-parallel.
        enable_distributed: bool,
        /// Address at which the processes of a GPU run meet.
        dist_addr: String,
        /// Communication backend of GPU runs.
        dist_backend: String,
        /// Initialization method of GPU runs.
        init_method: String,
        /// Main process of GPU runs.
        main_process_id: u64,
        /// Trade-off between precision and speed on the real machine.
        precision_opt_level: u64,
        /// Whether the real machine accumulates gradients; Millrace divides batches into leaves.
        use_cs_grad_accum: bool,
        /// Data path of an older release.
        use_appliance_data: bool,
        /// Optimizer step of an older release.
        use_cstorch_optimizer_step: bool,
        /// Activations of an older release.
        skip_train_recv_activations: bool,
        /// Levels of the cluster's own logs.
        wsc_log_level: OneOrMany,
        /// Whether the initialization of logging is logged.
        log_initialization: bool,
        /// Whether summaries of input batches are logged.
        log_input_summaries: bool,
        /// Whether event directories have the layout of an older release.
        legacy_event_dirs: bool,
        /// Whether the real machine initializes weights lazily.
        lazy_initialization: bool,
        /// Whether data is dropped to measure speed.
        drop_data: bool,
        /// Whether each step is traced again.
        retrace_every_iteration: bool,
        /// Whether batch norms are synchronized over devices; a GPT has none.
        sync_batchnorm: bool,
        /// Directory of the cache of Hugging Face data sets.
        hf_cache_dir: String,
        /// Whether activations are sent at some steps only.
        enable_act_frequency: bool,
        /// Variant of an older release.
        variant: String,
        /// Whether losses are saved; Millrace always saves them.
        save_losses: bool,
        /// Logging interval of an older release.
        log_step_count_steps: u64,
        /// Metrics for debugging the real machine.
        show_debug_metrics: bool,
        /// Summaries of an older release.
        enable_summaries: bool,
        /// Replication of an older release.
        multireplica: bool,
        /// Replication of an older release.
        num_replicas: u64,
        /// Transfers of an older release.
        save_stream_size: u64,
        /// Directory of an older release.
        service_dir: String,
        /// Compiler policy of the real machine.
        autogen_policy: String,
        /// Execution strategy of an older release; Millrace always streams weights.
        execution_strategy: String,
        /// Interface of an older release.
        experimental_api: bool,
    }
    unsupported {
        "num_steps" => "set max_steps, the step to train to",
        "dump_activations" => "leave it out",
        "op_profiler_config" => "leave it out",
        "experimental" => "leave it out",
    }
}
