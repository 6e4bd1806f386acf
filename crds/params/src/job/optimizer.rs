//! The optimizer of a resolved job.

use serde::{Deserialize, Serialize};

use super::Schedule;
use crate::optimizers::OptimizerKind;

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
