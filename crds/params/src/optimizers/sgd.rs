//! Stochastic gradient descent.

use serde::{Deserialize, Serialize};

use super::FromParams;
use crate::document::OptimizerParams;
use crate::resolve::ResolveContext;

/// Stochastic gradient descent with momentum; weight decay is part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sgd {
    /// Share of the previous update that is kept; 0 for none.
    pub momentum: f64,
}

impl FromParams for Sgd {
    const KEYS: &'static [&'static str] = &["momentum"];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self { momentum: check.probability("optimizer.momentum", params.momentum, 0.0) }
    }
}
