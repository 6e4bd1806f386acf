//! Values of keys.

/// A value of a key other than its default, as YAML.
pub fn sample(path: &str) -> &'static str {
    match path {
        "model.dropout_rate" => "0.25",
        "model.scale_qk_dot_by_layer_idx" => "true",
        "model.position_embedding_type" => "alibi",
        "train_input.shuffle_seed" | "eval_input.shuffle_seed" => "9",
        "model.initializer" => "{name: normal, std: 0.25}",
        "model.max_position_embeddings" | "train_input.max_sequence_length" | "eval_input.max_sequence_length" => "128",
        "model.hidden_size" | "model.filter_size" => "32",
        "model.image_size" => "[20, 20]",
        "model.patch_size" => "[8, 8]",
        "model.num_channels" => "1",
        "model.num_classes" | "model.num_labels" => "5",
        "model.task_dropout" => "0.25",
        "train_input.data_files" | "eval_input.data_files" => "[c.txt]",
        "model.src_vocab_size" | "model.num_layers" => "300",
        "model.encoder_num_hidden_layers" | "model.num_hidden_layers" => "3",
        "train_input.tgt_max_sequence_length" | "model.tgt_max_position_embeddings" => "16",
        "train_input.drop_last" => "true",
        "train_input.data_dir" | "eval_input.data_dir" => "corpus",
        "train_input.vocab_file" | "eval_input.vocab_file" | "train_input.tgt_vocab_file" => "words.txt",
        "model.nonlinearity" => "relu",
        "model.encoder_nonlinearity" => "gelu",
        "model.vocab_size" => "256",
        "train_input.mask_whole_word" | "eval_input.mask_whole_word" => "true",
        "train_input.batch_size" => "16",
        "train_input.tokenizer" => "bytes",
        "train_input.text_key" => "content",
        "train_input.token_dtype" => "uint32",
        "runconfig.seed" => "7",
        "runconfig.model_dir" => "elsewhere",
        "runconfig.log_steps" | "runconfig.max_epochs" | "runconfig.max_checkpoints" => "3",
        "runconfig.checkpoint_steps" => "50",
        "optimizer.weight_decay" => "0.2",
        "optimizer.eps" => "1e-5",
        "optimizer.correct_bias" => "false",
        "optimizer.epsilon_hat" => "true",
        "optimizer.nesterov" => "true",
        "sparsity.algorithm" => "static",
        "sparsity.update" => "{freq: 3}",
        "optimizer.learning_rate.total_iters" => "20",
        "optimizer.learning_rate.learning_rate" => "0.25",
        "optimizer.learning_rate.step_size_up" => "5",
        _ => panic!("a sample of {path} is missing in this test"),
    }
}

/// Defaults that the reference describes in words, with what they are in this test's document; `None` if there is no
/// value that means the same as leaving the key out.
pub fn described(path: &str) -> Option<&'static str> {
    match path {
        "model.filter_size" => Some("256"),
        "model.attention_inner_dim" => Some("64"),
        "model.dropout_rate" => Some("0.1"),
        "model.use_rms_norm" | "model.use_biasless_norm" => Some("false"),
        "runconfig.is_pretrained_checkpoint" => Some("false"),
        "model.name" => Some("gpt2"),
        "model.graph" => None,
        "eval_input.use_vsl" | "model.use_vsl" => Some("false"),
        "train_input.do_lower" | "eval_input.do_lower" => Some("false"),
        "model.scale_output_logits_by_d" => Some("true"),
        "model.scale_encoder_qk_dot_by_d" | "model.scale_decoder_qk_dot_by_d" => Some("false"),
        "model.norm_first" | "model.use_segment_embedding" | "model.use_position_embeddings" => Some("true"),
        // The job records only a token that is given.
        "model.mask_token_id" => None,
        "model.use_final_layer_norm" => Some("false"),
        "model.rotary_dim" => Some("16"),
        "model.extra_attention_params" => Some("{num_kv_groups: 1}"),
        "model.embedding_initializer" | "model.initializer" => Some("{name: truncated_normal, std: 0.02}"),
        "model.output_layer_initializer" | "model.ffn_output_layer_initializer" => {
            Some("{name: truncated_normal, std: 0.01}")
        }
        "model.fp16_type" => Some("float16"),
        "eval_input.data_processor" => Some("GptTextDataProcessor"),
        "eval_input.data_dir" | "eval_input.data_files" => Some("[a.txt, b.txt]"),
        "eval_input.validation_fraction" => Some("0.1"),
        "train_input.max_sequence_length" => Some("256"),
        "train_input.split" => Some("train"),
        "eval_input.split" => Some("validation"),
        "optimizer.adjust_learning_rate" => Some("{decoder_kernel: 1}"),
        "optimizer.params" => Some("[]"),
        "optimizer.momentum_schedule" => None,
        path if path.starts_with("optimizer.params.") => None,
        "sparsity.param_filter" | "sparsity.param_name_patterns" => None,
        path if path.starts_with("sparsity.") && path.ends_with(".stop") => None,
        path if path.starts_with("optimizer.adjust_learning_rate.") => Some("1"),
        "optimizer.betas" => Some("[0.9, 0.999]"),
        "optimizer.eps" => Some("1e-6"),
        "runconfig.eval_frequency" => Some("100"),
        "runconfig.log_steps" => Some("1"),
        "runconfig.job_labels" => Some("[]"),
        // Required by the schedules of this test's documents.
        "optimizer.learning_rate.milestones" | "optimizer.learning_rate.gamma" => None,
        // None of the values that these keys may have is their default.
        "runconfig.max_epochs"
        | "runconfig.steps_per_epoch"
        | "runconfig.eval_steps"
        | "runconfig.max_checkpoints"
        | "runconfig.loss_spike_factor"
        | "runconfig.checkpoint_path"
        | "model.mup_base_hidden_size"
        | "model.mup_base_filter_size"
        | "model.mup_base_d_model"
        | "model.mup_base_d_ff"
        | "model.mup_base_d_kv"
        | "model.attention_sliding_window_length" => None,
        path if path.ends_with("tokenizer_file") => None,
        path if path.ends_with("vocab_file") || path.ends_with("_input.max_predictions_per_seq") => None,
        path if path.ends_with("transforms") || path.ends_with("_input.tgt_data_dir") => None,
        "eval_input.repeat" => Some("false"),
        "model.d_kv" => Some("16"),
        "model.hidden_sizes" => Some("[16, 16]"),
        "model.num_classes" => None,
        "model.position_embedding_type" => Some("learned"),
        "model.norm_type" => Some("layernorm"),
        "model.use_t5_layer_norm"
        | "model.use_relative_attention_bias"
        | "model.use_pre_encoder_decoder_layer_norm"
        | "model.use_dropout_outside_residual_path" => Some("true"),
        "model.use_transformer_initialization" => Some("false"),
        "model.attention_logit_softcapping" | "model.final_logit_softcapping" => None,
        "model.image_size" => Some("[28, 28]"),
        "model.num_channels" => Some("1"),
        path if path.ends_with("_input.mixture") || path.ends_with("_input.num_samples") => None,
        _ => match path.split_once("initializer.") {
            Some((_, "a")) => Some("-0.05"),
            Some((_, "b")) => Some("0.05"),
            // No name stands for the default scale, 1.
            Some((_, "scale_type")) => None,
            _ => panic!("the default of {path} is missing in this test"),
        },
    }
}
