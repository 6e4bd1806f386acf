//! The section `model` of the params.
//!
//! Lists the keys that Millrace uses, keys that only configure the real machine (`ignored`), and keys that are rejected
//! with a remedy (`unsupported`). `section!` generates the type, the schema and the reader.

use super::InitializerSetting;
use crate::keys::facts::{alias_of, default, default_from, otherwise, required, required_if};
use crate::keywords::{
    ATTENTION_MODULES, ATTENTION_TYPES, FAMILIES, HALF_TYPES, INITIALIZERS, LOSS_SCALINGS, NONLINEARITIES, NORMS,
    POSITION_EMBEDDINGS, ROTARY_SCALINGS,
};
use crate::yaml::section;

section! {
    /// A decoder model: GPT-2 and its descendants.
    pub struct ModelParams {
        /// Family of the model. All are decoders whose parts the other keys choose; `gptj` and `falcon` have parallel
        /// blocks. A model with `residual_dropout_rate` or `use_untied_layer_norm` is a `gptj`.
        name: String = otherwise("`gpt2`, or `gptj` if a key of GPT-J is given").one_of(&FAMILIES),
        /// Number of different tokens: 50,257 for GPT-2's encoding, 256 for bytes.
        vocab_size: u64 = required_if("`train_input.vocab_size`, where older files have it, is omitted too"),
        /// Width of the residual stream.
        hidden_size: u64 = required(),
        /// Number of decoder blocks.
        num_hidden_layers: u64 = required(),
        /// Number of attention heads; must divide `hidden_size`, or `attention_inner_dim` if that is given.
        num_heads: u64 = required(),
        /// Width of all heads of queries together.
        attention_inner_dim: u64 = otherwise("`hidden_size`"),
        /// Width of the feed-forward network.
        filter_size: u64 = otherwise("4 times `hidden_size`"),
        /// Length of the longest sequence that a trained position embedding covers, in tokens.
        max_position_embeddings: u64 = default("1024"),
        /// Whether the model knows the positions of tokens.
        use_position_embedding: bool = default("true"),
        /// How the model knows the positions of tokens: by a trained embedding, by rotating queries and keys, or by
        /// decreasing attention scores in proportion to the distance (ALiBi).
        position_embedding_type: String = default("learned").one_of(&POSITION_EMBEDDINGS),
        /// Number of elements of each head that are rotated; even.
        rotary_dim: u64 = otherwise("the width of a head"),
        /// Base of the frequencies of rotary positions.
        rope_theta: f64 = default("10000"),
        /// Divisor of the frequencies of rotary positions, for contexts that are longer than those of the original
        /// training.
        pos_scaling_factor: f64 = default("1"),
        /// Rule by which the frequencies are divided: all of them, or as in LLaMA 3.1.
        pos_scaling_type: String = default("linear").one_of(&ROTARY_SCALINGS),
        /// Further settings of `pos_scaling_type: llama3`.
        pos_scaling_extra_args: RotaryScalingParams = required_if("`pos_scaling_type` is `llama3`"),
        /// Whether the slopes of ALiBi are trained.
        alibi_trainable_slopes: bool = default("false").fixed(),
        /// Whether the output layer uses the weights of the token embedding.
        share_embedding_weights: bool = default("true"),
        /// Whether the embedding is normalized.
        embedding_layer_norm: bool = default("false"),
        /// Factor of the embedding, after its norm.
        embeddings_scale: f64 = default("1"),
        /// Dropout rate of the residual branches.
        dropout_rate: f64 = default("0.1"),
        /// Spelling of `dropout_rate` in GPT-J's files.
        residual_dropout_rate: f64 = alias_of("dropout_rate"),
        /// Dropout rate of the embedding.
        embedding_dropout_rate: f64 = default_from("model.dropout_rate"),
        /// Dropout rate of the attention weights.
        attention_dropout_rate: f64 = default_from("model.dropout_rate"),
        /// Number added to the variance in layer normalization.
        layer_norm_epsilon: f64 = default("1e-5"),
        /// Kind of normalization.
        norm_type: String = default("layernorm").one_of(&NORMS),
        /// Whether blocks normalize their input instead of their output.
        norm_first: bool = default("true").fixed(),
        /// Whether attention and feed-forward network of a block have a norm each; in GPT-J's family only, whose two
        /// parts read the same input.
        use_untied_layer_norm: bool = default("false"),
        /// Whether products of queries and keys are divided by the square root of the head's width.
        attention_type: String = default("scaled_dot_product").one_of(&ATTENTION_TYPES),
        /// Whether products of queries and keys are divided by the head's width instead of its square root. Has no
        /// effect with `attention_type: dot_product`.
        scale_qk_dot_by_d: bool = default("false"),
        /// Whether products of queries and keys are also divided by the number of the block, which begins with 1.
        scale_qk_dot_by_layer_idx: bool = default("false"),
        /// Further factor of the products of queries and keys.
        attention_logits_alpha: f64 = default("1"),
        /// Attention module: each head has its own keys and values, or heads share them.
        attention_module: String = default("aiayn_attention").one_of(&ATTENTION_MODULES),
        /// Settings of `attention_module: multiquery_attention`.
        extra_attention_params: AttentionParams = otherwise("one group for all heads"),
        /// Number of tokens that a token attends to, itself included.
        attention_sliding_window_length: u64 = otherwise("all tokens before it"),
        /// Whether the query, key and value projections have biases.
        use_projection_bias_in_attention: bool = default("true"),
        /// Whether the output projection of the attention has a bias.
        use_ffn_bias_in_attention: bool = default("true"),
        /// Activation function of the feed-forward network; `gelu` is exact, `gelu_new` and `gelu_fast` are its
        /// approximation by tanh. The names that end in `glu` multiply the function of one projection by a second.
        nonlinearity: String = default("gelu").one_of(&NONLINEARITIES),
        /// Whether the feed-forward layers have biases.
        use_ffn_bias: bool = default("true"),
        /// Whether there is dropout after the activation function.
        use_ff_layer1_dropout: bool = default("false").fixed(),
        /// Whether the output layer has a bias.
        use_bias_in_output: bool = default("false"),
        /// Factor of the logits, before the bias of the output layer. Not together with `mup_base_hidden_size`, from
        /// which it follows.
        output_logits_scale: f64 = default("1"),
        /// Width of the residual stream of the base model of muP (maximal update parametrization). If it is given, the
        /// initial values, the factor of the logits and the learning rates of a model are those that make the
        /// hyperparameters of the base model the best ones for it, too. With m = `hidden_size` /
        /// `mup_base_hidden_size`: the standard deviations of all layers of a block but the last are divided by the
        /// square root of m, the learning rates of their weights by m, and the logits are multiplied by
        /// `output_logits_alpha` / m. The standard deviations of the layers that add to the residual stream are also
        /// divided by sqrt(2 `num_hidden_layers`).
        mup_base_hidden_size: f64 = otherwise("the standard parametrization"),
        /// Width of the feed-forward network of the base model of muP; required with `mup_base_hidden_size`. With m =
        /// `filter_size` / `mup_base_filter_size`: the standard deviation of the second feed-forward layer is divided
        /// by the square root of m, the learning rate of its weights by m.
        mup_base_filter_size: f64 = otherwise("the standard parametrization"),
        /// Factor of the logits with muP, before their division.
        output_logits_alpha: f64 = default("1"),
        /// Whether muP divides the logits by m instead of its square root.
        scale_output_logits_by_d: bool = default("true"),
        /// Standard deviation of the default initializers.
        initializer_range: f64 = default("0.02"),
        /// Initial values of the token and position embeddings: an initializer's name, or a mapping with its name and
        /// arguments.
        embedding_initializer: InitializerSetting = otherwise(
            "`truncated_normal` with `initializer_range` as `std`",
        ).one_of(&INITIALIZERS),
        /// Initial values of the query, key and value projections and of the first feed-forward layer.
        initializer: InitializerSetting = otherwise(
            "`truncated_normal` with `initializer_range` as `std`",
        ).one_of(&INITIALIZERS),
        /// Initial values of the layers that add to the residual stream.
        output_layer_initializer: InitializerSetting = otherwise(
            "`truncated_normal` with `initializer_range` / sqrt(2 `num_hidden_layers`) as `std`",
        ).one_of(&INITIALIZERS),
        /// Initial values of the first feed-forward layer.
        ffn_initializer: InitializerSetting = default_from("model.initializer").one_of(&INITIALIZERS),
        /// Initial values of the second feed-forward layer. As in the public model zoo, with muP its default is not
        /// `output_layer_initializer` but `truncated_normal` with `initializer_range` as `std`, except in `gptj` and
        /// `falcon`.
        ffn_output_layer_initializer: InitializerSetting = otherwise(
            "the value of `output_layer_initializer`",
        ).one_of(&INITIALIZERS),
        /// Divisor of the summed loss: the number of labelled tokens in the batch, or its number of samples.
        loss_scaling: String = default("num_tokens").one_of(&LOSS_SCALINGS),
        /// Factor of the loss; with `loss_scaling: batch_size`, one over the sequence length makes the loss a mean over
        /// tokens. Any other number than 1 implies `batch_size`.
        loss_weight: f64 = default("1"),
        /// Whether weights are sent and multiplied as 16-bit numbers; sums and master weights remain 32-bit.
        mixed_precision: bool = default("false"),
        /// Whether the 16-bit type is bfloat16; fp16 is replaced by bfloat16.
        use_bfloat16: bool = default("false"),
        /// Name of the 16-bit type; all types are replaced by bfloat16.
        fp16_type: String = otherwise("the type that `use_bfloat16` selects").one_of(&HALF_TYPES),
        /// Whether samples of variable length are packed.
        use_vsl: bool = default("false").fixed(),
        /// Whether evaluation reports perplexity and accuracy in addition to the loss.
        compute_eval_metrics: bool = default("true"),
    }
    ignored {
        /// Trade-off between precision and speed on the real machine.
        precision_opt_level: u64,
        /// Whether the softmax is computed in f32; Millrace always does so.
        attention_softmax_fp32: bool,
        /// Attention kernel that the real compiler chooses.
        attention_kernel: String,
        /// How the real machine computes the biases of ALiBi.
        alibi_implementation: String,
        /// Casts at the boundary of the real machine.
        boundary_casting: bool,
        /// Summaries of an older release.
        tf_summary: bool,
        /// Seed of the initial weights of an older release; `runconfig.seed` determines them.
        weight_initialization_seed: u64,
        /// Whether several systems may work together; on Millrace they always may.
        allow_multireplica: bool,
    }
    unsupported {
        "num_relative_attention_buckets" => "use position_embedding_type: learned",
        "fixed_sparse_attention" => "leave it out for dense attention",
        "attention_sink_tokens" => "leave it out for full attention",
        "attention_logit_softcapping" => "leave it out",
        "final_logit_softcapping" => "leave it out",
        "attention_qk_norm_layer" => "leave it out",
        "extra_ffn_params" => "leave it out",
        "moe_params" => "leave it out for a dense feed-forward network",
        "moe" => "leave it out for a dense feed-forward network",
        "num_experts" => "leave it out for a dense feed-forward network",
        "memory_tokens_config" => "leave it out",
        "parallel_blocks" => "leave it out for sequential blocks",
        "dtype" => "use mixed_precision",
        "lora_params" => "leave it out to train all weights",
        "lr_adjustment_groups" => "use adjust_learning_rate of the optimizer",
        "label_smoothing" => "leave it out",
        "z_loss_eps" => "leave it out",
        "start_token" => "leave it out; a training job does no inference",
        "stop_sequences" => "leave it out; a training job does no inference",
        "temperature" => "leave it out; a training job does no inference",
        "top_k" => "leave it out; a training job does no inference",
        "top_p" => "leave it out; a training job does no inference",
        "max_tokens" => "leave it out; a training job does no inference",
    }
}

section! {
    /// Settings of attention whose heads share keys and values.
    pub struct AttentionParams {
        /// Number of heads of keys and values; must divide `num_heads`.
        num_kv_groups: u64 = default("1"),
    }
    ignored {}
    unsupported {}
}

section! {
    /// Settings of LLaMA 3.1's rule for the frequencies of rotary positions.
    pub struct RotaryScalingParams {
        /// Wavelengths longer than `original_max_position_embeddings` divided by this number are scaled completely.
        low_freq_factor: f64 = default("1"),
        /// Wavelengths shorter than `original_max_position_embeddings` divided by this number are not scaled.
        high_freq_factor: f64 = default("4"),
        /// Number of positions of the original training.
        original_max_position_embeddings: u64 = default("8192"),
    }
    ignored {}
    unsupported {}
}
