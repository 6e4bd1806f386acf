//! The sparsity of a resolved job.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Bytes of a compiled pattern, above which it is rejected: a pattern of a hundred characters needs a few thousand.
const MAX_COMPILED_BYTES: usize = 1 << 18;

/// Weights that are always zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparsitySpec {
    /// Share of the weights of each parameter.
    pub sparsity: f64,
    /// Regular expressions that must match the whole name of a parameter; empty for all matrices but embeddings and the
    /// output layer.
    pub parameters: Vec<String>,
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
    let whole = format!("^(?:{pattern})$");
    RegexBuilder::new(&whole).size_limit(MAX_COMPILED_BYTES).nest_limit(16).build()
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
