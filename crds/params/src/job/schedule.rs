//! The learning rate as a closed form of the step.
//!
//! Closed forms need no state: a resumed run asks for step *t* and gets what the uninterrupted one got. Only the
//! coordinator evaluates them and sends the number with the commit, so agents never differ by a platform's cosine.

use serde::{Deserialize, Serialize};

/// Pieces that follow each other; at least one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The pieces in order.
    pub segments: Vec<Segment>,
}

/// A piece and how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Steps until the next segment begins; the last one never ends.
    pub steps: u64,
    /// The rate within it.
    pub piece: Piece,
}

/// The rate as a function of the steps since the piece began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Piece {
    /// Always the same.
    Constant {
        /// The rate.
        learning_rate: f64,
    },
    /// A straight line from `initial` to `end` over `total_iters` steps, `end` from there on.
    Linear {
        /// The rate at step 0 of the piece.
        initial: f64,
        /// The rate at step `total_iters` and after.
        end: f64,
        /// Steps in between; at least 1.
        total_iters: u64,
    },
    /// Half a cosine from `initial` to `end` over `total_iters` steps, `end` from there on.
    CosineDecay {
        /// The rate at step 0 of the piece.
        initial: f64,
        /// The rate at step `total_iters` and after.
        end: f64,
        /// Steps in between; at least 1.
        total_iters: u64,
    },
}

impl Schedule {
    /// One rate at every step.
    pub fn constant(learning_rate: f64) -> Self {
        Self { segments: vec![Segment { steps: u64::MAX, piece: Piece::Constant { learning_rate } }] }
    }

    /// The rate of the update that makes step `step` into step `step + 1`: the first update of a run asks for 0 and,
    /// with a warm-up from 0, is made with rate 0, as in the zoo.
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

impl Piece {
    /// The rate `step` steps after the piece began.
    pub fn at(&self, step: u64) -> f64 {
        match *self {
            Self::Constant { learning_rate } => learning_rate,
            Self::Linear { end, total_iters, .. } | Self::CosineDecay { end, total_iters, .. }
                if step >= total_iters =>
            {
                end
            }
            Self::Linear { initial, end, total_iters } => mix(initial, end, step as f64 / total_iters as f64),
            Self::CosineDecay { initial, end, total_iters } => {
                let angle = std::f64::consts::PI * (step as f64 / total_iters as f64);
                mix(initial, end, 0.5 - 0.5 * libm::cos(angle))
            }
        }
    }
}

/// From `initial` at 0 to `end` at 1, both exact.
fn mix(initial: f64, end: f64, share: f64) -> f64 {
    initial * (1.0 - share) + end * share
}
