//! The schedules of the learning rate in the section `optimizer` of the params.
//!
//! Lists the keys of all schedules; `resolve/schedule` knows which schedule reads which. `section!` generates the type,
//! the schema and the reader.

#![allow(non_snake_case, reason = "keys are named as in the public model zoo and in PyTorch")]

use serde::{Deserialize, Serialize};

use crate::keys::facts::{alias_of, default, default_from, no_effect, otherwise, required, required_if};
use crate::keywords::{ANNEAL_STRATEGIES, CYCLE_MODES, SCHEDULERS};
use crate::yaml::{FromNode, TreeReader, YamlNode, YamlValue, section};

section! {
    /// One schedule of the learning rate.
    pub struct ScheduleParams {
        /// Shape of the schedule. Each name may also end with `LR`, as in PyTorch.
        scheduler: String = required().one_of(&SCHEDULERS),
        /// Rate at the first step of the schedule. Required by every schedule but `Constant`, `InverseSquareRootDecay`,
        /// `PiecewiseConstant`, `Cyclic`, `Sequential` and `Chained`.
        initial_learning_rate: f64 = required_if("the schedule begins with it"),
        /// Rate at the end of `Linear`, `Polynomial` or `CosineDecay`, which holds from then on.
        end_learning_rate: f64 = default("0"),
        /// Rate at the end as a share of `initial_learning_rate`; the larger of the two ends is used.
        alpha: f64 = default("0"),
        /// Number of steps from the first rate to the last, or in which an exponential or inverse decay multiplies or
        /// divides the rate once. In a list it is also the length of the schedule.
        total_iters: u64 = required_if("the schedule decays over it, or another schedule follows"),
        /// Older spelling of the number of steps of the schedule in a list.
        steps: u64 = alias_of("total_iters"),
        /// Older spelling of the number of steps from the first rate to the last.
        decay_steps: u64 = alias_of("total_iters"),
        /// Rate of `Constant`.
        learning_rate: f64 = required_if("`scheduler` is `Constant`"),
        /// Older spelling of `learning_rate`.
        val: f64 = alias_of("learning_rate"),
        /// Exponent of `Polynomial`.
        power: f64 = default("1"),
        /// Whether `Linear` or `Polynomial` starts again at its end. As in the public model zoo, it does not: the last
        /// rate holds in both cases.
        cycle: bool = no_effect(),
        /// Factor of `Exponential` in `total_iters` steps; `InverseExponentialTimeDecay` divides by one plus its
        /// product with the elapsed share.
        decay_rate: f64 = required_if("`scheduler` is `Exponential` or `InverseExponentialTimeDecay`"),
        /// Whether `Exponential` or `InverseExponentialTimeDecay` changes the rate only once in `total_iters` steps.
        staircase: bool = default("false"),
        /// Exponent of the step in `InverseExponentialTimeDecay`.
        step_exponent: f64 = default("1"),
        /// Factor of `InverseSquareRootDecay`.
        scale: f64 = default("1"),
        /// Number of steps for which `InverseSquareRootDecay` keeps its first rate.
        warmup_steps: u64 = default("1"),
        /// Steps at which `PiecewiseConstant` or `MultiStep` changes the rate, or at which the next schedule of
        /// `Sequential` begins, ascending.
        milestones: Vec<u64> = otherwise("in `Sequential`, the ends of its schedules; elsewhere the key is required"),
        /// Rates of `PiecewiseConstant`, one more than `milestones`.
        learning_rates: Vec<f64> = required_if("`scheduler` is `PiecewiseConstant`"),
        /// Factor of `Step` and `MultiStep` at each change, or of the amplitude of `Cyclic` in mode `exp_range` at each
        /// step.
        gamma: f64 = otherwise("1 for `Cyclic`; elsewhere the key is required"),
        /// Number of steps between two changes of `Step`.
        step_size: u64 = required_if("`scheduler` is `Step`"),
        /// Factor of `Multiplicative` at each step.
        coefficient: f64 = required_if("`scheduler` is `Multiplicative`"),
        /// Number of steps from the first rate of `CosineAnnealing` to `eta_min`; the rate then rises again.
        T_max: u64 = required_if("`scheduler` is `CosineAnnealing`"),
        /// Number of steps until `CosineAnnealingWarmRestarts` first restarts.
        T_0: u64 = required_if("`scheduler` is `CosineAnnealingWarmRestarts`"),
        /// Factor of the number of steps between two restarts.
        T_mult: u64 = default("1"),
        /// Smallest rate of `CosineAnnealing` and `CosineAnnealingWarmRestarts`.
        eta_min: f64 = default("0"),
        /// Smallest rate of `Cyclic`, with which it begins.
        base_lr: f64 = required_if("`scheduler` is `Cyclic`"),
        /// Largest rate of `Cyclic` or `OneCycle`.
        max_lr: f64 = required_if("`scheduler` is `Cyclic` or `OneCycle`"),
        /// Number of steps in which `Cyclic` rises.
        step_size_up: u64 = default("2000"),
        /// Number of steps in which `Cyclic` falls.
        step_size_down: u64 = default_from("optimizer.learning_rate.step_size_up"),
        /// Amplitude of the cycles of `Cyclic`: constant, halved with each cycle, or multiplied by `gamma` at each
        /// step.
        mode: String = default("triangular").one_of(&CYCLE_MODES),
        /// What the amplitude of `Cyclic` is a function of: `mode` determines it.
        scale_mode: String = no_effect(),
        /// Number of steps of `OneCycle`, whose last rate holds from then on.
        total_steps: u64 = default("1000"),
        /// Share of the steps in which `OneCycle` rises.
        pct_start: f64 = default("0.3"),
        /// Divisor of the first rate of `OneCycle` that gives its last rate.
        final_div_factor: f64 = default("1e4"),
        /// Whether `OneCycle` falls to its first rate in as many steps as it rises, and then to its last rate.
        three_phase: bool = default("false"),
        /// Shape of the rise and fall of `OneCycle`.
        anneal_strategy: String = default("cos").one_of(&ANNEAL_STRATEGIES),
        /// Schedules of `Sequential`, which follow each other, or of `Chained`, whose relative rates are multiplied.
        schedulers: NestedSchedules = required_if("`scheduler` is `Sequential` or `Chained`"),
    }
    ignored {}
    unsupported {
        "values" => "write PiecewiseConstant with milestones and learning_rates",
        "boundaries" => "write PiecewiseConstant with milestones and learning_rates",
        "param_group_tags" => "leave it out; all parameters share one learning rate",
    }
}

/// Schedules within a schedule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NestedSchedules(pub Vec<ScheduleParams>);

impl FromNode for NestedSchedules {
    // The reference would be infinite if this were the section of `ScheduleParams`.
    const TYPE: &'static str = "a list of schedules";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::List(items) => reader.items(items).map(Self),
            _ => {
                reader.wrong_type(node, Self::TYPE);
                None
            }
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for NestedSchedules {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NestedSchedules".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// Returns the schema of a list of mappings: an API server accepts no recursive schema.
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "array", "items": {"type": "object"}})
    }
}
