//! Stochastic gradient descent.

use serde::{Deserialize, Serialize};

use super::FromParams;
use crate::document::{MomentumScheduleParams, OptimizerParams};
use crate::resolve::ResolveContext;

/// Stochastic gradient descent with momentum; weight decay is part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sgd {
    /// Share of the previous update that is kept; 0 for none.
    pub momentum: f64,
    /// Share of the gradient that is left out of the momentum after the first step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dampening: f64,
    /// Whether the update is Nesterov's: the gradient plus `momentum` times its state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nesterov: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

impl FromParams for Sgd {
    const KEYS: &'static [&'static str] = &["momentum", "momentum_schedule", "dampening", "nesterov", "use_nesterov"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        let momentum = momentum(check, params);
        let dampening = check.share("optimizer.dampening", params.dampening, 0.0);
        let nesterov = check
            .either_spelling("optimizer.nesterov", params.nesterov, "optimizer.use_nesterov", params.use_nesterov)
            .unwrap_or(false);
        let nesterov_key = if params.nesterov.is_some() { "optimizer.nesterov" } else { "optimizer.use_nesterov" };
        if nesterov && momentum == 0.0 {
            check.report_invalid(nesterov_key, "is true without a momentum", "give a momentum, such as 0.9");
        }
        if nesterov && dampening != 0.0 {
            let message = "is not 0, and Nesterov's momentum has none";
            check.report_invalid("optimizer.dampening", message, "leave one of the two out");
        }
        if dampening != 0.0 && schedules(params).any(begins_later) {
            let message = "is not 0, and a momentum_schedule begins with 0";
            check.report_invalid("optimizer.dampening", message, "begin with a momentum, or leave dampening out");
        }
        Self { momentum, dampening, nesterov }
    }
}

/// Reads `momentum`. A schedule needs one of more than 0: without momentum, no state is kept.
pub(super) fn momentum(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> f64 {
    let momentum = check.probability("optimizer.momentum", params.momentum, 0.0);
    if momentum == 0.0 && schedules(params).next().is_some() && !check.has_problem("optimizer.momentum") {
        let message = "is 0, and there is a momentum_schedule";
        check.report_invalid("optimizer.momentum", message, "give a momentum, such as the first of the schedule");
    }
    momentum
}

/// Returns whether there is a momentum after a step without one. The gradient of its first step would not be dampened.
fn begins_later(schedule: &MomentumScheduleParams) -> bool {
    let values = schedule.values.as_deref().unwrap_or_default();
    values.first() == Some(&0.0) && values.iter().any(|value| *value != 0.0)
}

fn schedules(params: &OptimizerParams) -> impl Iterator<Item = &MomentumScheduleParams> {
    let of_groups = params.params.iter().flatten().filter_map(|group| group.momentum_schedule.as_ref());
    params.momentum_schedule.iter().chain(of_groups)
}
