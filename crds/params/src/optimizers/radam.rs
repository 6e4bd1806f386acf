//! RAdam.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::{betas, eps};
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Adam with a rectified variance of the step, and weight decay as part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RAdam {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Term added to the denominator.
    pub eps: f64,
}

impl FromParams for RAdam {
    const KEYS: &'static [&'static str] = &["betas", "beta1", "beta2", "eps", "epsilon"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self { betas: betas(check, params, [0.9, 0.999]), eps: eps(check, params, 1e-8) }
    }
}
