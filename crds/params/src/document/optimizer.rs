//! The section `optimizer` of the params.
//!
//! Lists the keys that Millrace uses, keys that only configure the real machine (`ignored`), and keys that are rejected
//! with a remedy (`unsupported`). `section!` generates the type, the schema and the reader.

use super::{EpsSetting, LearningRateSetting, MomentumScheduleParams, OneOrMany};
use crate::keys::SectionReference;
use crate::keys::facts::{alias_of, default, no_effect, otherwise, required, required_if};
use crate::optimizers::OPTIMIZERS;
use crate::yaml::{FromNode, TreeReader, YamlNode, list_of, section};

section! {
    /// The algorithm by which gradients change the weights.
    pub struct OptimizerParams {
        /// Algorithm.
        optimizer_type: String = required_if("`beta1` is omitted; with it, the default is `Adam`").one_of(&OPTIMIZERS),
        /// Learning rate: a number, one schedule, or a list of schedules that follow each other.
        learning_rate: LearningRateSetting = required_if("`relative_step` is false"),
        /// Decay rates of the two moments of Adam, AdamW, NAdam, RAdam and LAMB; for Adamax, of the moment and of the
        /// largest gradient; for Lion, of direction and momentum.
        betas: Vec<f64> = otherwise("[0.9, 0.999]; for Lion [0.9, 0.99]"),
        /// Older spelling of the first number of `betas`, also written `beta_1`; for Adafactor, the decay rate of a
        /// mean of updates, which is not kept if `beta1` is omitted.
        beta1: f64 = alias_of("betas"),
        /// Older spelling of the second number of `betas`, also written `beta_2`.
        beta2: f64 = alias_of("betas"),
        /// Number added to the denominator of the update. For Adafactor two numbers: one added to the squared gradient,
        /// and the least root mean square of a tensor for `scale_parameter`.
        eps: EpsSetting = otherwise(
            "1e-6; for RMSprop, NAdam, RAdam and Adamax 1e-8; for Adagrad 1e-10; for Adafactor [1e-30, 1e-3]"
        ),
        /// Older spelling of `eps`.
        epsilon: f64 = alias_of("eps"),
        /// Weight decay, which is not applied to biases and norms.
        weight_decay: f64 = default("0"),
        /// Older spelling of `weight_decay`.
        weight_decay_rate: f64 = alias_of("weight_decay"),
        /// Whether Adam's moments are corrected for starting at zero.
        correct_bias: bool = default("true"),
        /// Older spelling of `correct_bias`.
        use_bias_correction: bool = alias_of("correct_bias"),
        /// Whether Adam and AdamW add `eps` before the second moment is corrected, as TensorFlow and Keras do, and as
        /// the "epsilon hat" of the paper about Adam: it is then divided by the root of 1 - beta2^step.
        epsilon_hat: bool = default("false"),
        /// Momentum of SGD and RMSprop. Together with a `momentum_schedule`, it must be more than 0.
        momentum: f64 = default("0"),
        /// Momentum of each step, in place of `momentum` of SGD and RMSprop, or of the first of `betas`.
        momentum_schedule: MomentumScheduleParams = otherwise("the same momentum at every step"),
        /// Share of the gradient that SGD leaves out of its momentum, except in the first step; at most 1.
        dampening: f64 = default("0"),
        /// Decay rate of RMSprop's mean of squares.
        alpha: f64 = default("0.99"),
        /// Whether RMSprop subtracts the mean of the gradient from the mean of squares.
        centered: bool = default("false"),
        /// Decay of Adagrad's learning rate, which is divided by 1 + (step - 1) lr_decay.
        lr_decay: f64 = default("0"),
        /// First value of Adagrad's sum of squares.
        initial_accumulator_value: f64 = default("0"),
        /// Rate at which NAdam's momentum approaches the first of `betas`.
        momentum_decay: f64 = default("0.004"),
        /// Whether NAdam and RAdam decay weights as AdamW does, and not as a part of the gradient.
        decoupled_weight_decay: bool = default("false"),
        /// Decay rate of Adadelta's means of squares.
        rho: f64 = default("0.9"),
        /// Whether every trust ratio of LAMB is 1, which is AdamW.
        adam: bool = default("false"),
        /// Maximum root mean square of Adafactor's update of a tensor, to which larger ones are scaled down.
        clip_threshold: f64 = default("1"),
        /// Exponent of Adafactor's second moment, whose decay rate at a step is 1 - step^decay_rate; at most 0.
        decay_rate: f64 = default("-0.8"),
        /// Whether Adafactor multiplies the learning rate by the root mean square of the tensor.
        scale_parameter: bool = default("true"),
        /// Whether Adafactor's learning rate is 1/sqrt(step), but at most 0.01. Excludes `learning_rate`.
        relative_step: bool = default("false"),
        /// Whether the rate of `relative_step` is at most 1e-6 step, instead of at most 0.01.
        warmup_init: bool = default("false"),
        /// Whether SGD uses Nesterov's momentum, which needs a `momentum`, and no `dampening`.
        nesterov: bool = default("false"),
        /// Older spelling of `nesterov`.
        use_nesterov: bool = alias_of("nesterov"),
        /// Whether Adam and AdamW divide by the largest second moment so far.
        amsgrad: bool = default("false"),
        /// Whether the loss is maximized.
        maximize: bool = default("false"),
        /// Maximum global norm of the gradient, to which larger gradients are scaled down; 0 for no clipping.
        max_gradient_norm: f64 = default("0"),
        /// Maximum of each value of the gradient; 0 for no clipping.
        max_gradient_value: f64 = default("0").fixed(),
        /// Whether the schedules of a list all count their steps from step 0 of the run, instead of each from the step
        /// at which it begins.
        disable_lr_steps_reset: bool = default("false"),
        /// Factors of the learning rate of some weights. They replace those that follow from muP.
        adjust_learning_rate: LearningRateScaleParams = otherwise("1 for all weights; with muP, those of muP"),
        /// Groups of weights with settings of their own, as the parameter groups of PyTorch's optimizers. A weight in
        /// two groups has the settings of the first.
        params: Vec<OptimizerGroupParams> = otherwise("the same settings for all weights"),
        /// Loss scale of fp16, `dynamic` or a number; bfloat16 needs none.
        loss_scaling_factor: serde_json::Value = no_effect(),
        /// First loss scale of fp16; bfloat16 needs none.
        initial_loss_scale: f64 = no_effect(),
        /// Number of steps between two increases of the loss scale of fp16; bfloat16 needs none.
        steps_per_increase: u64 = no_effect(),
        /// Smallest loss scale of fp16; bfloat16 needs none.
        min_loss_scale: f64 = no_effect(),
        /// Largest loss scale of fp16; bfloat16 needs none.
        max_loss_scale: f64 = no_effect(),
    }
    ignored {
        /// Whether the real machine writes summaries of norms; Millrace always records the norm of the gradient.
        log_summaries: bool,
        /// Summaries of an older release.
        ws_summary: bool,
        /// Whether the loss scale is logged; Millrace uses none.
        log_loss_scale: bool,
        /// Whether the real machine uses its own optimizer step.
        use_cstorch_optimizer_step: bool,
    }
    unsupported {
        "lr_adjustment_groups" => "use params, or adjust_learning_rate",
        "grad_accum_steps" => "set train_input.micro_batch_size instead",
    }
}

