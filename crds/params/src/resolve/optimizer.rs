//! Resolves `optimizer`.

use super::check::ResolveContext;
use super::schedule;
use crate::document::OptimizerParams;
use crate::job::{OptimizerKind, OptimizerSpec, Schedule};
use crate::keywords::{OPTIMIZERS, OptimizerName};

pub(super) fn resolve(check: &mut ResolveContext<'_>, given: Option<&OptimizerParams>) -> OptimizerSpec {
    let Some(p) = given else {
        check.report_missing("optimizer", "give at least optimizer_type and learning_rate");
        return OptimizerSpec {
            kind: OptimizerKind::Sgd { momentum: 0.0 },
            weight_decay: 0.0,
            max_gradient_norm: None,
            schedule: Schedule::constant(0.0),
        };
    };
    check.require_value("optimizer.nesterov", p.nesterov, false);
    check.require_value("optimizer.use_nesterov", p.use_nesterov, false);
    check.require_value("optimizer.amsgrad", p.amsgrad, false);
    check.require_value("optimizer.maximize", p.maximize, false);
    check.require_value("optimizer.disable_lr_steps_reset", p.disable_lr_steps_reset, false);
    note_loss_scale(check, p);
    let kind = kind(check, p);
    let decay = check.either_spelling(
        "optimizer.weight_decay",
        p.weight_decay,
        "optimizer.weight_decay_rate",
        p.weight_decay_rate,
    );
    OptimizerSpec {
        kind,
        weight_decay: check.non_negative("optimizer.weight_decay", decay, 0.0),
        max_gradient_norm: max_gradient_norm(check, p),
        schedule: schedule::resolve(check, p.learning_rate.as_ref()),
    }
}

fn kind(check: &mut ResolveContext<'_>, p: &OptimizerParams) -> OptimizerKind {
    if p.optimizer_type.is_none() {
        check.report_missing("optimizer.optimizer_type", "use AdamW, Adam or SGD");
    }
    let kind =
        check.keyword("optimizer.optimizer_type", p.optimizer_type.as_deref(), OptimizerName::AdamW, &OPTIMIZERS);
    let adam_only = [
        ("betas", p.betas.is_some()),
        ("beta1", p.beta1.is_some()),
        ("beta2", p.beta2.is_some()),
        ("eps", p.eps.is_some()),
        ("correct_bias", p.correct_bias.is_some()),
    ];
    let foreign: &[(&str, bool)] = match kind {
        OptimizerName::Sgd => &adam_only,
        _ => &[("momentum", p.momentum.is_some())],
    };
    for (key, _) in foreign.iter().filter(|(_, given)| *given) {
        let name = p.optimizer_type.as_deref().unwrap_or("AdamW");
        check.report_invalid(&format!("optimizer.{key}"), format!("has no meaning for {name}"), "leave it out");
    }
    let betas = betas(check, p);
    let eps = check.positive("optimizer.eps", p.eps, 1e-6);
    let correct_bias = p.correct_bias.unwrap_or(true);
    match kind {
        OptimizerName::Adam => OptimizerKind::Adam { betas, eps, correct_bias },
        OptimizerName::AdamW => OptimizerKind::AdamW { betas, eps, correct_bias },
        OptimizerName::Sgd => OptimizerKind::Sgd { momentum: check.probability("optimizer.momentum", p.momentum, 0.0) },
    }
}

fn betas(check: &mut ResolveContext<'_>, p: &OptimizerParams) -> [f64; 2] {
    if p.betas.is_some() && (p.beta1.is_some() || p.beta2.is_some()) {
        check.report_invalid(
            "optimizer.betas",
            "is given together with beta1 or beta2",
            "keep betas and leave the older keys out",
        );
    }
    let [first, second] = match p.betas.as_deref() {
        None => [p.beta1, p.beta2],
        Some([first, second]) => [Some(*first), Some(*second)],
        Some(other) => {
            let says = format!("has {} numbers instead of 2", other.len());
            check.report_invalid("optimizer.betas", says, "give two numbers, as in [0.9, 0.95]");
            [None, None]
        }
    };
    let key = |older| if p.betas.is_some() { "optimizer.betas" } else { older };
    [check.probability(key("optimizer.beta1"), first, 0.9), check.probability(key("optimizer.beta2"), second, 0.999)]
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
    let given: Vec<&str> = [
        ("loss_scaling_factor", p.loss_scaling_factor.is_some()),
        ("initial_loss_scale", p.initial_loss_scale.is_some()),
        ("steps_per_increase", p.steps_per_increase.is_some()),
        ("min_loss_scale", p.min_loss_scale.is_some()),
        ("max_loss_scale", p.max_loss_scale.is_some()),
    ]
    .into_iter()
    .filter_map(|(key, given)| given.then_some(key))
    .collect();
    if !given.is_empty() {
        check.note(format!(
            "the loss-scale keys of optimizer ({}) are not used: neither bf16 nor f32 needs a loss scale",
            given.join(", ")
        ));
    }
}
