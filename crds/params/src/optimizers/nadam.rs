//! NAdam.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::{betas, eps};
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Adam with Nesterov's momentum, and weight decay as part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NAdam {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Term added to the denominator.
    pub eps: f64,
    /// Rate at which the momentum of a step approaches the first decay rate.
    pub momentum_decay: f64,
}

impl FromParams for NAdam {
    const KEYS: &'static [&'static str] = &["betas", "beta1", "beta2", "eps", "epsilon", "momentum_decay"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self {
            betas: betas(check, params, [0.9, 0.999]),
            eps: eps(check, params, 1e-8),
            momentum_decay: check.non_negative("optimizer.momentum_decay", params.momentum_decay, 4e-3),
        }
    }
}
