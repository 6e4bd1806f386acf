//! `model`.

use super::InitializerSetting;
use crate::yaml::section;

section! {
    /// A GPT-2 or GPT-3 model.
    pub struct ModelParams {
        /// `gpt2` (the default) or `gpt3`: the same architecture, told apart in reports.
        name: String,
        /// Number of different tokens; 50,257 for GPT-2's encoding, 256 for bytes.
        vocab_size: u64,
        /// Width of the residual stream.
        hidden_size: u64,
        /// Number of decoder blocks.
        num_hidden_layers: u64,
        /// Attention heads; must divide `hidden_size`.
        num_heads: u64,
        /// Width of the feed-forward network; four times `hidden_size` by default.
        filter_size: u64,
        /// Longest sequence the position embedding covers; 1,024 by default.
        max_position_embeddings: u64,
        /// Whether positions are embedded at all; true by default.
        use_position_embedding: bool,
        /// `learned`, the only kind for now.
        position_embedding_type: String,
        /// Whether the output layer uses the token embedding's weights; true by default.
        share_embedding_weights: bool,
        /// Whether the embedding is normalised; must be false for now.
        embedding_layer_norm: bool,
        /// Dropout of the residual branches; 0.1 by default.
        dropout_rate: f64,
        /// Dropout of the embedding; `dropout_rate` by default.
        embedding_dropout_rate: f64,
        /// Dropout of the attention weights; `dropout_rate` by default.
        attention_dropout_rate: f64,
        /// Added to the variance in layer normalisation; 1e-5 by default.
        layer_norm_epsilon: f64,
        /// `layernorm`, the only kind for now.
        norm_type: String,
        /// Whether blocks normalise their input (true, the default) or their output; must be true for now.
        norm_first: bool,
        /// `scaled_dot_product` (the default) or `dot_product`.
        attention_type: String,
        /// `aiayn_attention`, ordinary multi-head attention, the only kind for now.
        attention_module: String,
        /// Whether the query, key and value projections have biases; true by default.
        use_projection_bias_in_attention: bool,
        /// Whether the attention's output projection has a bias; true by default.
        use_ffn_bias_in_attention: bool,
        /// Activation of the feed-forward network: `gelu` (exact, the default), `gelu_new` or `gelu_fast` (by tanh).
        nonlinearity: String,
        /// Whether the feed-forward layers have biases; true by default.
        use_ffn_bias: bool,
        /// Whether there is dropout after the activation; must be false for now.
        use_ff_layer1_dropout: bool,
        /// Whether the output layer has a bias; false by default.
        use_bias_in_output: bool,
        /// Standard deviation of the default initializers; 0.02 by default.
        initializer_range: f64,
        /// Initial values of token and position embeddings; truncated normal of `initializer_range` by default. A name, or a
        /// mapping of `name` (`normal`, `truncated_normal`, `uniform`, `constant`, `zeros` or `ones`) and its arguments:
        /// `mean`, `std`, `a`, `b`, `val`.
        embedding_initializer: InitializerSetting,
        /// Initial values of projections and the first feed-forward layer, written as the embeddings' and the same by
        /// default.
        initializer: InitializerSetting,
        /// Initial values of the layers that write into the residual stream; truncated normal of `initializer_range`
        /// over the square root of twice the number of layers by default. Written as the embeddings'.
        output_layer_initializer: InitializerSetting,
        /// What the summed loss is divided by: `num_tokens` (the default) or `batch_size`.
        loss_scaling: String,
        /// Factor on the loss; one over the sequence length makes `batch_size` scaling a mean over tokens. 1 by default.
        loss_weight: f64,
        /// Whether weights travel and multiply as 16-bit numbers, with f32 sums and master weights; false by default.
        mixed_precision: bool,
        /// Whether the 16-bit type is bfloat16; fp16 is taken as bfloat16.
        use_bfloat16: bool,
        /// The 16-bit type by name: `bfloat16`, `float16` or `cbfloat16`; all are taken as bfloat16.
        fp16_type: String,
        /// Whether evaluation reports perplexity and accuracy beside the loss; true by default.
        compute_eval_metrics: bool,
    }
    without_effect {
        /// Trade of precision for speed on the real machine.
        precision_opt_level: u64,
        /// Whether the softmax is computed in f32; it always is.
        attention_softmax_fp32: bool,
        /// Which attention kernel the real compiler picks.
        attention_kernel: String,
        /// Casts at the boundary of the real machine.
        boundary_casting: bool,
        /// Summaries of an older release.
        tf_summary: bool,
        /// Whether several systems may work together; they always may.
        allow_multireplica: bool,
    }
    not_yet {
        "rotary_dim" => "use position_embedding_type: learned",
        "rope_theta" => "use position_embedding_type: learned",
        "pos_scaling_factor" => "use position_embedding_type: learned",
        "pos_scaling_type" => "use position_embedding_type: learned",
        "pos_scaling_extra_args" => "use position_embedding_type: learned",
        "alibi_trainable_slopes" => "use position_embedding_type: learned",
        "num_relative_attention_buckets" => "use position_embedding_type: learned",
        "fixed_sparse_attention" => "leave it out for dense attention",
        "attention_sliding_window_length" => "leave it out for full attention",
        "attention_sink_tokens" => "leave it out for full attention",
        "attention_logit_softcapping" => "leave it out",
        "final_logit_softcapping" => "leave it out",
        "attention_qk_norm_layer" => "leave it out",
        "extra_attention_params" => "leave it out; attention is multi-head",
        "extra_ffn_params" => "leave it out",
        "moe_params" => "leave it out for a dense feed-forward network",
        "moe" => "leave it out for a dense feed-forward network",
        "num_experts" => "leave it out for a dense feed-forward network",
        "memory_tokens_config" => "leave it out",
        "parallel_blocks" => "leave it out for sequential blocks",
        "use_untied_layer_norm" => "leave it out",
        "dtype" => "use mixed_precision",
        "lora_params" => "leave it out to train all weights",
        "mup_base_hidden_size" => "leave it out for the standard parametrisation",
        "mup_base_filter_size" => "leave it out for the standard parametrisation",
        "embeddings_scale" => "leave it out for the standard parametrisation",
        "scale_qk_dot_by_d" => "leave it out for the standard parametrisation",
        "attention_logits_alpha" => "leave it out for the standard parametrisation",
        "output_logits_alpha" => "leave it out for the standard parametrisation",
        "output_logits_scale" => "leave it out for the standard parametrisation",
        "scale_output_logits_by_d" => "leave it out for the standard parametrisation",
        "lr_adjustment_groups" => "leave it out for the standard parametrisation",
        "label_smoothing" => "leave it out",
        "z_loss_eps" => "leave it out",
        "start_token" => "leave it out; inference is no part of a training job",
        "stop_sequences" => "leave it out; inference is no part of a training job",
        "temperature" => "leave it out; inference is no part of a training job",
        "top_k" => "leave it out; inference is no part of a training job",
        "top_p" => "leave it out; inference is no part of a training job",
        "max_tokens" => "leave it out; inference is no part of a training job",
    }
}
