//! Adam, and AdamW with decoupled weight decay.

use serde::{Deserialize, Serialize};

use super::FromParams;
use crate::document::{EpsSetting, OptimizerParams};
use crate::resolve::ResolveContext;

/// Adam, with weight decay as part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Term added to the denominator.
    pub eps: f64,
    /// Whether moments are corrected for starting at zero.
    pub correct_bias: bool,
    /// Whether `eps` is added before the second moment is corrected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub epsilon_hat: bool,
    /// Whether the largest second moment so far is used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub amsgrad: bool,
}

/// Adam with decoupled weight decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Term added to the denominator.
    pub eps: f64,
    /// Whether moments are corrected for starting at zero.
    pub correct_bias: bool,
    /// Whether `eps` is added before the second moment is corrected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub epsilon_hat: bool,
    /// Whether the largest second moment so far is used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub amsgrad: bool,
}

impl FromParams for Adam {
    const KEYS: &'static [&'static str] = &[
        "betas",
        "beta1",
        "beta2",
        "momentum_schedule",
        "eps",
        "epsilon",
        "correct_bias",
        "use_bias_correction",
        "epsilon_hat",
        "amsgrad",
    ];

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        Self {
            correct_bias: correct_bias(check, params),
            betas: betas(check, params, [0.9, 0.999]),
            eps: eps(check, params, 1e-6),
            epsilon_hat: params.epsilon_hat.unwrap_or(false),
            amsgrad: params.amsgrad.unwrap_or(false),
        }
    }
}

impl FromParams for AdamW {
    const KEYS: &'static [&'static str] = Adam::KEYS;

    fn from_params(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> Self {
        let Adam { betas, eps, correct_bias, epsilon_hat, amsgrad } = Adam::from_params(check, params);
        Self { betas, eps, correct_bias, epsilon_hat, amsgrad }
    }
}

/// Reads `eps`, in both spellings.
pub(super) fn eps(check: &mut ResolveContext<'_>, params: &OptimizerParams, default: f64) -> f64 {
    let eps = match &params.eps {
        Some(EpsSetting::Terms(_)) => {
            check.report_invalid("optimizer.eps", "is a list, which only Adafactor has", "give one number");
            None
        }
        Some(EpsSetting::Number(number)) => Some(*number),
        None => None,
    };
    let value = check.either_spelling("optimizer.eps", eps, "optimizer.epsilon", params.epsilon);
    let key = if params.eps.is_some() { "optimizer.eps" } else { "optimizer.epsilon" };
    check.positive(key, value, default)
}

/// Reads `correct_bias`, in both spellings.
pub(super) fn correct_bias(check: &mut ResolveContext<'_>, params: &OptimizerParams) -> bool {
    let value = check.either_spelling(
        "optimizer.correct_bias",
        params.correct_bias,
        "optimizer.use_bias_correction",
        params.use_bias_correction,
    );
    value.unwrap_or(true)
}

/// Reads `betas`, in both spellings.
pub(super) fn betas(check: &mut ResolveContext<'_>, p: &OptimizerParams, default: [f64; 2]) -> [f64; 2] {
    if p.betas.is_some() && (p.beta1.is_some() || p.beta2.is_some()) {
        check.report_invalid(
            "optimizer.betas",
            "is given together with beta1 or beta2",
            "keep betas and leave the older keys out",
        );
    }
    let [first, second] = match p.betas.as_deref() {
        None => [p.beta1, p.beta2],
        Some([first, second]) => [Some(*first), Some(*second)],
        Some(other) => {
            let message = format!("has {} numbers instead of 2", other.len());
            check.report_invalid("optimizer.betas", message, "give two numbers, as in [0.9, 0.95]");
            [None, None]
        }
    };
    let key = |older| if p.betas.is_some() { "optimizer.betas" } else { older };
    [
        check.probability(key("optimizer.beta1"), first, default[0]),
        check.probability(key("optimizer.beta2"), second, default[1]),
    ]
}
