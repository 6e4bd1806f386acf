//! Resolves `sparsity`.

use super::check::ResolveContext;
use crate::document::{OneOrMany, SparsityParams};
use crate::job::{SparsitySpec, compile_pattern, regex_of_glob};
use crate::keywords::{SPARSITY_ALGORITHMS, SPARSITY_MASKS};

/// Maximum patterns: every one is compared with every parameter.
const MAX_PATTERNS: usize = 64;
/// Maximum bytes of a pattern.
const MAX_PATTERN_BYTES: usize = 256;

pub(super) fn resolve(check: &mut ResolveContext<'_>, given: Option<&SparsityParams>) -> Option<SparsitySpec> {
    let p = given?;
    for (key, algorithm) in [("sparsity.algorithm", &p.algorithm), ("sparsity.type", &p.r#type)] {
        check.keyword(key, algorithm.as_deref(), (), &SPARSITY_ALGORITHMS);
    }
    check.keyword("sparsity.init_method", p.init_method.as_deref(), (), &SPARSITY_MASKS);
    if p.sparsity.is_none() {
        check.report_missing("sparsity.sparsity", "give the share of zeros, as in sparsity: 0.75");
    }
    let sparsity = check.probability("sparsity.sparsity", p.sparsity, 0.0);
    if p.param_filter.is_some() && p.param_name_patterns.is_some() {
        let says = "is given together with param_filter";
        check.report_invalid("sparsity.param_name_patterns", says, "keep one of the two");
    }
    let globs = patterns(check, "sparsity.param_filter", p.param_filter.as_ref(), regex_of_glob);
    let regexes = patterns(check, "sparsity.param_name_patterns", p.param_name_patterns.as_ref(), str::to_owned);
    Some(SparsitySpec { sparsity, parameters: [globs, regexes].concat() })
}

/// Checks patterns and returns them as regular expressions.
fn patterns(
    check: &mut ResolveContext<'_>,
    key: &str,
    given: Option<&OneOrMany>,
    regex: impl Fn(&str) -> String,
) -> Vec<String> {
    let given = given.map_or(&[][..], OneOrMany::as_slice);
    if given.len() > MAX_PATTERNS {
        let says = format!("has {} patterns", given.len());
        check.report_invalid(key, says, format!("give at most {MAX_PATTERNS}"));
        return Vec::new();
    }
    let mut regexes = Vec::with_capacity(given.len());
    for pattern in given {
        let pattern_regex = regex(pattern);
        if pattern.len() > MAX_PATTERN_BYTES {
            let says = format!("has a pattern of {} bytes", pattern.len());
            check.report_invalid(key, says, format!("give patterns of at most {MAX_PATTERN_BYTES} bytes"));
        } else if compile_pattern(&pattern_regex).is_err() {
            let says = format!("has the pattern \"{pattern}\", which is not a pattern or too large");
            check.report_invalid(key, says, "give a smaller one, as in *linear_layer.weight");
        } else {
            regexes.push(pattern_regex);
        }
    }
    regexes
}
