//! Adamax.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::{betas, eps};
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Adam with the largest gradient so far in place of the second moment; weight decay is part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Adamax {
    /// Decay rates of the moment and of the largest gradient.
    pub betas: [f64; 2],
    /// Term added to the gradient's size.
    pub eps: f64,
}

impl FromParams for Adamax {
    const KEYS: &'static [&'static str] = &["betas", "beta1", "beta2", "momentum_schedule", "eps", "epsilon"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self { betas: betas(check, params, [0.9, 0.999]), eps: eps(check, params, 1e-8) }
    }
}
