//! The learning rate as a closed form of the step.
//!
//! * Closed forms need no state: a resumed run has the same rate at step *t* as an uninterrupted one.
//! * Only the coordinator evaluates them and sends the rate with the commit, so that differences between platforms'
//!   cosines have no effect.
//! * Rates are computed in f64, by the formulas of PyTorch's `torch.optim.lr_scheduler`, or of the public model zoo's
//!   `cerebras.pytorch.optim.lr_scheduler` for the schedules that PyTorch does not have.

use serde::{Deserialize, Serialize};

pub use super::schedule_curves::{AnnealStrategy, CycleAmplitude};
use super::schedule_curves::{cosine, cyclic, half_cosine, interpolate, one_cycle, warm_restarts};

/// Consecutive pieces; at least one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The pieces in order.
    pub segments: Vec<ScheduleSegment>,
}

/// A piece and its length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleSegment {
    /// Number of steps until the next segment begins; the last segment never ends.
    pub steps: u64,
    /// Number of steps that the piece has behind it when the segment begins: those of the segments before it if the
    /// params set `disable_lr_steps_reset`, else 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset_steps: u64,
    /// The rate within the segment.
    pub piece: ScheduleSegmentKind,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(steps: &u64) -> bool {
    *steps == 0
}

/// The rate as a function of the steps since the piece began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the formula of each variant defines its fields")]
pub enum ScheduleSegmentKind {
    /// A constant rate.
    Constant { learning_rate: f64 },
    /// A straight line from `initial` to `end` over `total_iters` steps, then `end`. `total_iters` is at least 1 here
    /// and below.
    Linear { initial: f64, end: f64, total_iters: u64 },
    /// Half a cosine from `initial` to `end` over `total_iters` steps, then `end`.
    CosineDecay { initial: f64, end: f64, total_iters: u64 },
    /// `end + (initial - end) (1 - t / total_iters)^power`, then `end`. PyTorch's `PolynomialLR` with an end.
    Polynomial { initial: f64, end: f64, total_iters: u64, power: f64 },
    /// `initial decay_rate^(t / total_iters)`, the exponent rounded down if `staircase`. PyTorch's `ExponentialLR` is
    /// this with `total_iters` 1.
    Exponential { initial: f64, decay_rate: f64, total_iters: u64, staircase: bool },
    /// `initial / (1 + decay_rate t^step_exponent / total_iters)`, the quotient by `total_iters` rounded down if
    /// `staircase`. The zoo's `InverseExponentialTimeDecayLR`.
    #[rustfmt::skip]
    InverseExponentialTimeDecay {
        initial: f64, decay_rate: f64, total_iters: u64, step_exponent: f64, staircase: bool,
    },
    /// `initial scale / sqrt(max(t, warmup_steps))`. The zoo's `InverseSquareRootDecayLR`.
    InverseSquareRootDecay { initial: f64, scale: f64, warmup_steps: u64 },
    /// `initial gamma^floor(t / step_size)`. PyTorch's `StepLR`.
    Step { initial: f64, gamma: f64, step_size: u64 },
    /// `initial gamma^n`, with n the number of milestones that are at most t. PyTorch's `MultiStepLR`.
    MultiStep { initial: f64, gamma: f64, milestones: Vec<u64> },
    /// The rate whose index is the number of milestones that are at most t.
    PiecewiseConstant { milestones: Vec<u64>, rates: Vec<f64> },
    /// `initial coefficient^t`. PyTorch's `MultiplicativeLR` with a constant factor.
    Multiplicative { initial: f64, coefficient: f64 },
    /// Half a cosine from `initial` to `end` over `period_steps`, back in as many, and so on. PyTorch's
    /// `CosineAnnealingLR`.
    CosineAnnealing { initial: f64, end: f64, period_steps: u64 },
    /// Half a cosine from `initial` to `end` over `period_steps`, which then starts again; each period is
    /// `period_factor` times as long as the one before. PyTorch's `CosineAnnealingWarmRestarts`.
    CosineAnnealingWarmRestarts { initial: f64, end: f64, period_steps: u64, period_factor: u64 },
    /// A straight line from `base` to `max` over `steps_up`, back over `steps_down`, and so on. PyTorch's `CyclicLR`.
    Cyclic { base: f64, max: f64, steps_up: u64, steps_down: u64, amplitude: CycleAmplitude },
    /// One rise from `initial` to `max` and one fall to `end`, then `end`. PyTorch's `OneCycleLR`.
    OneCycle {
        initial: f64,
        max: f64,
        end: f64,
        total_steps: u64,
        pct_start: f64,
        three_phase: bool,
        strategy: AnnealStrategy,
    },
    /// Consecutive pieces within a piece.
    Sequential { segments: Vec<ScheduleSegment> },
    /// The rate of the first piece, times the rate of each other piece relative to its initial rate. The zoo's
    /// `ChainedScheduler`.
    Chained { pieces: Vec<ScheduleSegmentKind> },
}

impl Schedule {
    /// Returns a schedule with the same rate at every step.
    pub fn constant(learning_rate: f64) -> Self {
        Self { segments: vec![ScheduleSegment::endless(ScheduleSegmentKind::Constant { learning_rate })] }
    }

