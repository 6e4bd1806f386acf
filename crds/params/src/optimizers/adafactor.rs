//! Adafactor, and the learning rate that its `relative_step` stands for.

use serde::{Deserialize, Serialize};

use super::FromParams;
use crate::document::{EpsSetting, OptimizerParams};
use crate::job::{Schedule, ScheduleSegment, ScheduleSegmentKind};
use crate::resolve::ResolveContext;

/// Step from which the relative step is 1/sqrt(step).
const RELATIVE_STEP_WARMUP_STEPS: u64 = 10_000;

/// Adafactor, whose second moment of a matrix is a product of means over its rows and columns; decoupled weight decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Adafactor {
    /// Terms added to the squared gradient, and least root mean square of a tensor for `scale_parameter`.
    pub eps: [f64; 2],
    /// Maximum root mean square of an update, to which larger ones are scaled down.
    pub clip_threshold: f64,
    /// Exponent of the step in the decay rate of the second moment, 1 - step^decay_rate; at most 0.
    pub decay_rate: f64,
    /// Decay rate of the mean of updates; `None` without such a mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f64>,
    /// Whether the learning rate is multiplied by the root mean square of the tensor.
    pub scale_parameter: bool,
}

impl FromParams for Adafactor {
    const KEYS: &'static [&'static str] =
        &["eps", "beta1", "clip_threshold", "decay_rate", "scale_parameter", "relative_step", "warmup_init"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        let decay_rate = params.decay_rate.unwrap_or(-0.8);
        if !decay_rate.is_finite() || decay_rate > 0.0 {
            let message = format!("is {decay_rate}, which is out of range");
            check.report_invalid("optimizer.decay_rate", message, "give a number of at most 0");
        }
        Self {
            eps: eps(check, params),
            clip_threshold: check.positive("optimizer.clip_threshold", params.clip_threshold, 1.0),
            decay_rate,
            beta1: params.beta1.map(|beta1| check.probability("optimizer.beta1", Some(beta1), 0.0)),
            scale_parameter: params.scale_parameter.unwrap_or(true),
        }
    }
}

/// Reads `eps`: both terms, or the first one.
fn eps(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> [f64; 2] {
    const KEY: &str = "optimizer.eps";
    let default = [1e-30, 1e-3];
    match &params.eps {
        None => default,
        Some(EpsSetting::Number(first)) => [check.positive(KEY, Some(*first), default[0]), default[1]],
        Some(EpsSetting::Terms(terms)) => {
            let [first, second] = terms.as_slice() else {
                let message = format!("has {} numbers instead of 2", terms.len());
                check.report_invalid(KEY, message, "give two numbers, as in [1e-30, 1e-3]");
                return default;
            };
            // A row without gradients would otherwise divide by zero.
            [check.positive(KEY, Some(*first), default[0]), check.non_negative(KEY, Some(*second), default[1])]
        }
    }
}

/// Returns the learning rate of `relative_step`: 1/sqrt(step), at most 0.01, or with `warmup_init` at most 1e-6 step.
/// `None` if the params do not ask for it. Steps count from 1.
pub(crate) fn relative_step(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Option<Schedule> {
    let relative = params.relative_step.unwrap_or(false);
    let warms_up = params.warmup_init.unwrap_or(false);
    if warms_up && !relative {
        let hint = "set relative_step too, or begin learning_rate with a Linear schedule";
        check.report_invalid("optimizer.warmup_init", "is true without relative_step", hint);
    }
    if !relative {
        return None;
    }
    if params.learning_rate.is_some() {
        let message = "is true, and learning_rate is given too";
        check.report_invalid("optimizer.relative_step", message, "keep one of the two");
    }
    let peak = 1.0 / (RELATIVE_STEP_WARMUP_STEPS as f64).sqrt();
    let root = ScheduleSegmentKind::InverseSquareRootDecay {
        initial: 1.0,
        scale: 1.0,
        warmup_steps: RELATIVE_STEP_WARMUP_STEPS,
    };
    let first = ScheduleSegment { offset_steps: 1, ..ScheduleSegment::endless(root) };
    if !warms_up {
        return Some(Schedule { segments: vec![first] });
    }
    let line = ScheduleSegmentKind::Linear { initial: 0.0, end: peak, total_iters: RELATIVE_STEP_WARMUP_STEPS };
    let steps = RELATIVE_STEP_WARMUP_STEPS - 1;
    let warmup = ScheduleSegment { steps, offset_steps: 1, piece: line };
    Some(Schedule { segments: vec![warmup, ScheduleSegment { offset_steps: steps + 1, ..first }] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::LineNumbers;

    #[test]
    fn relative_step_is_that_of_transformers() {
        for warmup_init in [false, true] {
            let params = OptimizerParams {
                relative_step: Some(true),
                warmup_init: Some(warmup_init),
                ..OptimizerParams::default()
            };
            let lines = LineNumbers::default();
            let schedule = relative_step(&mut ResolveContext::new(&lines), &params).unwrap();
            for step in [1, 2, 9_998, 9_999, 10_000, 10_001, 12_345, 1_000_000] {
                let expected = if warmup_init { 1e-6 * step as f64 } else { 1e-2 };
                let expected = expected.min(1.0 / (step as f64).sqrt());
                let rate = schedule.at(step - 1);
                assert!((rate / expected - 1.0).abs() < 1e-12, "step {step}: {rate} instead of {expected}");
            }
        }
    }
}
