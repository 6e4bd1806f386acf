//! The optimizer of a resolved job.

use serde::{Deserialize, Serialize};

use super::Schedule;
use crate::optimizers::OptimizerKind;

/// The optimizer: how a committed step changes the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSpec {
    /// The algorithm.
    pub kind: OptimizerKind,
    /// Weight decay: decoupled for AdamW, added to the gradient for Adam and SGD; never applied to biases and norms.
    pub weight_decay: f64,
    /// Maximum global norm of the gradient, to which larger ones are scaled down; `None` without clipping.
    pub max_gradient_norm: Option<f64>,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// Factors of the learning rate of some tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learning_rate_scales: Vec<LearningRateScale>,
}

/// A factor of the learning rate of the tensors whose names match a pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearningRateScale {
    /// Name of the tensors, in which `*` stands for any text: `h.*.attn.*.weight`.
    pub tensors: String,
    /// The factor.
    pub factor: f64,
}

impl OptimizerSpec {
    /// Returns the factor of the learning rate of a tensor: the first whose pattern matches, or else 1.
    pub fn learning_rate_scale(&self, tensor: &str) -> f64 {
        let matching = self.learning_rate_scales.iter().find(|scale| matches(&scale.tensors, tensor));
        matching.map_or(1.0, |scale| scale.factor)
    }
}

/// Returns whether `name` is `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(end) = parts.next_back() else { return rest.is_empty() };
    let Some(mut rest) = rest.strip_suffix(end) else { return false };
    // The first occurrence of each part leaves the longest rest for the parts after it.
    parts.all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_stands_for_any_text() {
        for (pattern, name, expected) in [
            ("wte.weight", "wte.weight", true),
            ("wte.weight", "wte.weights", false),
            ("h.*.weight", "h.0.attn.qkv.weight", true),
            ("h.*.weight", "h.weight", false),
            ("h.*.attn.*.weight", "h.11.attn.proj.weight", true),
            ("h.*.attn.*.weight", "h.11.mlp.proj.weight", false),
            ("h.*.attn.*.weight", "h.11.attn.proj.bias", false),
            ("*.a.*.b.*", "x.a.a.b.b.y", true),
            ("*.a.*.b.*", "x.b.a.y", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
