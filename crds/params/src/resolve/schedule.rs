//! Resolves `optimizer.learning_rate`: a number, a mapping or a list become one [`Schedule`].

use super::check::ResolveContext;
use crate::document::{LearningRateSetting, ScheduleParams};
use crate::job::{Schedule, ScheduleSegment, ScheduleSegmentKind};
use crate::keywords::{SCHEDULERS, ScheduleKind};

const LEARNING_RATE_KEY: &str = "optimizer.learning_rate";

pub(super) fn resolve(check: &mut ResolveContext<'_>, given: Option<&LearningRateSetting>) -> Schedule {
    match given {
        None => {
            check.report_missing(LEARNING_RATE_KEY, "give a number, a schedule or a list of schedules");
            Schedule::constant(0.0)
        }
        Some(LearningRateSetting::Number(rate)) => {
            Schedule::constant(check.non_negative(LEARNING_RATE_KEY, Some(*rate), 0.0))
        }
        Some(LearningRateSetting::Schedule(one)) => {
            Schedule { segments: vec![segment(check, LEARNING_RATE_KEY, one, true)] }
        }
        Some(LearningRateSetting::Sequence(many)) => {
            if many.is_empty() {
                check.report_invalid(LEARNING_RATE_KEY, "is an empty list", "give at least one schedule");
            }
            let last = many.len().saturating_sub(1);
            let segments = many.iter().enumerate();
            Schedule {
                segments: segments
                    .map(|(i, p)| segment(check, &format!("{LEARNING_RATE_KEY}.{i}"), p, i == last))
                    .collect(),
            }
        }
    }
}

fn segment(check: &mut ResolveContext<'_>, at: &str, p: &ScheduleParams, last: bool) -> ScheduleSegment {
    let of = |key: &str| format!("{at}.{key}");
    if p.scheduler.is_none() {
        check.report_missing(&of("scheduler"), "name a schedule, as in scheduler: Linear");
    }
    let known = p.scheduler.as_deref().and_then(|name| SCHEDULERS.get(name));
    let kind = check.keyword(&of("scheduler"), p.scheduler.as_deref(), ScheduleKind::Constant, &SCHEDULERS);
    check.require_value(&of("cycle"), p.cycle, false);
    if let Some(power) = p.power.filter(|power| *power != 1.0) {
        check.unsupported(&of("power"), &power.to_string(), "leave it out for a straight line");
    }
    if known.is_some() {
        refuse_foreign_keys(check, at, p, kind);
    }
    // Older files give the length of the decay (decay_steps) separately from that of the schedule (steps).
    let steps = p.steps.or(p.total_iters).or(p.decay_steps);
    let length = p.total_iters.or(p.decay_steps).or(p.steps);
    if steps == Some(0) || length == Some(0) {
        check.report_invalid(at, "lasts 0 steps", "give total_iters of at least 1");
    }
    let needed = kind != ScheduleKind::Constant || !last;
    if needed && steps.is_none() && known.is_some() {
        check.report_missing(&of("total_iters"), "give the number of steps of the schedule");
    }
    ScheduleSegment {
        steps: if last { u64::MAX } else { steps.unwrap_or(1) },
        // The keys of an unknown schedule are not checked: which ones it needs is not known.
        piece: match known {
            Some(kind) => piece(check, at, p, kind, length.unwrap_or(1)),
            None => ScheduleSegmentKind::Constant { learning_rate: 0.0 },
        },
    }
}

fn piece(
    check: &mut ResolveContext<'_>,
    at: &str,
    p: &ScheduleParams,
    kind: ScheduleKind,
    total_iters: u64,
) -> ScheduleSegmentKind {
    let of = |key: &str| format!("{at}.{key}");
    if kind == ScheduleKind::Constant {
        let rate = check.either_spelling(&of("learning_rate"), p.learning_rate, &of("val"), p.val);
        if rate.is_none() {
            check.report_missing(&of("learning_rate"), "give the rate of the constant schedule");
        }
        return ScheduleSegmentKind::Constant { learning_rate: check.non_negative(&of("learning_rate"), rate, 0.0) };
    }
    if p.initial_learning_rate.is_none() {
        check.report_missing(&of("initial_learning_rate"), "give the rate the schedule begins with");
    }
    let initial = check.non_negative(&of("initial_learning_rate"), p.initial_learning_rate, 0.0);
    let mut end = check.non_negative(&of("end_learning_rate"), p.end_learning_rate, 0.0);
    let floor = initial * check.non_negative(&of("alpha"), p.alpha, 0.0);
    if floor > end {
        check.note(format!("{at} ends at {floor:e}, alpha times its initial rate"));
        end = floor;
    }
    match kind {
        ScheduleKind::Linear => ScheduleSegmentKind::Linear { initial, end, total_iters },
        _ => ScheduleSegmentKind::CosineDecay { initial, end, total_iters },
    }
}

/// Rejects keys that the schedule does not have: either the key or the schedule is a mistake.
fn refuse_foreign_keys(check: &mut ResolveContext<'_>, at: &str, p: &ScheduleParams, kind: ScheduleKind) {
    let foreign: &[(&str, Option<f64>)] = match kind {
        ScheduleKind::Constant => &[
            ("initial_learning_rate", p.initial_learning_rate),
            ("end_learning_rate", p.end_learning_rate),
            ("alpha", p.alpha),
        ],
        _ => &[("learning_rate", p.learning_rate), ("val", p.val)],
    };
    for (key, given) in foreign {
        if given.is_some() {
            let name = p.scheduler.as_deref().unwrap_or_default();
            check.report_invalid(&format!("{at}.{key}"), format!("has no meaning for {name}"), "leave it out");
        }
    }
}
