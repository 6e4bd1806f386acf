//! Resolves `optimizer.learning_rate`: a number, a mapping or a list become one [`Schedule`]. The curves are in
//! `schedule_piece`.

use super::check::ResolveContext;
use super::schedule_piece::{Lengths, piece, refuse_foreign_keys};
use crate::document::{LearningRateSetting, ScheduleParams};
use crate::job::{Schedule, ScheduleSegment, ScheduleSegmentKind};
use crate::keywords::{SCHEDULERS, ScheduleKind};

const LEARNING_RATE_KEY: &str = "optimizer.learning_rate";

/// Maximum schedules in a list, far above any real one: evaluating a schedule takes time for each.
const MAX_SCHEDULES: usize = 2048;

pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    value: Option<&LearningRateSetting>,
    disable_lr_steps_reset: bool,
) -> Schedule {
    match value {
        None => {
            check.report_missing(LEARNING_RATE_KEY, "give a number, a schedule or a list of schedules");
            Schedule::constant(0.0)
        }
        Some(LearningRateSetting::Number(rate)) => {
            Schedule::constant(check.non_negative(LEARNING_RATE_KEY, Some(*rate), 0.0))
        }
        Some(LearningRateSetting::Schedule(one)) => {
            let segment = segment(check, LEARNING_RATE_KEY, one, None, true);
            match segment.piece {
                // The only schedule of a run is not nested.
                ScheduleSegmentKind::Sequential { segments } => Schedule { segments },
                piece => Schedule { segments: vec![ScheduleSegment::endless(piece)] },
            }
        }
        Some(LearningRateSetting::Sequence(many)) => {
            Schedule { segments: sequence(check, LEARNING_RATE_KEY, many, None, disable_lr_steps_reset) }
        }
    }
}

/// Checks that the rate is finite at the last step. A factor above 1 makes it grow without bound.
pub(super) fn check_last_rate(check: &mut ResolveContext<'_>, schedule: &Schedule, max_steps: u64) {
    let rate = schedule.at(max_steps);
    if !rate.is_finite() || rate < 0.0 {
        let message = format!("is {rate} at step {max_steps}");
        check.report_invalid(LEARNING_RATE_KEY, message, "choose a factor of at most 1, or fewer steps");
    }
}

/// Returns schedules that follow each other. They end after their own lengths, or at the milestones if these are given.
pub(super) fn sequence(
    check: &mut ResolveContext<'_>,
    path: &str,
    schedules: &[ScheduleParams],
    milestones: Option<&[u64]>,
    disable_lr_steps_reset: bool,
) -> Vec<ScheduleSegment> {
    if schedules.is_empty() {
        check.report_invalid(path, "is an empty list", "give at least one schedule");
        return Schedule::constant(0.0).segments;
    }
    if schedules.len() > MAX_SCHEDULES {
        let message = format!("has {} schedules", schedules.len());
        check.report_invalid(path, message, format!("give at most {MAX_SCHEDULES}"));
        return Schedule::constant(0.0).segments;
    }
    let last = schedules.len() - 1;
    let length_to_milestone = |i: usize| {
        let milestones = milestones?;
        let begin = if i == 0 { 0 } else { *milestones.get(i - 1)? };
        milestones.get(i)?.checked_sub(begin)
    };
    let mut preceding: u64 = 0;
    let mut segments = Vec::with_capacity(schedules.len());
    for (i, schedule) in schedules.iter().enumerate() {
        let mut segment = segment(check, &format!("{path}.{i}"), schedule, length_to_milestone(i), i == last);
        if disable_lr_steps_reset {
            segment.offset_steps = preceding;
        }
        preceding = preceding.saturating_add(segment.steps);
        segments.push(segment);
    }
    segments
}

/// Returns one schedule with its length. `length` is given by the list's milestones.
fn segment(
    check: &mut ResolveContext<'_>,
    path: &str,
    p: &ScheduleParams,
    length: Option<u64>,
    is_last: bool,
) -> ScheduleSegment {
    let key_path = |key: &str| format!("{path}.{key}");
    let lengths = Lengths::of(p);
    let steps = length.or(lengths.in_list);
    if lengths.in_list == Some(0) || lengths.of_curve == Some(0) {
        check.report_invalid(path, "lasts 0 steps", "give total_iters of at least 1");
    }
    let Some(kind) = kind(check, &key_path("scheduler"), p) else {
        // The keys of an unknown schedule are not checked: which ones it needs is not known.
        return ScheduleSegment {
            steps: if is_last { u64::MAX } else { steps.unwrap_or(1) },
            ..ScheduleSegment::endless(ScheduleSegmentKind::Constant { learning_rate: 0.0 })
        };
    };
    refuse_foreign_keys(check, path, p, kind);
    let piece = piece(check, path, p, kind, lengths);
    let natural = match &piece {
        ScheduleSegmentKind::OneCycle { total_steps, .. } => Some(*total_steps),
        _ => None,
    };
    let steps = steps.or(natural);
    if !is_last && steps.is_none() {
        check.report_missing(&key_path("total_iters"), "give the number of steps of the schedule");
    }
    let steps = if is_last { u64::MAX } else { steps.unwrap_or(1) };
    ScheduleSegment { steps, ..ScheduleSegment::endless(piece) }
}

/// Returns the kind of a schedule; `None` if a problem with its name has been recorded.
pub(super) fn kind(check: &mut ResolveContext<'_>, key: &str, p: &ScheduleParams) -> Option<ScheduleKind> {
    let Some(name) = p.scheduler.as_deref() else {
        check.report_missing(key, "name a schedule, as in scheduler: Linear");
        return None;
    };
    if SCHEDULERS.is_unsupported(name) {
        let hint = match name.to_ascii_lowercase().starts_with("lambda") {
            true => "its rate is computed by Python code: choose Multiplicative, Step or another schedule",
            false => "all parameters share one learning rate: write the schedule within it",
        };
        check.unsupported(key, name, hint);
        return None;
    }
    check.keyword(key, Some(name), ScheduleKind::Constant, &SCHEDULERS);
    SCHEDULERS.get(name)
}
