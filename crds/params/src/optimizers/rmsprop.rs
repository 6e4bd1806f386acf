//! RMSprop.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::eps;
use super::sgd::momentum;
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// RMSprop, with weight decay as part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RmsProp {
    /// Decay rate of the mean of squares.
    pub alpha: f64,
    /// Term added to the denominator.
    pub eps: f64,
    /// Share of the previous update that is kept; 0 for none.
    pub momentum: f64,
    /// Whether the mean of the gradient is subtracted from the mean of squares.
    pub centered: bool,
}

impl FromParams for RmsProp {
    const KEYS: &'static [&'static str] = &["alpha", "eps", "epsilon", "momentum", "momentum_schedule", "centered"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self {
            alpha: check.probability("optimizer.alpha", params.alpha, 0.99),
            eps: eps(check, params, 1e-8),
            momentum: momentum(check, params),
            centered: params.centered.unwrap_or(false),
        }
    }
}
