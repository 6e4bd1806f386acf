//! NAdam.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::{betas, eps};
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Adam with Nesterov's momentum, and weight decay as part of the gradient or decoupled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NAdam {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Term added to the denominator.
    pub eps: f64,
    /// Rate at which the momentum of a step approaches the first decay rate.
    pub momentum_decay: f64,
    /// Whether weight decay is decoupled, as in AdamW.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub decoupled_weight_decay: bool,
}

impl FromParams for NAdam {
    const KEYS: &'static [&'static str] =
        &["betas", "beta1", "beta2", "momentum_schedule", "eps", "epsilon", "momentum_decay", "decoupled_weight_decay"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self {
            betas: betas(check, params, [0.9, 0.999]),
            eps: eps(check, params, 1e-8),
            momentum_decay: check.non_negative("optimizer.momentum_decay", params.momentum_decay, 4e-3),
            decoupled_weight_decay: params.decoupled_weight_decay.unwrap_or(false),
        }
    }
}
