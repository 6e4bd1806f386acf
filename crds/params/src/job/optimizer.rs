//! The optimizer of a resolved job.

use serde::{Deserialize, Serialize};

use super::Schedule;

/// How a committed step changes the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSpec {
    /// The rule.
    pub kind: OptimizerKind,
    /// Decoupled decay for AdamW, added to the gradient for Adam and SGD; never on biases and norms.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; a larger one is scaled down to it.
    pub max_gradient_norm: Option<f64>,
    /// The learning rate by step.
    pub schedule: Schedule,
}

/// The rule and its own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam, weight decay as part of the gradient.
    Adam {
        /// Decay rates of the two moments.
        betas: [f64; 2],
        /// Added to the denominator.
        eps: f64,
        /// Whether moments are corrected for starting at zero.
        correct_bias: bool,
    },
    /// Adam with decoupled weight decay.
    #[serde(rename = "adamw")]
    AdamW {
        /// Decay rates of the two moments.
        betas: [f64; 2],
        /// Added to the denominator.
        eps: f64,
        /// Whether moments are corrected for starting at zero.
        correct_bias: bool,
    },
    /// Stochastic gradient descent with momentum.
    Sgd {
        /// Share of the last update kept; 0 for none.
        momentum: f64,
    },
}
