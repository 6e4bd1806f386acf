//! The optimizer of a resolved job.

use serde::{Deserialize, Serialize};

use super::{MomentumSchedule, Schedule};
use crate::optimizers::OptimizerKind;

/// The optimizer: how a committed step changes the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSpec {
    /// The algorithm.
    pub kind: OptimizerKind,
    /// Weight decay: decoupled for AdamW, added to the gradient for Adam and SGD; applied to biases and norms only in
    /// groups.
    pub weight_decay: f64,
    /// Maximum global norm of the gradient, to which larger ones are scaled down; `None` without clipping.
    pub max_gradient_norm: Option<f64>,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// The momentum of each step; `None` for that of the algorithm at every step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub momentum_schedule: Option<MomentumSchedule>,
    /// Whether the loss is maximized.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maximize: bool,
    /// Factors of the learning rate of some tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learning_rate_scales: Vec<LearningRateScale>,
    /// Groups of tensors with settings of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<OptimizerGroup>,
}

/// A group of tensors with settings of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerGroup {
    /// Names of the tensors, in which `*` stands for any text.
    pub tensors: Vec<String>,
    /// Weight decay; `None` for that of the optimizer, without biases and norms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Factor of the learning rate; `None` for that of the learning rate scales.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate_factor: Option<f64>,
    /// The momentum of each step; `None` for that of the optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub momentum_schedule: Option<MomentumSchedule>,
}

/// The settings of one tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TensorSettings {
    /// Factor of the learning rate.
    pub learning_rate_factor: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Index of its group in [`OptimizerSpec::groups`].
    pub group: Option<usize>,
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
    /// Returns the settings of a tensor: those of the first group with a matching name, or else of the optimizer.
    /// `decays` is whether weight decay applies to the tensor outside groups.
    pub fn tensor_settings(&self, tensor: &str, decays: bool) -> TensorSettings {
        let has_tensor = |group: &OptimizerGroup| group.tensors.iter().any(|pattern| matches(pattern, tensor));
        let index = self.groups.iter().position(has_tensor);
        let group = index.and_then(|index| self.groups.get(index));
        let factor = group.and_then(|group| group.learning_rate_factor);
        let decay = group.and_then(|group| group.weight_decay);
        TensorSettings {
            learning_rate_factor: factor.unwrap_or_else(|| self.learning_rate_scale(tensor)),
            weight_decay: decay.unwrap_or(if decays { self.weight_decay } else { 0.0 }),
            group: index,
        }
    }

    /// Returns the momentum of each step for the tensors of a group, or for those of none. `None` for that of the
    /// algorithm at every step.
    pub fn momentum_schedule(&self, group: Option<usize>) -> Option<&MomentumSchedule> {
        let group = group.and_then(|index| self.groups.get(index));
        group.and_then(|group| group.momentum_schedule.as_ref()).or(self.momentum_schedule.as_ref())
    }

    /// Returns the first name in a group that matches none of `tensors`.
    pub fn unknown_group_member<'a>(&self, tensors: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        let mut patterns = self.groups.iter().flat_map(|group| &group.tensors);
        let unknown = patterns.find(|pattern| !tensors.clone().any(|tensor| matches(pattern, tensor)));
        unknown.map(String::as_str)
    }

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
    use crate::Params;

    #[test]
    fn first_group_with_a_tensor_has_its_settings() {
        let text = "train_input: {data_processor: GptTokenDataProcessor, data_files: x, batch_size: 8}\n\
            model: {vocab_size: 50257, hidden_size: 64, num_hidden_layers: 2, num_heads: 1}\n\
            optimizer: {optimizer_type: AdamW, learning_rate: 0.1, weight_decay: 0.5, \
            momentum_schedule: {steps: [0], values: [0.25]}, \
            adjust_learning_rate: {embedding: 2}, params: [{params: wte.weight, weight_decay: 0}, \
            {params: ['*.bias', wte.weight], learning_rate_factor: 3, weight_decay: 0.25, \
            momentum_schedule: {steps: [0], values: [0.5]}}]}\n\
            runconfig: {max_steps: 1}\n";
        let resolve = |text: &str| Params::parse_yaml(text)?.resolve(&crate::FlagOverrides::default());
        let optimizer = resolve(text).unwrap().job.optimizer;
        for (tensor, decays, learning_rate_factor, weight_decay, group, momentum) in [
            ("wte.weight", true, 2.0, 0.0, Some(0), 0.25),
            ("h.0.ln_1.bias", false, 3.0, 0.25, Some(1), 0.5),
            ("h.0.ln_1.weight", false, 1.0, 0.0, None, 0.25),
            ("h.0.attn.qkv.weight", true, 1.0, 0.5, None, 0.25),
        ] {
            let settings = TensorSettings { learning_rate_factor, weight_decay, group };
            assert_eq!(optimizer.tensor_settings(tensor, decays), settings, "{tensor}");
            assert_eq!(optimizer.momentum_schedule(group).map(|schedule| schedule.at(9)), Some(momentum), "{tensor}");
        }
        assert_eq!(optimizer.unknown_group_member(["wte.weight", "a.bias"].into_iter()), None);
        assert_eq!(optimizer.unknown_group_member(["wte.weight"].into_iter()), Some("*.bias"));
        for (bad, key) in [
            ("weight_decay: 0}", "weight_decay: -1}"),
            ("learning_rate_factor: 3", "learning_rate_factor: -3"),
            ("params: wte.weight", "params: []"),
        ] {
            let error = resolve(&text.replacen(bad, key, 1)).unwrap_err().report();
            assert!(error.contains("optimizer.params"), "{key}: {error}");
        }
    }

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
