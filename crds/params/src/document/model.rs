//! The section `model` of the params.
//!
//! Lists the keys that Millrace uses, keys that only configure the real machine (`ignored`), and keys that are rejected
//! with a remedy (`unsupported`). `section!` generates the type, the schema and the reader.

use super::InitializerSetting;
use crate::keys::facts::{alias_of, default, default_from, otherwise, required_if};
use crate::keywords::{
    ATTENTION_MODULES, ATTENTION_TYPES, FAMILIES, HALF_TYPES, INITIALIZERS, LAYER_NONLINEARITIES, LOSS_SCALINGS,
    NONLINEARITIES, NORMS, POSITION_EMBEDDINGS, PROBLEM_TYPES, ROTARY_SCALINGS, SEQ2SEQ_LOSS_SCALINGS,
};
use crate::yaml::section;

section! {
    /// A model: a decoder (GPT-2 and its descendants), an encoder (BERT, RoBERTa), an encoder with a decoder (T5,
    /// Transformer), or a model that assigns a class to each image.
    pub struct ModelParams {
        /// Family of the model. Most are decoders whose parts the other keys choose; `gptj` and `falcon` have parallel
        /// blocks. A model with `residual_dropout_rate` or `use_untied_layer_norm` is a `gptj`. The families of `bert`,
        /// and `esm2`, are encoders: they predict masked tokens, or do what the second part of the name says. A model
        /// whose data processor is one of BERT's is the `bert` that reads these data. `t5` and `transformer` are an
        /// encoder with a decoder; a model with `encoder_num_hidden_layers` is one of them. `fc_mnist` and
        /// `vision_transformer` read images; a model with `hidden_sizes` or `depth` is a `fc_mnist`.
        name: String = otherwise("`gpt2`, or the family whose keys or data are given").one_of(&FAMILIES),
        /// File of a graph document, which describes the model instead of `name` and the keys of families; see
        /// [graph.md](graph.md). It is found as the files of the inputs are. Besides it, a model has only `vocab_size`
        /// (to check the tokens of the data), the keys of mixed precision and of the loss, and `compute_eval_metrics`.
        graph: String = otherwise("the graph of the family"),
        /// Number of different tokens: 50,257 for GPT-2's encoding, 256 for bytes.
        vocab_size: u64 = required_if(
            "`train_input.vocab_size`, where older files have it, is omitted too; 30,522 in families of `bert`",
        ),
        /// Width of the residual stream; of `fc_mnist`, of each layer.
        hidden_size: u64 = required_if("`d_model` and `hidden_sizes` are omitted"),
        /// Number of blocks.
        num_hidden_layers: u64 = required_if("`name` is not `t5` or `transformer`"),
        /// Number of attention heads; must divide `hidden_size`, or `attention_inner_dim` if that is given.
        num_heads: u64 = required_if("the model is not a `fc_mnist`"),
        /// Width of each layer of `fc_mnist` but the output layer, instead of `depth` and `hidden_size`.
        hidden_sizes: Vec<u64> = otherwise("`depth` times `hidden_size`"),
        /// Number of layers of `fc_mnist` without the output layer.
        depth: u64 = required_if("the model is a `fc_mnist` without `hidden_sizes`"),
        /// Spelling of `dropout_rate` in files of `fc_mnist`, whose default is 0.
        dropout: f64 = alias_of("dropout_rate"),
        /// Activation function of `fc_mnist`.
        activation_fn: String = default("relu").one_of(&LAYER_NONLINEARITIES),
        /// Rows and columns of an image.
        image_size: Vec<u64> = otherwise("[28, 28] for `fc_mnist`, [224, 224] for `vision_transformer`"),
        /// Number of channels of an image: 1 for gray, 3 for color.
        num_channels: u64 = otherwise("1 for `fc_mnist`, 3 for `vision_transformer`"),
        /// Rows and columns of a patch of `vision_transformer`; must divide those of the image.
        patch_size: Vec<u64> = default("[16, 16]"),
        /// Whether the projection of patches has a bias.
        use_embed_proj_bias: bool = default("true"),
        /// Whether a trained row is put before the patches, whose output is classified.
        prepend_cls_token: bool = default("true").fixed(),
        /// Whether there is a layer, with `pooler_nonlinearity`, before the output layer of `vision_transformer`.
        use_encoder_pooler_layer: bool = default("false"),
        /// Width of all heads of queries together.
        attention_inner_dim: u64 = otherwise("`hidden_size`"),
        /// Width of the feed-forward network.
        filter_size: u64 = otherwise("4 times `hidden_size`"),
        /// Length of the longest sequence that a trained position embedding covers, in tokens.
        max_position_embeddings: u64 = default("1024"),
        /// Whether the model knows the positions of tokens.
        use_position_embedding: bool = default("true"),
        /// Older spelling of `use_position_embedding`. Has no effect in GPT-J's family, whose positions are rotary.
        use_position_embeddings: bool = otherwise("the value of `use_position_embedding`"),
        /// How the model knows the positions of tokens: by a trained embedding, by rotating queries and keys, or by
        /// decreasing attention scores in proportion to the distance (ALiBi). In `t5` and `transformer` by trained
        /// biases of attention scores (`relative`), or by sines and cosines that are added to the embedding (`fixed`).
        position_embedding_type: String = otherwise(
            "`learned`; `rotary` in `gptj`, `relative` in `t5`, `fixed` in `transformer`",
        ).one_of(&POSITION_EMBEDDINGS),
        /// Older spelling of `position_embedding_type` in `t5` and `transformer`.
        positional_embedding_type: String = alias_of("position_embedding_type"),
        /// Number of elements of each head that are rotated; even. A model with it but without
        /// `position_embedding_type` is a `gptj`, as in files for TensorFlow.
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
        dropout_rate: f64 = otherwise(
            "0.1; 0 for `gptj` without `position_embedding_type`, as in files for TensorFlow",
        ),
        /// Spelling of `dropout_rate` in GPT-J's files.
        residual_dropout_rate: f64 = alias_of("dropout_rate"),
        /// Dropout rate of the embedding.
        embedding_dropout_rate: f64 = default_from("model.dropout_rate"),
        /// Dropout rate of the attention weights.
        attention_dropout_rate: f64 = default_from("model.dropout_rate"),
        /// Number added to the variance in layer normalization.
        layer_norm_epsilon: f64 = default("1e-5"),
        /// Older spelling of `norm_type: rmsnorm`; false stands for `layernorm`.
        use_rms_norm: bool = otherwise("what `norm_type` says"),
        /// Older spelling of `norm_type: biasless-layernorm`.
        use_biasless_norm: bool = otherwise("what `norm_type` says"),
        /// Kind of normalization.
        norm_type: String = otherwise("`layernorm`; `rmsnorm` in `t5`").one_of(&NORMS),
        /// Whether blocks normalize their input instead of their output.
        norm_first: bool = otherwise("true, which decoders need; in families of `bert` false"),
        /// Whether blocks also normalize the outputs of attention and feed-forward network, before these are added.
        norm_first_sandwich: bool = default("false"),
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
        /// Older spelling of `scale_qk_dot_by_layer_idx`.
        scale_by_layer_index: bool = alias_of("scale_qk_dot_by_layer_idx"),
        /// Further factor of the products of queries and keys.
        attention_logits_alpha: f64 = default("1"),
        /// Attention module: each head has its own keys and values, or heads share them.
        attention_module: String = default("aiayn_attention").one_of(&ATTENTION_MODULES),
        /// Settings of `attention_module: multiquery_attention`.
        extra_attention_params: AttentionParams = otherwise("one group for all heads"),
        /// Number of tokens that a token attends to, itself included.
        attention_sliding_window_length: u64 = otherwise("all tokens before it"),
        /// Number of first tokens of a sample, its sinks, that a token attends to besides those of the window. With
        /// `data_transforms` of the input, these are tokens of their own.
        attention_sink_tokens: u64 = default("0"),
        /// Whether only every other block, beginning with the first, has this bound.
        sliding_window_every_other_decoder_layer: bool = default("false"),
        /// Bound c of the products s of queries and keys, which become c tanh(s / c). Not with ALiBi.
        attention_logit_softcapping: f64 = otherwise("no bound"),
        /// Whether the query, key and value projections have biases.
        use_projection_bias_in_attention: bool = default("true"),
        /// Whether the output projection of the attention has a bias.
        use_ffn_bias_in_attention: bool = default("true"),
        /// Activation function of the feed-forward network; `gelu` is exact, `gelu_new` and `gelu_fast` are its
        /// approximation by tanh. The names that end in `glu` multiply the function of one projection by a second.
        nonlinearity: String = default("gelu").one_of(&NONLINEARITIES),
        /// Activation function of the layer over the first token of an encoder, or over the first row of a
        /// `vision_transformer`, from which the sample is classified.
        pooler_nonlinearity: String = default("tanh").one_of(&LAYER_NONLINEARITIES),
        /// Activation function of an encoder's layer before the prediction of masked tokens.
        mlm_nonlinearity: String = default("gelu").one_of(&LAYER_NONLINEARITIES),
        /// Factor of the loss of masked tokens, whose sum is divided by the number of samples.
        mlm_loss_weight: f64 = default("1"),
        /// Whether an encoder does not predict if the second segment of a sample follows the first.
        disable_nsp: bool = default("false"),
        /// Whether the tokens of an encoder belong to two segments, which have an embedding.
        use_segment_embedding: bool = otherwise("true, unless `disable_nsp` is true"),
        /// Number of segments.
        num_segments: u64 = default("2"),
        /// Whether a norm follows the last block of an encoder; required with `norm_first`, and by it.
        use_final_layer_norm: bool = otherwise("the value of `norm_first`"),
        /// Whether embeddings of masked tokens are 0, and all others are scaled by the share that is left (ESM-2).
        token_dropout: bool = default("false"),
        /// Number of the token that masks others. In data without words, such as a text, it is one of the last four
        /// tokens of the vocabulary; in others it is that of `[MASK]`. Required if `token_dropout` is true.
        mask_token_id: u64 = otherwise("the token of `[MASK]`, or the fourth from the end of the vocabulary"),
        /// Number of classes of images, or of a classifier of tokens.
        num_classes: u64 = required_if(
            "`name` is `bert/token_classifier`; 10 for `fc_mnist`, 2 for `vision_transformer`",
        ),
        /// Number of classes of a classifier of samples.
        num_labels: u64 = default("2"),
        /// Spelling of `num_labels` in files for TensorFlow.
        num_cls_classes: u64 = alias_of("num_labels"),
        /// Kind of classification of samples: one class for each.
        problem_type: String = default("single_label_classification").one_of(&PROBLEM_TYPES),
        /// Dropout before the output layer of a classifier of samples.
        task_dropout: f64 = default_from("model.dropout_rate"),
        /// Spelling of `task_dropout` in files for TensorFlow.
        cls_dropout_rate: f64 = alias_of("task_dropout"),
        /// Dropout before the output layer of a classifier of tokens.
        encoder_output_dropout_rate: f64 = default("0"),
        /// Whether labels of padding count in the loss of a classifier of tokens.
        include_padding_in_loss: bool = default("false"),
        /// Vocabulary of the data, where newer files have it; see `vocab_file` of the inputs.
        vocab_file: String = otherwise("that of the inputs"),
        /// Names of classes of tokens, where newer files have it; see `label_vocab_file` of the inputs.
        label_vocab_file: String = otherwise("that of the inputs"),
        /// Whether the feed-forward layers have biases.
        use_ffn_bias: bool = default("true"),
        /// Whether there is dropout after the activation function.
        use_ff_layer1_dropout: bool = default("false").fixed(),
        /// Whether the output layer has a bias.
        use_bias_in_output: bool = default("false"),
        /// Factor of the logits, before the bias of the output layer. Not together with `mup_base_hidden_size`, from
        /// which it follows.
        output_logits_scale: f64 = default("1"),
        /// Bound c of the logits l, which become c tanh(l / c).
        final_logit_softcapping: f64 = otherwise("no bound"),
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
        scale_output_logits_by_d: bool = otherwise("true; false in `t5`"),
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
        /// tokens. Any other number than 1 implies `batch_size`. As in the zoo's TensorFlow programs, the loss of
        /// `QuestionAnsweringDataProcessor` is also multiplied by 2, and with `NerDataProcessor` and
        /// `include_padding_in_loss` the loss is a mean over all tokens instead.
        loss_weight: f64 = default("1"),
        /// Whether weights are sent and multiplied as 16-bit numbers; sums and master weights remain 32-bit.
        mixed_precision: bool = default("false"),
        /// Whether the 16-bit type is bfloat16; fp16 is replaced by bfloat16.
        use_bfloat16: bool = default("false"),
        /// Name of the 16-bit type; all types are replaced by bfloat16.
        fp16_type: String = otherwise("the type that `use_bfloat16` selects").one_of(&HALF_TYPES),
        /// Whether samples contain several sequences; see `use_vsl` of the inputs, which alone counts in encoders.
        use_vsl: bool = otherwise("that of the inputs"),
        /// Number of tokens in the vocabulary of the encoder of `t5` or `transformer`, without `extra_ids`.
        src_vocab_size: u64 = default("32128"),
        /// Number of tokens in the vocabulary of the decoder, without `extra_ids`.
        tgt_vocab_size: u64 = default_from("model.src_vocab_size"),
        /// Number of tokens that are added to both vocabularies, to stand for replaced spans.
        extra_ids: u64 = default("0"),
        /// Spelling of `hidden_size` in `t5` and `transformer`.
        d_model: u64 = alias_of("hidden_size"),
        /// Spelling of `filter_size` in `t5` and `transformer`.
        d_ff: u64 = alias_of("filter_size"),
        /// Width of a head in `t5` and `transformer`.
        d_kv: u64 = otherwise("`hidden_size` / `num_heads`"),
        /// Number of encoder blocks of `t5` and `transformer`.
        encoder_num_hidden_layers: u64 = required_if("`name` is `t5` or `transformer`"),
        /// Number of decoder blocks of `t5` and `transformer`.
        decoder_num_hidden_layers: u64 = default_from("model.encoder_num_hidden_layers"),
        /// Activation function of the encoder of `t5` and `transformer`; in families of `bert`, another spelling of
        /// `nonlinearity`.
        encoder_nonlinearity: String = default("relu").one_of(&NONLINEARITIES),
        /// Activation function of the decoder of `t5` and `transformer`.
        decoder_nonlinearity: String = default_from("model.encoder_nonlinearity").one_of(&NONLINEARITIES),
        /// Length of the longest sequence of the encoder of `t5` and `transformer`; nothing depends on it.
        src_max_position_embeddings: u64 = default_from("train_input.max_sequence_length"),
        /// Number of tokens that the decoder of `t5` and `transformer` reads, if the input does not say it.
        tgt_max_position_embeddings: u64 = default_from("train_input.tgt_max_sequence_length"),
        /// Whether encoder and decoder of `t5` and `transformer` share the token embedding.
        share_encoder_decoder_embedding: bool = default("true"),
        /// Older spelling of `norm_type: rmsnorm` in `t5` and `transformer`.
        use_t5_layer_norm: bool = otherwise("what `norm_type` says"),
        /// Older spelling of `position_embedding_type: relative` in `t5`.
        use_relative_attention_bias: bool = otherwise("what `position_embedding_type` says"),
        /// Number of buckets of distances with biases of their own, in `t5`; even.
        relative_attention_num_buckets: u64 = default("32"),
        /// Dropout of the activation of feed-forward networks of `t5` and `transformer`.
        relu_dropout_rate: f64 = default_from("model.dropout_rate"),
        /// Whether there is a second dropout of both embeddings of `t5` and `transformer`.
        use_pre_encoder_decoder_dropout: bool = default("false"),
        /// Whether blocks of `t5` and `transformer` normalize their input instead of their output.
        use_pre_encoder_decoder_layer_norm: bool = otherwise("true in `t5`, false in `transformer`"),
        /// Whether there is dropout after the last norm of encoder and decoder of `t5` and `transformer`.
        use_dropout_outside_residual_path: bool = otherwise("true in `t5`, false in `transformer`"),
        /// Whether initial values of `t5` and `transformer` are those of the Transformer (scaled Xavier) instead of
        /// T5's. Products of queries and keys are then divided by the square root of a head's width, unless
        /// `attention_type` says otherwise.
        use_transformer_initialization: bool = otherwise("false in `t5`, true in `transformer`"),
        /// Width `d_model` of the base model of muP, for `t5` without `use_transformer_initialization`. As in the
        /// public model zoo, with m = `d_model` / `mup_base_d_model`: the embeddings begin with the standard deviation
        /// 1 / sqrt(`d_model`) and are multiplied by `embeddings_alpha` sqrt(`d_model`); the logits are multiplied by
        /// `output_logits_alpha` / sqrt(m); the learning rates of embeddings and output layer are divided by sqrt(m),
        /// those of the first feed-forward layers by m. The layers that add to the residual stream begin with 2 L times
        /// their standard deviation, L being the number of blocks. The products of queries and keys are divided by m,
        /// and the learning rates of the attention by sqrt(m), unless `mup_base_d_kv` is given.
        mup_base_d_model: f64 = otherwise("the standard parametrization"),
        /// Width `d_ff` of the base model; required with `mup_base_d_model`. With m = `d_ff` / `mup_base_d_ff`, the
        /// learning rates of the second feed-forward layers are divided by m.
        mup_base_d_ff: f64 = otherwise("the standard parametrization"),
        /// Width `d_kv` of the base model, if its heads have another width. The learning rates of queries, keys and
        /// values are then divided by `d_model` / `mup_base_d_model`, those of the output of the attention by `d_kv` /
        /// `mup_base_d_kv`.
        mup_base_d_kv: f64 = otherwise("the width of the model's own heads"),
        /// Factor of the embeddings of `t5` and `transformer`.
        embeddings_alpha: f64 = default("1"),
        /// Factor of the products of queries and keys in the encoder of `t5` and `transformer`.
        encoder_attention_logits_alpha: f64 = default("1"),
        /// Factor of the products of queries and keys in the decoder of `t5` and `transformer`.
        decoder_attention_logits_alpha: f64 = default("1"),
        /// Whether products of queries and keys in the encoder of `t5` and `transformer` are divided by the width of a
        /// head instead of its square root. Has no effect if they are not divided at all.
        scale_encoder_qk_dot_by_d: bool = otherwise("true with muP, else false"),
        /// The same for the decoder.
        scale_decoder_qk_dot_by_d: bool = otherwise("true with muP, else false"),
        /// Factor of the loss of `t5` and `transformer` with `mlm_loss_scaling: batch_size`.
        lm_loss_weight: f64 = default("1"),
        /// Divisor of the summed loss of `t5` and `transformer`: the number of samples, or that of labelled tokens.
        mlm_loss_scaling: String = default("batch_size").one_of(&SEQ2SEQ_LOSS_SCALINGS),
        /// Whether evaluation reports perplexity and accuracy in addition to the loss.
        compute_eval_metrics: bool = default("true"),
    }
    ignored {
        /// Whether images are 16-bit numbers; Millrace sends them as 32-bit numbers.
        to_float16: bool,
        /// Kernels for GPUs in an older release.
        enable_gpu_optimizations: bool,
        /// Whether patches are projected by a convolution; it is the same product.
        use_conv_patchified_embedding: bool,
        /// Whether the angles of rotary positions are constants of the compiled program on the real machine.
        fold_rope_consts: bool,
        /// Trade-off between precision and speed on the real machine.
        precision_opt_level: u64,
        /// Whether the softmax is computed in f32; Millrace always does so.
        attention_softmax_fp32: bool,
        /// Older spelling of `attention_softmax_fp32`.
        softmax_dtype_fp32: bool,
        /// Metric of an older release: bits for each unit of a data set.
        bits_per_x_dataset: String,
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
        /// Tensors of variable length in an older release.
        enable_vts: bool,
        /// Cache of generation in an older release; generation always has one.
        use_cache: bool,
        /// Seed of dropout in an older release; `runconfig.seed` determines it.
        dropout_seed: u64,
        /// Whether several systems may work together; on Millrace they always may.
        allow_multireplica: bool,
        /// Padding token; the mask of attention says which tokens are padding.
        pad_token_id: u64,
        /// Whether padding has no position embedding; nothing depends on it.
        mask_padding_in_positional_embed: bool,
        /// Whether the output layer of a summarization has a bias; Millrace always has one.
        use_cls_bias: bool,
    }
    unsupported {
        "pretrain_params_path" => "copy the keys of the section model of that file: only params in a file can name it",
        "num_relative_attention_buckets" => "use position_embedding_type: learned",
        "fixed_sparse_attention" => "leave it out for dense attention",
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
        "backbone_only" => "leave it out: a model has its output layer",
        "classifier_dropout" => "use task_dropout",
        "freeze_pretrained_model" => "leave it out to train all weights",
        "num_regression_values" => "leave it out: a classifier predicts classes, not numbers",
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
