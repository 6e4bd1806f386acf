//! Adagrad.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::eps;
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Adagrad, with weight decay as part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    /// Decay of the learning rate: it is divided by `1 + (step - 1) * lr_decay`.
    pub lr_decay: f64,
    /// First value of the sum of squares.
    pub initial_accumulator_value: f64,
    /// Term added to the denominator.
    pub eps: f64,
}

impl FromParams for Adagrad {
    const KEYS: &'static [&'static str] = &["lr_decay", "initial_accumulator_value", "eps", "epsilon"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self {
            lr_decay: check.non_negative("optimizer.lr_decay", params.lr_decay, 0.0),
            initial_accumulator_value: check.non_negative(
                "optimizer.initial_accumulator_value",
                params.initial_accumulator_value,
                0.0,
            ),
            eps: eps(check, params, 1e-10),
        }
    }
}
