//! Lion.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::betas;
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Lion: the sign of an interpolated momentum, with decoupled weight decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lion {
    /// Decay rates of the direction and of the momentum.
    pub betas: [f64; 2],
}

impl FromParams for Lion {
    const KEYS: &'static [&'static str] = &["betas", "beta1", "beta2", "momentum_schedule"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self { betas: betas(check, params, [0.9, 0.99]) }
    }
}