section! {
    /// A group of weights with settings of its own.
    pub struct OptimizerGroupParams {
        /// Names of tensors, in which `*` stands for any text. Each must match a tensor of the model.
        params: OneOrMany = required(),
        /// Weight decay of the group, biases and norms included.
        weight_decay: f64 = otherwise("that of the optimizer, which is not applied to biases and norms"),
        /// Factor of the learning rate.
        learning_rate_factor: f64 = otherwise("that of `adjust_learning_rate`"),
        /// Momentum of each step.
        momentum_schedule: MomentumScheduleParams = otherwise("that of the optimizer"),
    }
    ignored {
        /// Name of the group.
        tag: String,
    }
    unsupported {
        "lr" => "use learning_rate_factor",
    }
}

impl FromNode for Vec<OptimizerGroupParams> {
    const TYPE: &'static str = "a list of mappings with params";
    const SECTION: Option<&'static SectionReference> = Some(OptimizerGroupParams::REFERENCE);

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        list_of(node, reader, Self::TYPE)
    }
}

section! {
    /// Factors of the learning rate of groups of weights. A weight in two groups has the first factor that is not 1.
    pub struct LearningRateScaleParams {
        /// Factor of the token and position embeddings, and of the gain of their norm.
        embedding: f64 = otherwise("1; for `t5` with muP sqrt(`mup_base_d_model` / `d_model`)"),
        /// Factor of all weights of the blocks but those of norms.
        decoder_kernel: f64 = default("1"),
        /// Factor of the weights of queries, keys and values.
        decoder_qkv_projection: f64 = otherwise("1; for `t5` with muP sqrt(`mup_base_d_model` / `d_model`), or the \
                                                ratio itself if `mup_base_d_kv` is given"),
        /// Factor of the weights of the output of the attention.
        decoder_output_projection: f64 = otherwise("1; for `t5` with muP sqrt(`mup_base_d_model` / `d_model`), or \
                                                   `mup_base_d_kv` / `d_kv`"),
        /// Factor of the weights of the attention.
        decoder_attention: f64 = otherwise("1; with muP `mup_base_hidden_size` / `hidden_size`"),
        /// Factor of the weights of the first feed-forward layer, and of the layer that it is multiplied by.
        decoder_input_ffn: f64 = otherwise("1; with muP `mup_base_hidden_size` / `hidden_size`"),
        /// Factor of the weights of the second feed-forward layer.
        decoder_output_ffn: f64 = otherwise("1; with muP `mup_base_filter_size` / `filter_size`"),
        /// Factor of the weights of the attention of an encoder.
        encoder_attention: f64 = otherwise("that of `decoder_attention`"),
        /// Factor of the weights of queries, keys and values of the encoder of `t5`.
        encoder_qkv_projection: f64 = otherwise("as `decoder_qkv_projection`"),
        /// Factor of the weights of the output of its attention.
        encoder_output_projection: f64 = otherwise("as `decoder_output_projection`"),
        /// Factor of the weights of the first feed-forward layer of an encoder.
        encoder_input_ffn: f64 = otherwise("as `decoder_input_ffn`"),
        /// Factor of the weights of the second feed-forward layer of an encoder.
        encoder_output_ffn: f64 = otherwise("as `decoder_output_ffn`"),
        /// Factor of the weights of the pooler of an encoder.
        pooler: f64 = default("1"),
        /// Factor of the weights of the output layer, if it has its own.
        lm_head: f64 = otherwise("1; for `t5` with muP sqrt(`mup_base_d_model` / `d_model`)"),
    }
    ignored {}
    unsupported {}
}
