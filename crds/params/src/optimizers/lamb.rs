//! LAMB.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::{betas, correct_bias, eps};
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Adam with decoupled weight decay, whose step in each tensor is as long as the tensor's norm times the learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lamb {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Term added to the denominator.
    pub eps: f64,
    /// Whether moments are corrected for starting at zero.
    pub correct_bias: bool,
    /// Whether every trust ratio is 1, which is AdamW.
    pub adam: bool,
}

impl FromParams for Lamb {
    const KEYS: &'static [&'static str] = &[
        "betas",
        "beta1",
        "beta2",
        "momentum_schedule",
        "eps",
        "epsilon",
        "correct_bias",
        "use_bias_correction",
        "adam",
    ];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self {
            betas: betas(check, params, [0.9, 0.999]),
            eps: eps(check, params, 1e-6),
            correct_bias: correct_bias(check, params),
            adam: params.adam.unwrap_or(false),
        }
    }
}
