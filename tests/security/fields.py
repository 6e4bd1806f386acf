"""All string fields of a job, by what becomes of their values."""

from __future__ import annotations

NAME_FIELDS: dict[str, set[str]] = {
    # The server generates a name if it is empty.
    "metadata.name": {"empty"},
    # A prefix, to which the server appends a suffix.
    "metadata.generateName": {"hyphen at the end"},
    "metadata.namespace": set(),
    "spec.appliance": set(),
    "spec.priorityClassName": set(),
    "spec.volumes[].name": set(),
    "spec.volumes[].configMap.name": set(),
    "spec.volumes[].persistentVolumeClaim.claimName": set(),
    "spec.mountDirs[].volume": set(),
    "spec.files[].digest": set(),
    # A path below the directory of the job's files.
    "spec.files[].path": {
        *("slash inside", "percent-encoded", "twice percent-encoded", "upper case", "hyphen at the end", "tilde"),
        "too long",
    },
    "spec.model.graph": set(),
    "spec.model.weights": set(),
    "spec.mountDirs[].path": {"absolute"},
    "spec.mountDirs[].subPath": {
        *(
            "slash inside",
            "percent-encoded",
            "twice percent-encoded",
            "upper case",
            "hyphen at the end",
            "tilde",
            "too long",
        ),
    },
}
"""Fields with names, and the values that are valid there."""

PATH_FIELDS = {
    "spec.params.train_input.data_dir",
    "spec.params.train_input.data_files",
    "spec.params.train_input.data_file",
    "spec.params.eval_input.data_dir",
    "spec.params.eval_input.data_files",
    "spec.params.eval_input.data_file",
    "spec.params.train_input.mixture[].data_dir",
    "spec.params.eval_input.mixture[].data_dir",
    *(
        f"spec.params.{section}.{key}"
        for section in ("train_input", "eval_input", "model")
        for key in ("label_vocab_file", "vocab_file")
    ),
    *(
        f"spec.params.{section}.{key}"
        for section in ("train_input", "eval_input")
        for key in ("src_data_dir", "src_vocab_file", "tgt_data_dir", "tgt_vocab_file")
    ),
    "spec.params.train_input.tokenizer_file",
    "spec.params.eval_input.tokenizer_file",
    "spec.params.model.graph",
    "spec.params.runconfig.model_dir",
    "spec.params.runconfig.summary_dir",
    "spec.params.runconfig.checkpoint_path",
}
"""Fields with a path that a job reads or writes."""

OTHER_FIELDS = {
    *("spec.params.csconfig", "spec.params.description", "spec.params.model.bits_per_x_dataset"),
    *("spec.params.model.activation_fn", "spec.params.model.pooler_nonlinearity"),
    *("apiVersion", "kind", "metadata.annotations.*", "metadata.labels.*", "spec.labels.*"),
    # The server sets these itself.
    *("metadata.creationTimestamp", "metadata.deletionTimestamp", "metadata.resourceVersion", "metadata.selfLink"),
    *("metadata.uid", "spec.loaderImage"),
    *(
        f"spec.resources.{role}.{kind}.*"
        for role in ("activation", "coordinator", "cs2", "loader", "memoryx", "swarmx")
        for kind in ("limits", "requests")
    ),
    *(
        f"spec.params.{name}_input.{key}"
        for name in ("train", "eval")
        for key in (
            *("data_processor", "data_subset", "micro_batch_size", "split", "text_key", "token_dtype", "tokenizer"),
            *("data_transforms[].name", "transforms[].interpolation", "transforms[].name", "transforms[].size"),
        )
    ),
    *(f"spec.params.model.{key}" for key in ("decoder_nonlinearity", "encoder_nonlinearity", "mlm_loss_scaling")),
    *(
        f"spec.params.model.{key}"
        for key in ("alibi_implementation", "attention_kernel", "attention_module", "attention_type")
    ),
    *(
        f"spec.params.model.{key}"
        for key in ("embedding_initializer", "fp16_type", "ffn_initializer", "initializer", "loss_scaling", "name")
    ),
    *(
        f"spec.params.model.{key}"
        for key in ("ffn_output_layer_initializer", "nonlinearity", "norm_type", "output_layer_initializer")
    ),
    *(
        f"spec.params.model.{key}"
        for key in ("pos_scaling_type", "position_embedding_type", "positional_embedding_type")
    ),
    *(
        f"spec.params.model.{key}"
        for key in ("encoder_nonlinearity", "mlm_nonlinearity", "pooler_nonlinearity", "problem_type")
    ),
    # Keys of other programs and releases without effect here.
    *("spec.params.predict_input", "spec.params.train_input.buckets", "spec.params.eval_input.buckets"),
    *("spec.params.optimizer.params[].params", "spec.params.optimizer.params[].tag"),
    *(f"spec.params.optimizer.{key}" for key in ("eps", "learning_rate", "loss_scaling_factor", "optimizer_type")),
    "spec.params.optimizer.momentum_schedule.interpolation",
    "spec.params.optimizer.params[].momentum_schedule.interpolation",
    *(f"spec.params.sparsity.{key}" for key in ("algorithm", "init_method", "param_filter", "param_name_patterns")),
    *(f"spec.params.sparsity.{key}" for key in ("drop_fraction", "type")),
    *(
        f"spec.params.runconfig.{key}"
        for key in ("job_labels", "job_priority", "load_checkpoint_states", "logging", "mode")
    ),
    # Keys of the real appliance without effect here.
    *(f"spec.params.runconfig.{key}" for key in ("autogen_policy", "cbcore_image", "compile_dir", "credentials_path")),
    *("spec.params.runconfig.cs_ip", "spec.params.runconfig.loss_spike_action"),
    *(f"spec.params.runconfig.{key}" for key in ("debug_args", "debug_args_path", "dist_addr", "dist_backend")),
    *(f"spec.params.runconfig.{key}" for key in ("execution_strategy", "fabric_type_blacklist", "hf_cache_dir", "ini")),
    *(f"spec.params.runconfig.{key}" for key in ("init_method", "mgmt_address", "mgmt_namespace", "mount_dirs")),
    *(
        f"spec.params.runconfig.{key}"
        for key in ("python_paths", "service_dir", "target_device", "variant", "wsc_log_level")
    ),
}
"""Fields that become no part of a path or object name."""
