//! Resolves `sparsity`.

use super::check::ResolveContext;
use crate::document::{DropFractionParams, DropFractionSetting, MaskUpdateParams, OneOrMany, SparsityParams};
use crate::job::{DropFraction, MaskGrowth, MaskUpdate, SparsitySpec, compile_pattern, regex_of_glob};
use crate::keywords::{DROP_FRACTIONS, SPARSITY_ALGORITHMS, SPARSITY_MASKS};

/// Maximum patterns: every one is compared with every parameter.
const MAX_PATTERNS: usize = 64;
/// Maximum bytes of a pattern.
const MAX_PATTERN_BYTES: usize = 256;
/// Share of weights that become zero, of files that do not give one. Source: the public model zoo.
const DEFAULT_DROP_FRACTION: f64 = 0.3;

pub(super) fn resolve(check: &mut ResolveContext<'_>, section: Option<&SparsityParams>) -> Option<SparsitySpec> {
    let p = section?;
    let older = check.keyword("sparsity.type", p.r#type.as_deref(), None, &SPARSITY_ALGORITHMS);
    let growth = check.keyword("sparsity.algorithm", p.algorithm.as_deref(), older, &SPARSITY_ALGORITHMS);
    check.keyword("sparsity.init_method", p.init_method.as_deref(), (), &SPARSITY_MASKS);
    if p.sparsity.is_none() {
        check.report_missing("sparsity.sparsity", "give the share of zeros, as in sparsity: 0.75");
    }
    let sparsity = check.probability("sparsity.sparsity", p.sparsity, 0.0);
    if p.param_filter.is_some() && p.param_name_patterns.is_some() {
        let message = "is given together with param_filter";
        check.report_invalid("sparsity.param_name_patterns", message, "keep one of the two");
    }
    let globs = patterns(check, "sparsity.param_filter", p.param_filter.as_ref(), regex_of_glob);
    let regexes = patterns(check, "sparsity.param_name_patterns", p.param_name_patterns.as_ref(), str::to_owned);
    let update = growth.map(|growth| mask_update(check, p, growth));
    if update.is_none() {
        note_unused_keys(check, p);
    }
    Some(SparsitySpec { sparsity, parameters: [globs, regexes].concat(), update })
}

fn note_unused_keys(check: &mut ResolveContext<'_>, p: &SparsityParams) {
    let keys = [
        ("drop_fraction", p.drop_fraction.is_some()),
        ("update", p.update.is_some()),
        ("schedule", p.schedule.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        check.note(format!("sparsity.{key} has no effect with algorithm: static"));
    }
}

fn mask_update(check: &mut ResolveContext<'_>, p: &SparsityParams, growth: MaskGrowth) -> MaskUpdate {
    let (key, update) = match (&p.update, &p.schedule) {
        (None, Some(older)) => ("sparsity.schedule", Some(older)),
        (newer, _) => ("sparsity.update", newer.as_ref()),
    };
    if update.is_none() {
        check.report_missing(key, "say at which steps the zeros change, as in update: {freq: 100}");
    }
    let MaskUpdateParams { freq, start, stop, .. } = update.cloned().unwrap_or_default();
    if update.is_some() && freq.is_none() {
        check.report_missing(&format!("{key}.freq"), "give the number of steps between two changes");
    }
    MaskUpdate {
        growth,
        drop_fraction: drop_fraction(check, p.drop_fraction.as_ref()),
        interval: check.count(&format!("{key}.freq"), freq, 1, u32::MAX as usize) as u64,
        start: start.unwrap_or(0),
        stop,
    }
}

fn drop_fraction(check: &mut ResolveContext<'_>, setting: Option<&DropFractionSetting>) -> DropFraction {
    let key = "sparsity.drop_fraction";
    let constant = |initial| DropFraction { initial, minimum: initial, half_period: None };
    let p: &DropFractionParams = match setting {
        None => return constant(DEFAULT_DROP_FRACTION),
        Some(DropFractionSetting::Number(share)) => return constant(check.probability(key, Some(*share), 0.0)),
        Some(DropFractionSetting::Schedule(params)) => params,
    };
    let initial = check.probability(&format!("{key}.init"), p.init, DEFAULT_DROP_FRACTION);
    let minimum = check.probability(&format!("{key}.minimum"), p.minimum, 0.0);
    if !check.keyword(&format!("{key}.type"), p.r#type.as_deref(), false, &DROP_FRACTIONS) {
        return constant(initial);
    }
    if p.half_period.is_none() {
        check.report_missing(&format!("{key}.half_period"), "give the number of steps to the minimum");
    }
    let half_period = check.count(&format!("{key}.half_period"), p.half_period, 1, u32::MAX as usize);
    DropFraction { initial, minimum, half_period: Some(half_period as u64) }
}

/// Checks patterns and returns them as regular expressions.
fn patterns(
    check: &mut ResolveContext<'_>,
    key: &str,
    patterns: Option<&OneOrMany>,
    regex: impl Fn(&str) -> String,
) -> Vec<String> {
    let patterns = patterns.map_or(&[][..], OneOrMany::as_slice);
    if patterns.len() > MAX_PATTERNS {
        let message = format!("has {} patterns", patterns.len());
        check.report_invalid(key, message, format!("give at most {MAX_PATTERNS}"));
        return Vec::new();
    }
    let mut regexes = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        let pattern_regex = regex(pattern);
        if pattern.len() > MAX_PATTERN_BYTES {
            let message = format!("has a pattern of {} bytes", pattern.len());
            check.report_invalid(key, message, format!("give patterns of at most {MAX_PATTERN_BYTES} bytes"));
        } else if compile_pattern(&pattern_regex).is_err() {
            let message = format!("has the pattern \"{pattern}\", which is not a pattern or too large");
            check.report_invalid(key, message, "give a smaller one, as in *linear_layer.weight");
        } else {
            regexes.push(pattern_regex);
        }
    }
    regexes
}
