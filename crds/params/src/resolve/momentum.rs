//! Resolves `momentum_schedule` of the optimizer and of its groups.

use super::check::ResolveContext;
use crate::document::MomentumScheduleParams;
use crate::job::{MomentumCurve, MomentumSchedule};
use crate::keywords::MOMENTUM_CURVES;

/// Maximum number of steps. A job with as many, and its record, fit into an object of Kubernetes.
const MAX_MOMENTUM_STEPS: usize = 4096;

/// Resolves the schedule at `path`; `None` if there is none.
pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    path: &str,
    schedule: Option<&MomentumScheduleParams>,
) -> Option<MomentumSchedule> {
    let p = schedule?;
    let key = |name: &str| format!("{path}.{name}");
    let steps = p.steps.clone().unwrap_or_default();
    let values = p.values.clone().unwrap_or_default();
    for (name, is_given) in [("steps", p.steps.is_some()), ("values", p.values.is_some())] {
        if !is_given {
            check.report_missing(&key(name), "give the steps, and the momentum at each of them");
        }
    }
    if steps.len() > MAX_MOMENTUM_STEPS {
        let message = format!("has {} numbers", steps.len());
        check.report_invalid(&key("steps"), message, format!("give at most {MAX_MOMENTUM_STEPS}"));
        return None;
    }
    if p.steps.is_some() && (steps.first() != Some(&0) || !steps.is_sorted_by(|before, after| before < after)) {
        check.report_invalid(&key("steps"), "are not ascending from 0", "begin with 0, and give each step once");
    }
    if p.steps.is_some() && p.values.is_some() && steps.len() != values.len() {
        let message = format!("has {} numbers for {} steps", values.len(), steps.len());
        check.report_invalid(&key("values"), message, "give one number for each of steps");
    }
    for (index, value) in values.iter().enumerate() {
        check.probability(&key(&format!("values.{index}")), Some(*value), 0.0);
    }
    let interpolation = p.interpolation.as_deref();
    let curve = check.keyword(&key("interpolation"), interpolation, MomentumCurve::Constant, &MOMENTUM_CURVES);
    Some(MomentumSchedule { steps, values, curve })
}
