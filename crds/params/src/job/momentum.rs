//! The momentum as a closed form of the step.
//!
//! Like the learning rate, it needs no state: a resumed run has the same momentum at each step as an uninterrupted one.
//! Every shard of MemoryX evaluates it, with the same bits everywhere, because `libm` does not depend on the platform.

use serde::{Deserialize, Serialize};

use super::schedule_curves::{half_cosine, interpolate};

/// The momentum at some steps, and the curve between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MomentumSchedule {
    /// Steps, ascending from 0.
    pub steps: Vec<u64>,
    /// Momentum at each of the steps. The last one holds from then on.
    pub values: Vec<f64>,
    /// Momentum between two of the steps.
    pub curve: MomentumCurve,
}

/// The momentum between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentumCurve {
    /// That of the first step.
    Constant,
    /// A straight line.
    Linear,
    /// Half a cosine.
    Cosine,
}

impl MomentumSchedule {
    /// Returns the momentum of the update from step `step` to step `step + 1`.
    pub fn at(&self, step: u64) -> f64 {
        let next = self.steps.partition_point(|begin| *begin <= step);
        let Some((begin, value)) = next.checked_sub(1).and_then(|last| self.point(last)) else { return 0.0 };
        let Some((end, next_value)) = self.point(next) else { return value };
        let share = step.saturating_sub(begin) as f64 / end.saturating_sub(begin).max(1) as f64;
        match self.curve {
            MomentumCurve::Constant => value,
            MomentumCurve::Linear => interpolate(value, next_value, share),
            MomentumCurve::Cosine => half_cosine(value, next_value, share),
        }
    }

    fn point(&self, index: usize) -> Option<(u64, f64)> {
        Some((*self.steps.get(index)?, *self.values.get(index)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn momentum_follows_the_curve_between_steps() {
        let at = |curve, step| MomentumSchedule { steps: vec![0, 2, 6], values: vec![0.75, 0.5, 0.25], curve }.at(step);
        for (curve, between) in [
            (MomentumCurve::Constant, 0.5),
            (MomentumCurve::Linear, 0.4375),
            (MomentumCurve::Cosine, 0.375 + 0.125 * std::f64::consts::FRAC_1_SQRT_2),
        ] {
            assert_eq!([0, 2, 6, 7, u64::MAX].map(|step| at(curve, step)), [0.75, 0.5, 0.25, 0.25, 0.25], "{curve:?}");
            assert!((at(curve, 3) - between).abs() < 1e-15, "{curve:?}");
        }
    }
}
