//! RMSprop.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::eps;
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
    const KEYS: &'static [&'static str] = &["alpha", "eps", "epsilon", "momentum", "centered"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        let momentum = check.probability("optimizer.momentum", params.momentum, 0.0);
        let centered = params.centered.unwrap_or(false);
        if centered && momentum > 0.0 {
            check.report_invalid(
                "optimizer.centered",
                "is true while momentum is greater than 0; RMSprop would keep three tensors for each weight",
                "leave one of the two out",
            );
        }
        Self {
            alpha: check.probability("optimizer.alpha", params.alpha, 0.99),
            eps: eps(check, params, 1e-8),
            momentum,
            centered,
        }
    }
}