    /// Returns the rate of the update from step `step` to step `step + 1`. The first update of a run uses step 0; with
    /// a warm-up from 0, its rate is therefore 0, as in the zoo.
    pub fn at(&self, step: u64) -> f64 {
        rate_of_segments(&self.segments, step)
    }
}

impl ScheduleSegment {
    /// Returns a segment that never ends.
    pub const fn endless(piece: ScheduleSegmentKind) -> Self {
        Self { steps: u64::MAX, offset_steps: 0, piece }
    }
}

fn rate_of_segments(segments: &[ScheduleSegment], step: u64) -> f64 {
    let mut remaining = step;
    for (i, segment) in segments.iter().enumerate() {
        if remaining < segment.steps || i + 1 == segments.len() {
            return segment.piece.at(remaining.saturating_add(segment.offset_steps));
        }
        remaining -= segment.steps;
    }
    0.0 // a schedule without pieces
}

impl ScheduleSegmentKind {
    /// Returns the rate `step` steps after the piece began.
    pub fn at(&self, step: u64) -> f64 {
        let t = step as f64;
        match *self {
            Self::Constant { learning_rate } => learning_rate,
            Self::Linear { end, total_iters, .. }
            | Self::CosineDecay { end, total_iters, .. }
            | Self::Polynomial { end, total_iters, .. }
                if step >= total_iters =>
            {
                end
            }
            Self::Linear { initial, end, total_iters } => interpolate(initial, end, t / total_iters as f64),
            Self::CosineDecay { initial, end, total_iters } => half_cosine(initial, end, t / total_iters as f64),
            Self::Polynomial { initial, end, total_iters, power } => {
                end + (initial - end) * libm::pow(1.0 - t / total_iters as f64, power)
            }
            Self::Exponential { initial, decay_rate, total_iters, staircase } => {
                initial * libm::pow(decay_rate, floor_if(staircase, t / total_iters as f64))
            }
            Self::InverseExponentialTimeDecay { initial, decay_rate, total_iters, step_exponent, staircase } => {
                let elapsed = floor_if(staircase, libm::pow(t, step_exponent) / total_iters as f64);
                initial / (1.0 + decay_rate * elapsed)
            }
            Self::InverseSquareRootDecay { initial, scale, warmup_steps } => {
                initial * scale / (step.max(warmup_steps).max(1) as f64).sqrt()
            }
            Self::Step { initial, gamma, step_size } => initial * libm::pow(gamma, (step / step_size.max(1)) as f64),
            Self::MultiStep { initial, gamma, ref milestones } => {
                initial * libm::pow(gamma, milestones.iter().filter(|milestone| **milestone <= step).count() as f64)
            }
            Self::PiecewiseConstant { ref milestones, ref rates } => {
                let passed = milestones.partition_point(|milestone| *milestone <= step);
                rates.get(passed).copied().unwrap_or(0.0) // without rates, the params were rejected
            }
            Self::Multiplicative { initial, coefficient } => initial * libm::pow(coefficient, t),
            Self::CosineAnnealing { initial, end, period_steps } => cosine(initial, end, t / period_steps as f64),
            Self::CosineAnnealingWarmRestarts { initial, end, period_steps, period_factor } => {
                cosine(initial, end, warm_restarts(step, period_steps, period_factor))
            }
            Self::Cyclic { base, max, steps_up, steps_down, amplitude } => {
                cyclic(step, [base, max], [steps_up, steps_down], amplitude)
            }
            Self::OneCycle { initial, max, end, total_steps, pct_start, three_phase, strategy } => {
                one_cycle(t, [initial, max, end], total_steps as f64, pct_start, three_phase, strategy)
            }
            Self::Sequential { ref segments } => rate_of_segments(segments, step),
            Self::Chained { ref pieces } => {
                let [first, others @ ..] = pieces.as_slice() else { return 0.0 };
                let relative = |piece: &Self| piece.at(step) / piece.initial().unwrap_or(1.0);
                others.iter().map(relative).fold(first.at(step), |rate, factor| rate * factor)
            }
        }
    }

    /// Returns the rate to which `Chained` relates the rates of a piece; `None` for the kinds that have none.
    pub(crate) const fn initial(&self) -> Option<f64> {
        match *self {
            Self::Constant { learning_rate } => Some(learning_rate),
            Self::Linear { initial, .. }
            | Self::CosineDecay { initial, .. }
            | Self::Polynomial { initial, .. }
            | Self::Exponential { initial, .. }
            | Self::InverseExponentialTimeDecay { initial, .. }
            | Self::InverseSquareRootDecay { initial, .. }
            | Self::Step { initial, .. }
            | Self::MultiStep { initial, .. }
            | Self::Multiplicative { initial, .. }
            | Self::CosineAnnealing { initial, .. }
            | Self::CosineAnnealingWarmRestarts { initial, .. }
            | Self::OneCycle { initial, .. } => Some(initial),
            Self::Cyclic { .. } | Self::PiecewiseConstant { .. } | Self::Sequential { .. } | Self::Chained { .. } => {
                None
            }
        }
    }
}

fn floor_if(staircase: bool, value: f64) -> f64 {
    if staircase { value.floor() } else { value }
}
