//! `optimizer` and the schedules of its learning rate.

use super::LearningRateSetting;
use crate::yaml::section;

section! {
    /// How gradients change the weights.
    pub struct OptimizerParams {
        /// `AdamW`, `Adam` or `SGD`.
        optimizer_type: String,
        /// The learning rate: a number, one schedule, or a list of schedules that follow each other. A schedule is a
        /// mapping: `scheduler` is `Linear`, `CosineDecay` or `Constant`; the first two go from `initial_learning_rate` to
        /// `end_learning_rate` in `total_iters` steps, the last holds `learning_rate`.
        learning_rate: LearningRateSetting,
        /// Adam's two decay rates; [0.9, 0.999] by default.
        betas: Vec<f64>,
        /// Older spelling of the first of `betas`.
        beta1: f64,
        /// Older spelling of the second of `betas`.
        beta2: f64,
        /// Added to Adam's denominator; 1e-6 by default.
        eps: f64,
        /// Weight decay, not applied to biases and norms; 0 by default.
        weight_decay: f64,
        /// Older spelling of `weight_decay`.
        weight_decay_rate: f64,
        /// Whether Adam's moments are corrected for starting at zero; true by default.
        correct_bias: bool,
        /// SGD's momentum; 0 by default.
        momentum: f64,
        /// Nesterov's momentum; must be false for now.
        nesterov: bool,
        /// Older spelling of `nesterov`; must be false for now.
        use_nesterov: bool,
        /// Adam with the largest second moment so far; must be false for now.
        amsgrad: bool,
        /// Whether the loss is maximised; must be false for now.
        maximize: bool,
        /// Largest global norm of the gradient; larger ones are scaled down. No clipping by default.
        max_gradient_norm: f64,
        /// Clipping of each value; must be 0 or absent for now.
        max_gradient_value: f64,
        /// Whether schedules in a list keep counting from step 0; must be false for now.
        disable_lr_steps_reset: bool,
        /// Loss scale of fp16: `dynamic` or a number; ignored because bfloat16 needs none.
        loss_scaling_factor: serde_json::Value,
        /// First loss scale of fp16; ignored because bfloat16 needs none.
        initial_loss_scale: f64,
        /// Steps between two increases of the loss scale of fp16; ignored because bfloat16 needs none.
        steps_per_increase: u64,
        /// Smallest loss scale of fp16; ignored because bfloat16 needs none.
        min_loss_scale: f64,
        /// Largest loss scale of fp16; ignored because bfloat16 needs none.
        max_loss_scale: f64,
    }
    without_effect {
        /// Summaries of norms by the real machine; the gradient's norm is always recorded.
        log_summaries: bool,
        /// Summaries of an older release.
        ws_summary: bool,
        /// Whether the loss scale is logged; there is none.
        log_loss_scale: bool,
        /// Which optimizer step the real machine uses.
        use_cstorch_optimizer_step: bool,
    }
    not_yet {
        "adjust_learning_rate" => "leave it out; all parameters share one learning rate",
        "lr_adjustment_groups" => "leave it out; all parameters share one learning rate",
        "params" => "leave it out; all parameters share one learning rate",
        "grad_accum_steps" => "set train_input.micro_batch_size instead",
    }
}

section! {
    /// One schedule of the learning rate.
    pub struct ScheduleParams {
        /// `Linear`, `CosineDecay` or `Constant`.
        scheduler: String,
        /// The rate at the schedule's first step.
        initial_learning_rate: f64,
        /// The rate at its end, held from then on; 0 by default.
        end_learning_rate: f64,
        /// The rate at its end as a share of `initial_learning_rate`; the larger of the two ends counts.
        alpha: f64,
        /// Steps from the first rate to the last, and how long the schedule lasts in a list.
        total_iters: u64,
        /// Older spelling of how long the schedule lasts in a list.
        steps: u64,
        /// Older spelling of the steps from the first rate to the last.
        decay_steps: u64,
        /// The rate of `Constant`.
        learning_rate: f64,
        /// Older spelling of the rate of `Constant`.
        val: f64,
        /// Whether the schedule starts over at its end; must be false for now.
        cycle: bool,
        /// Exponent of a polynomial schedule; must be 1 for now.
        power: f64,
    }
    without_effect {}
    not_yet {
        "decay_rate" => "use Linear or CosineDecay",
        "staircase" => "use Linear or CosineDecay",
        "milestones" => "write a list of schedules, each with its total_iters",
        "learning_rates" => "write a list of Constant schedules, each with its total_iters",
        "values" => "write a list of Constant schedules, each with its total_iters",
        "boundaries" => "write a list of Constant schedules, each with its total_iters",
        "gamma" => "use Linear or CosineDecay",
        "warmup_steps" => "write a list: Linear with total_iters for the warm-up, then the schedule",
        "param_group_tags" => "leave it out; all parameters share one learning rate",
    }
}
