//! Adadelta.

use serde::{Deserialize, Serialize};

use super::FromParams;
use super::adam::eps;
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Adadelta, with weight decay as part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Adadelta {
    /// Decay rate of the means of squares, of the gradient and of the update.
    pub rho: f64,
    /// Term added to both means.
    pub eps: f64,
}

impl FromParams for Adadelta {
    const KEYS: &'static [&'static str] = &["rho", "eps", "epsilon"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self { rho: check.probability("optimizer.rho", params.rho, 0.9), eps: eps(check, params, 1e-6) }
    }
}
