//! The optimizer of a resolved job.

use serde::{Deserialize, Serialize};

use super::Schedule;

/// The optimizer: how a committed step changes the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSpec {
    /// The algorithm.
    pub kind: OptimizerKind,
    /// Weight decay: decoupled for AdamW, added to the gradient for Adam and SGD; never applied to biases and norms.
    pub weight_decay: f64,
    /// Maximum global norm of the gradient, to which larger ones are scaled down; `None` without clipping.
    pub max_gradient_norm: Option<f64>,
    /// The learning rate of each step.
    pub schedule: Schedule,
}

/// The algorithm with its own parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam, with weight decay as part of the gradient.
    Adam {
        /// Decay rates of the two moments.
        betas: [f64; 2],
        /// Term added to the denominator.
        eps: f64,
        /// Whether moments are corrected for starting at zero.
        correct_bias: bool,
    },
    /// Adam with decoupled weight decay.
    #[serde(rename = "adamw")]
    AdamW {
        /// Decay rates of the two moments.
        betas: [f64; 2],
        /// Term added to the denominator.
        eps: f64,
        /// Whether moments are corrected for starting at zero.
        correct_bias: bool,
    },
    /// Stochastic gradient descent with momentum.
    Sgd {
        /// Share of the previous update that is kept; 0 for none.
        momentum: f64,
    },
}
