//! `runconfig`.

use super::OneOrMany;
use crate::yaml::section;

section! {
    /// How long, how often, where, and on how many systems.
    pub struct RunParams {
        /// `train` (the default), `eval`, `train_and_eval` or `eval_all`.
        mode: String,
        /// Directory of checkpoints, logs and metrics; `./model_dir` by default.
        model_dir: String,
        /// Directory of TensorBoard's event files; `model_dir` by default.
        summary_dir: String,
        /// The step to train to, counted from step 0 of the first run.
        max_steps: u64,
        /// How many times the training data are gone through, from step 0 of the first run; beside `max_steps`,
        /// whichever ends first. A last batch that would have samples of a further epoch is left out.
        max_epochs: u64,
        /// Another spelling of `max_epochs`.
        num_epochs: u64,
        /// Batches of an evaluation; the whole of `eval_input` by default.
        eval_steps: u64,
        /// Steps between evaluations in mode `train_and_eval`; `checkpoint_steps` by default, and always the last step.
        eval_frequency: u64,
        /// Steps between checkpoints; 0, the default, saves only the last step.
        checkpoint_steps: u64,
        /// Older spelling of `checkpoint_steps`.
        save_checkpoint_steps: u64,
        /// Oldest spelling of `checkpoint_steps`.
        save_checkpoints_steps: u64,
        /// Seconds of training after which a recovery checkpoint is written, whatever the step; 600 by default, 0 for
        /// none. Only the newest one is kept, and only until another checkpoint is written.
        checkpoint_seconds: u64,
        /// How many checkpoints are kept, the newest ones; all by default. A recovery checkpoint is not counted.
        max_checkpoints: u64,
        /// Older spelling of `max_checkpoints`.
        keep_checkpoint_max: u64,
        /// Whether step 0 is saved too; false by default.
        save_initial_checkpoint: bool,
        /// Whether the newest checkpoint of `model_dir` is loaded when no path is given; true by default.
        autoload_last_checkpoint: bool,
        /// The checkpoint to start from.
        checkpoint_path: String,
        /// Which states of it are loaded: `all` (the default) or a comma-separated list of `model`, `optimizer`,
        /// `dataloader`, `lr_scheduler`, `global_step` and `grad_scaler`.
        load_checkpoint_states: String,
        /// Whether a checkpoint may lack some of the model's tensors; false by default.
        disable_strict_checkpoint_loading: bool,
        /// Steps between progress lines; `save_summary_steps` by default, or 1.
        log_steps: u64,
        /// Steps between points in TensorBoard; `log_steps` by default.
        save_summary_steps: u64,
        /// Level of the logs: DEBUG, VERBOSE, INFO, WARNING or ERROR; INFO by default.
        logging: String,
        /// Seed of initial weights, dropout and, without one of its own, the order of samples; 1 by default.
        seed: u64,
        /// Whether a loss that is not finite ends the run; true by default.
        check_loss_values: bool,
        /// How many systems to use; 1 by default.
        num_csx: u64,
        /// Most MemoryX shards to use; 0, the default, for the appliance's choice.
        num_wgt_servers: u64,
        /// Most activation servers of a system; 0, the default, for the appliance's choice.
        num_act_servers: u64,
        /// Whether to stop after compiling; false by default.
        compile_only: bool,
        /// Whether to stop after checking; false by default.
        validate_only: bool,
        /// Labels of the job, each `key=value`.
        job_labels: OneOrMany,
    }
    without_effect {
        /// The device; Millrace emulates CSX on whatever it runs on.
        target_device: String,
        /// Bucket in the cluster's queue; a TrainJob's priority class says it.
        job_priority: String,
        /// Wall-clock limit; a TrainJob's deadlines say it.
        job_time_sec: u64,
        /// Paths mounted into worker pods; a TrainJob's volumes say it.
        mount_dirs: OneOrMany,
        /// Further Python paths of worker pods.
        python_paths: OneOrMany,
        /// Input worker pods of a system.
        num_workers_per_csx: u64,
        /// Processes that transfer tensors.
        transfer_processes: u64,
        /// Directory of the real compiler's cache.
        compile_dir: String,
        /// Address of the management server.
        mgmt_address: String,
        /// Namespace at the management server.
        mgmt_namespace: String,
        /// Certificate of the management server.
        credentials_path: String,
        /// Image of the real appliance.
        cbcore_image: String,
        /// Knobs of the real server.
        debug_args: serde_json::Value,
        /// File of such knobs.
        debug_args_path: String,
        /// Knobs of the real server.
        ini: serde_json::Value,
        /// Fabrics not to use.
        fabric_type_blacklist: OneOrMany,
        /// Whether client and server may differ in version.
        disable_version_check: bool,
        /// Memory of the coordinator while it compiles.
        compile_crd_memory_gi: i64,
        /// Memory of the coordinator while it runs.
        execute_crd_memory_gi: i64,
        /// Memory of input workers.
        wrk_memory_gi: i64,
        /// Memory of activation servers.
        act_memory_gi: i64,
        /// Memory of command servers.
        cmd_memory_gi: i64,
        /// Memory of weight servers.
        wgt_memory_gi: i64,
        /// Memory of the chief.
        chf_memory_gi: i64,
        /// Data parallelism of GPU runs.
        enable_distributed: bool,
        /// Rendezvous of GPU runs.
        dist_addr: String,
        /// Backend of GPU runs.
        dist_backend: String,
        /// Initialisation of GPU runs.
        init_method: String,
        /// Main process of GPU runs.
        main_process_id: u64,
        /// Trade of precision for speed on the real machine.
        precision_opt_level: u64,
        /// Gradient accumulation on the real machine; leaves do it here.
        use_cs_grad_accum: bool,
        /// Data path of an older release.
        use_appliance_data: bool,
        /// Optimizer step of an older release.
        use_cstorch_optimizer_step: bool,
        /// Activations of an older release.
        skip_train_recv_activations: bool,
        /// Levels of the cluster's own logs.
        wsc_log_level: OneOrMany,
        /// Whether logging announces itself.
        log_initialization: bool,
        /// Whether input batches are summarised.
        log_input_summaries: bool,
        /// Layout of event directories of an older release.
        legacy_event_dirs: bool,
        /// How weights are initialised on the real machine.
        lazy_initialization: bool,
        /// Whether data is dropped for tests of speed.
        drop_data: bool,
        /// Whether each step is traced anew.
        retrace_every_iteration: bool,
        /// Batch norm over devices; GPTs have none.
        sync_batchnorm: bool,
        /// Cache of Hugging Face data sets.
        hf_cache_dir: String,
        /// Whether activations are sent only at some steps.
        enable_act_frequency: bool,
        /// Variant of an older release.
        variant: String,
        /// Whether losses are saved; they always are.
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
        /// Execution strategy of an older release; it is always weight streaming.
        execution_strategy: String,
        /// Interface of an older release.
        experimental_api: bool,
    }
    not_yet {
        "num_steps" => "set max_steps, the step to train to",
        "steps_per_epoch" => "set max_steps, the step to train to, or max_epochs",
        "is_pretrained_checkpoint" => "set load_checkpoint_states: model",
        "dump_activations" => "leave it out",
        "op_profiler_config" => "leave it out",
        "experimental" => "leave it out",
    }
}
