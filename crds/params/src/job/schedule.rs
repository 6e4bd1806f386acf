//! The learning rate as a closed form of the step.
//!
//! * Closed forms need no state: a resumed run has the same rate at step *t* as an uninterrupted one.
//! * Only the coordinator evaluates them and sends the rate with the commit, so that differences between platforms'
//!   cosines have no effect.

use serde::{Deserialize, Serialize};

/// Consecutive pieces; at least one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The pieces in order.
    pub segments: Vec<ScheduleSegment>,
}

/// A piece and its length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScheduleSegment {
    /// Number of steps until the next segment begins; the last segment never ends.
    pub steps: u64,
    /// The rate within the segment.
    pub piece: ScheduleSegmentKind,
}

/// The rate as a function of the steps since the piece began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum ScheduleSegmentKind {
    /// A constant rate.
    Constant {
        /// The rate.
        learning_rate: f64,
    },
    /// A straight line from `initial` to `end` over `total_iters` steps, then `end`.
    Linear {
        /// The rate at step 0 of the piece.
        initial: f64,
        /// The rate from step `total_iters` on.
        end: f64,
        /// Number of steps in between; at least 1.
        total_iters: u64,
    },
    /// Half a cosine from `initial` to `end` over `total_iters` steps, then `end`.
    CosineDecay {
        /// The rate at step 0 of the piece.
        initial: f64,
        /// The rate from step `total_iters` on.
        end: f64,
        /// Number of steps in between; at least 1.
        total_iters: u64,
    },
}

impl Schedule {
    /// Returns a schedule with the same rate at every step.
    pub fn constant(learning_rate: f64) -> Self {
        Self {
            segments: vec![ScheduleSegment { steps: u64::MAX, piece: ScheduleSegmentKind::Constant { learning_rate } }],
        }
    }

    /// Returns the rate of the update from step `step` to step `step + 1`. The first update of a run uses step 0; with
    /// a warm-up from 0, its rate is therefore 0, as in the zoo.
    pub fn at(&self, step: u64) -> f64 {
        let mut since = step;
        for (i, segment) in self.segments.iter().enumerate() {
            if since < segment.steps || i + 1 == self.segments.len() {
                return segment.piece.at(since);
            }
            since -= segment.steps;
        }
        0.0 // a schedule without pieces
    }
}

impl ScheduleSegmentKind {
    /// Returns the rate `step` steps after the piece began.
    pub fn at(&self, step: u64) -> f64 {
        match *self {
            Self::Constant { learning_rate } => learning_rate,
            Self::Linear { end, total_iters, .. } | Self::CosineDecay { end, total_iters, .. }
                if step >= total_iters =>
            {
                end
            }
            Self::Linear { initial, end, total_iters } => interpolate(initial, end, step as f64 / total_iters as f64),
            Self::CosineDecay { initial, end, total_iters } => {
                let angle = std::f64::consts::PI * (step as f64 / total_iters as f64);
                interpolate(initial, end, 0.5 - 0.5 * libm::cos(angle))
            }
        }
    }
}

/// Interpolates from `initial` at 0 to `end` at 1, both exact.
fn interpolate(initial: f64, end: f64, share: f64) -> f64 {
    initial * (1.0 - share) + end * share
}
