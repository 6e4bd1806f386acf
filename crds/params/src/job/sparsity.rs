//! The sparsity of a resolved job.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Bytes of a compiled pattern, above which it is rejected: a pattern of a hundred characters needs a few thousand.
const MAX_COMPILED_BYTES: usize = 1 << 18;

/// Weights that are zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparsitySpec {
    /// Share of the weights of each parameter.
    pub sparsity: f64,
    /// Regular expressions that must match the whole name of a parameter; empty for all matrices but embeddings and the
    /// output layer.
    pub parameters: Vec<String>,
    /// When and how the zeros change; `None` if they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<MaskUpdate>,
}

/// Changes of the zeros of sparse weights. At a change, the smallest weights become zero, and as many others, which
/// were or became zero, begin to train.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MaskUpdate {
    /// How the weights that begin to train are chosen.
    pub growth: MaskGrowth,
    /// Share of the weights that are not zero which become zero.
    pub drop_fraction: DropFraction,
    /// Steps between two changes; at least 1.
    pub interval: u64,
    /// Step of the first change. After step 0 there is none.
    pub start: u64,
    /// Step from which on there are no changes; `None` for the end of the run.
    pub stop: Option<u64>,
}

/// How the weights that begin to train are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaskGrowth {
    /// At random, as a function of the seed (SET).
    Random,
    /// Those whose gradients are largest (RigL).
    Gradient,
}

/// A share of weights as a function of the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DropFraction {
    /// The share at step 0.
    pub initial: f64,
    /// The share from step `half_period` on.
    pub minimum: f64,
    /// Number of steps in which the share follows half a cosine to the minimum; `None` if it is constant.
    pub half_period: Option<u64>,
}

impl MaskUpdate {
    /// Returns whether the zeros change after step `step`, whose update of the weights is done.
    pub const fn is_due(&self, step: u64) -> bool {
        let before_stop = match self.stop {
            Some(stop) => step < stop,
            None => true,
        };
        step > 0 && step >= self.start && before_stop && (step - self.start).is_multiple_of(self.interval)
    }
}

/// The compiled patterns of a [`SparsitySpec`].
#[derive(Debug, Clone)]
pub struct ParameterFilter(Vec<(String, Regex)>);

impl SparsitySpec {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// A pattern is not a regular expression, or too large.
    pub fn filter(&self) -> Result<ParameterFilter, regex::Error> {
        let compiled = self.parameters.iter().map(|pattern| Ok((pattern.clone(), compile(pattern)?)));
        compiled.collect::<Result<_, _>>().map(ParameterFilter)
    }
}

impl ParameterFilter {
    /// Returns the patterns.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(pattern, _)| pattern.as_str())
    }

    /// Returns whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the position of the first pattern that matches the name.
    pub fn first_match(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|(_, regex)| regex.is_match(name))
    }
}

/// Compiles a pattern of whole names. Matching takes time linear in the name.
pub(crate) fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    let anchored = format!("^(?:{pattern})$");
    RegexBuilder::new(&anchored).size_limit(MAX_COMPILED_BYTES).nest_limit(16).build()
}

/// Returns the regular expression of a pattern with `*`, `?` and `[abc]`.
pub(crate) fn regex_of_glob(glob: &str) -> String {
    let mut regex = String::new();
    let mut rest = glob;
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match (next, rest.find(']')) {
            ('*', _) => regex.push_str(".*"),
            ('?', _) => regex.push('.'),
            ('[', Some(end)) if end > 0 => {
                let (class, after) = rest.split_at(end);
                let (not, class) = class.strip_prefix('!').map_or(("", class), |class| ("^", class));
                regex.push_str(&format!("[{not}{}]", class.replace(['[', '\\', '^', '&', '~'], "")));
                rest = after.get(1..).unwrap_or_default();
            }
            _ => regex.push_str(&regex::escape(&next.to_string())),
        }
    }
    regex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        for (glob, name, expected) in [
            ("*proj_[qkv]_dense_layer.weight", "layers.0.proj_q_dense_layer.weight", true),
            ("*proj_[qkv]_dense_layer.weight", "layers.0.proj_o_dense_layer.weight", false),
            ("*proj_[!qkv]_dense_layer.weight", "layers.0.proj_o_dense_layer.weight", true),
            ("*linear_layer.weight", "a.linear_layer.weight", true),
            ("*linear_layer.weight", "a.linear_layerxweight", false),
            ("linear_layer.weight", "a.linear_layer.weight", false),
            ("h.?.weight", "h.3.weight", true),
            ("h.?.weight", "h.13.weight", false),
            ("(a|b)+", "(a|b)+", true),
            ("[", "[", true),
        ] {
            let matches = compile(&regex_of_glob(glob)).unwrap().is_match(name);
            assert_eq!(matches, expected, "{glob} {name}");
        }
    }

    #[test]
    fn hostile_patterns_are_rejected() {
        for pattern in ["(a", "a{1000}{1000}", "((((((((((((((((((((a))))))))))))))))))))", "\\p{L}{9999}"] {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
    }
}
