//! Resolves `optimizer`: what all optimizers have. The keys of a single one are resolved in its file.

use super::check::ResolveContext;
use super::momentum;
use super::mup::{self, WidthRatios};
use super::schedule;
use crate::document::{OneOrMany, OptimizerGroupParams, OptimizerParams};
use crate::job::{ModelSpec, OptimizerGroup, OptimizerSpec, Schedule};
use crate::optimizers::{self, OptimizerKind, Sgd};

/// Resolves the section, for a model with these ratios of muP.
pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    section: Option<&OptimizerParams>,
    ratios: Option<WidthRatios>,
    model: &ModelSpec,
) -> OptimizerSpec {
    let Some(p) = section else {
        check.report_missing("optimizer", "give at least optimizer_type and learning_rate");
        return OptimizerSpec {
            kind: Sgd { momentum: 0.0, dampening: 0.0, nesterov: false }.into(),
            weight_decay: 0.0,
            max_gradient_norm: None,
            schedule: Schedule::constant(0.0),
            momentum_schedule: None,
            maximize: false,
            learning_rate_scales: Vec::new(),
            groups: Vec::new(),
        };
    };
    note_loss_scale(check, p);
    let kind = optimizers::resolve(check, p);
    let decay = check.either_spelling(
        "optimizer.weight_decay",
        p.weight_decay,
        "optimizer.weight_decay_rate",
        p.weight_decay_rate,
    );
    let relative_step = optimizers::adafactor::relative_step(check, p);
    let no_resets = p.disable_lr_steps_reset.unwrap_or(false);
    OptimizerSpec {
        kind,
        weight_decay: check.non_negative("optimizer.weight_decay", decay, 0.0),
        max_gradient_norm: max_gradient_norm(check, p),
        momentum_schedule: momentum::resolve(check, "optimizer.momentum_schedule", p.momentum_schedule.as_ref()),
        maximize: p.maximize.unwrap_or(false),
        schedule: relative_step.unwrap_or_else(|| schedule::resolve(check, p.learning_rate.as_ref(), no_resets)),
        learning_rate_scales: mup::learning_rate_scales(check, p.adjust_learning_rate.as_ref(), ratios, model),
        groups: p
            .params
            .iter()
            .flatten()
            .enumerate()
            .map(|(index, group)| resolve_group(check, index, group, &kind))
            .collect(),
    }
}

/// Resolves the group at index `index`.
fn resolve_group(
    check: &mut ResolveContext<'_>,
    index: usize,
    group: &OptimizerGroupParams,
    kind: &OptimizerKind,
) -> OptimizerGroup {
    let key = |name: &str| format!("optimizer.params[{index}].{name}");
    let tensors: Vec<String> = group.params.iter().flat_map(OneOrMany::as_slice).cloned().collect();
    if tensors.is_empty() {
        check.report_missing(&key("params"), "name the tensors of the group");
    }
    let momentum_key = key("momentum_schedule");
    if group.momentum_schedule.is_some() && !kind.has_momentum() {
        let message = format!("has no meaning for {}", kind.name());
        check.report_invalid(&momentum_key, message, "leave it out");
    }
    let momentum_schedule = momentum::resolve(check, &momentum_key, group.momentum_schedule.as_ref());
    let mut number = |name: &str, value: Option<f64>| value.map(|_| check.non_negative(&key(name), value, 0.0));
    OptimizerGroup {
        tensors,
        weight_decay: number("weight_decay", group.weight_decay),
        learning_rate_factor: number("learning_rate_factor", group.learning_rate_factor),
        momentum_schedule,
    }
}

/// Returns the norm to clip to; `None` without clipping, for which the zoo also writes 0.
fn max_gradient_norm(check: &mut ResolveContext<'_>, p: &OptimizerParams) -> Option<f64> {
    let value = p.max_gradient_value.filter(|value| *value != 0.0);
    match (value, p.max_gradient_norm) {
        (Some(_), Some(_)) => check.report_invalid(
            "optimizer.max_gradient_value",
            "excludes max_gradient_norm, which is given too",
            "keep max_gradient_norm",
        ),
        (Some(value), None) => {
            check.unsupported("optimizer.max_gradient_value", &value.to_string(), "use max_gradient_norm");
        }
        (None, _) => {}
    }
    let norm = check.non_negative("optimizer.max_gradient_norm", p.max_gradient_norm, 0.0);
    (norm > 0.0).then_some(norm)
}

fn note_loss_scale(check: &mut ResolveContext<'_>, p: &OptimizerParams) {
    let keys: Vec<&str> = [
        ("optimizer.loss_scaling_factor", p.loss_scaling_factor.is_some()),
        ("optimizer.initial_loss_scale", p.initial_loss_scale.is_some()),
        ("optimizer.steps_per_increase", p.steps_per_increase.is_some()),
        ("optimizer.min_loss_scale", p.min_loss_scale.is_some()),
        ("optimizer.max_loss_scale", p.max_loss_scale.is_some()),
    ]
    .into_iter()
    .filter_map(|(key, is_given)| is_given.then_some(key))
    .collect();
    if !keys.is_empty() {
        check.note(format!(
            "these keys have no effect, because neither bf16 nor f32 needs a loss scale: {}",
            keys.join(", ")
        ));
    }
}
