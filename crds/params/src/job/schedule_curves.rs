//! The curves of learning-rate schedules, as functions of the step or of a share of it.

use serde::{Deserialize, Serialize};

/// How the amplitude of a cycle changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum CycleAmplitude {
    /// It does not change.
    Constant {},
    /// Each cycle has half the amplitude of the one before.
    Halved {},
    /// It is `gamma` to the power of the step.
    Exponential {
        /// The factor at each step.
        gamma: f64,
    },
}

/// The shape of a rise or a fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnnealStrategy {
    /// Half a cosine.
    Cosine,
    /// A straight line.
    Linear,
}

/// Interpolates from `initial` at 0 to `end` at 1, both exact.
pub(super) fn interpolate(initial: f64, end: f64, share: f64) -> f64 {
    initial * (1.0 - share) + end * share
}

/// Returns the half cosine from `initial` at 0 to `end` at 1, both exact.
pub(super) fn half_cosine(initial: f64, end: f64, share: f64) -> f64 {
    interpolate(initial, end, 0.5 - 0.5 * libm::cos(std::f64::consts::PI * share))
}

/// Returns the cosine that is `initial` at even and `end` at odd numbers.
pub(super) fn cosine(initial: f64, end: f64, half_periods: f64) -> f64 {
    // The argument is reduced first: the cosine of a large number is inexact.
    half_cosine(initial, end, half_periods % 2.0)
}

/// Returns the elapsed share of the current period, if each is `factor` times as long as the one before.
pub(super) fn warm_restarts(step: u64, first_period: u64, factor: u64) -> f64 {
    let mut period = first_period.max(1);
    let mut position = step;
    if factor <= 1 {
        position %= period;
    } else {
        // At most 64 periods, because each is at least twice as long as the one before.
        while position >= period {
            position -= period;
            period = period.saturating_mul(factor);
        }
    }
    position as f64 / period as f64
}

/// Returns the triangle wave between `base` and `max` that rises over `steps_up` and falls over `steps_down`.
pub(super) fn cyclic(
    step: u64,
    [base, max]: [f64; 2],
    [steps_up, steps_down]: [u64; 2],
    amplitude: CycleAmplitude,
) -> f64 {
    let cycle_steps = steps_up.saturating_add(steps_down).max(1);
    let (cycles, position) = (step / cycle_steps, step % cycle_steps);
    let height = if position <= steps_up {
        position as f64 / steps_up.max(1) as f64
    } else {
        (cycle_steps - position) as f64 / steps_down as f64
    };
    let scale = match amplitude {
        CycleAmplitude::Constant {} => 1.0,
        CycleAmplitude::Halved {} => libm::pow(2.0, -(cycles as f64)),
        CycleAmplitude::Exponential { gamma } => libm::pow(gamma, step as f64),
    };
    base + (max - base) * height * scale
}

/// Returns the rate of the policy "1cycle": a rise from `initial` to `max`, with `three_phase` an equally long fall to
/// `initial`, and a fall to `end`.
pub(super) fn one_cycle(
    t: f64,
    [initial, max, end]: [f64; 3],
    total_steps: f64,
    pct_start: f64,
    three_phase: bool,
    strategy: AnnealStrategy,
) -> f64 {
    let anneal = |from: f64, to: f64, begin: f64, finish: f64| {
        let share = ((t - begin) / (finish - begin)).clamp(0.0, 1.0);
        match strategy {
            AnnealStrategy::Cosine => half_cosine(from, to, share),
            AnnealStrategy::Linear => interpolate(from, to, share),
        }
    };
    let (top, last) = (pct_start * total_steps - 1.0, total_steps - 1.0);
    if t <= top {
        return anneal(initial, max, 0.0, top);
    }
    let back = 2.0 * top;
    match three_phase {
        true if t <= back => anneal(max, initial, top, back),
        true => anneal(initial, end, back, last),
        false => anneal(max, end, top, last),
    }
}
