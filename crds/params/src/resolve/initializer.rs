//! Resolves the model's initializers.

use super::check::ResolveContext;
use super::mup::WidthRatios;
use crate::document::{InitializerParams, InitializerSetting, ModelParams};
use crate::job::{InitializerSpec, Initializers, ModelFamily};
use crate::keywords::{INITIALIZERS, InitializerKind};

/// Default of the standard deviation, and of half the width of a uniform distribution.
const DEFAULT_STD: f64 = 0.05;

/// Resolves the initializers of a model with this number of blocks, scaled for muP if there are `ratios`.
pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    p: &ModelParams,
    layers: usize,
    family: ModelFamily,
    ratios: Option<WidthRatios>,
) -> Initializers {
    let range = check.positive("model.initializer_range", p.initializer_range, 0.02);
    let default = InitializerSpec::truncated_normal(range);
    // Two layers of each block add to the residual stream: with this factor its variance stays near that of the
    // embedding.
    let depth = (2.0 * layers as f64).sqrt();
    let mut read = |key: &str, given: &Option<InitializerSetting>| match given {
        None => None,
        Some(InitializerSetting::Detailed(full)) => Some(initializer(check, key, full)),
        Some(InitializerSetting::Name(name)) => {
            let full = InitializerParams { name: Some(name.clone()), ..InitializerParams::default() };
            Some(initializer(check, key, &full))
        }
    };
    let embedding = read("model.embedding_initializer", &p.embedding_initializer).unwrap_or(default);
    let hidden = read("model.initializer", &p.initializer).unwrap_or(default);
    let ffn_hidden = read("model.ffn_initializer", &p.ffn_initializer).unwrap_or(hidden);
    let output = read("model.output_layer_initializer", &p.output_layer_initializer);
    let ffn_output = read("model.ffn_output_layer_initializer", &p.ffn_output_layer_initializer);
    let lm_head = InitializerSpec::Normal { mean: 0.0, std: range };
    let Some(WidthRatios { hidden: hidden_ratio, filter: filter_ratio }) = ratios else {
        // Blocks of an encoder normalize their output, so that its variance does not grow with depth.
        let output_range = if family.is_encoder() { range } else { range / depth };
        let output = output.unwrap_or(InitializerSpec::truncated_normal(output_range));
        return initializers(embedding, [hidden, ffn_hidden], [output, ffn_output.unwrap_or(output)], lm_head);
    };
    let [width, filter_width] = [hidden_ratio, filter_ratio].map(|ratio| ratio.sqrt().recip());
    let output = output.unwrap_or(default);
    let is_parallel = matches!(family, ModelFamily::Gptj | ModelFamily::Falcon);
    let ffn_output = ffn_output.unwrap_or(if is_parallel { output } else { default });
    let mut scale = |key: &str, given: InitializerSpec, factor: f64| match given.scaled(factor) {
        Some(scaled) => scaled,
        None => {
            let says = "is not a normal distribution, which muP needs";
            check.report_invalid(key, says, "use normal or truncated_normal");
            given
        }
    };
    let hidden = scale("model.initializer", hidden, width);
    let ffn_hidden = scale("model.ffn_initializer", ffn_hidden, width);
    let output = scale("model.output_layer_initializer", output, width / depth);
    let ffn_output = scale("model.ffn_output_layer_initializer", ffn_output, filter_width / depth);
    initializers(embedding, [hidden, ffn_hidden], [output, ffn_output], lm_head)
}

/// Returns the initializers of all weights. Those of the feed-forward network are listed only where they differ.
fn initializers(
    embedding: InitializerSpec,
    [hidden, ffn_hidden]: [InitializerSpec; 2],
    [residual_output, ffn_output]: [InitializerSpec; 2],
    lm_head: InitializerSpec,
) -> Initializers {
    Initializers {
        embedding,
        hidden,
        ffn_hidden: (ffn_hidden != hidden).then_some(ffn_hidden),
        residual_output,
        ffn_output: (ffn_output != residual_output).then_some(ffn_output),
        lm_head,
    }
}

fn initializer(check: &mut ResolveContext<'_>, key: &str, p: &InitializerParams) -> InitializerSpec {
    if p.name.is_none() {
        check.report_missing(&format!("{key}.name"), "name an initializer, as in name: truncated_normal");
        return InitializerSpec::Constant { val: 0.0 };
    }
    let kind = check.keyword(key, p.name.as_deref(), InitializerKind::TruncatedNormal, &INITIALIZERS);
    refuse_foreign_arguments(check, key, p, kind);
    let mean = p.mean.unwrap_or(0.0);
    let std = check.non_negative(&format!("{key}.std"), p.std, DEFAULT_STD);
    match kind {
        InitializerKind::Normal => InitializerSpec::Normal { mean, std },
        InitializerKind::TruncatedNormal => {
            let (a, b) = bounds(check, key, p, 2.0 * std);
            // Drawing again must end: with bounds far from the mean, or close to each other, it would take too long.
            if std > 0.0 && a <= b && (mean + 4.0 * std < a || mean - 4.0 * std > b || b - a < 0.01 * std) {
                let says = format!("leaves almost nothing of the distribution between {a} and {b}");
                check.report_invalid(key, says, "widen the bounds a and b");
            }
            InitializerSpec::TruncatedNormal { mean, std, a, b }
        }
        InitializerKind::Uniform => {
            let (a, b) = bounds(check, key, p, DEFAULT_STD);
            InitializerSpec::Uniform { a, b }
        }
        InitializerKind::Constant => InitializerSpec::Constant { val: p.val.unwrap_or(0.0) },
        InitializerKind::Fixed(val) => InitializerSpec::Constant { val },
    }
}

fn bounds(check: &mut ResolveContext<'_>, key: &str, p: &InitializerParams, spread: f64) -> (f64, f64) {
    let (a, b) = (p.a.unwrap_or(-spread), p.b.unwrap_or(spread));
    if a > b {
        check.report_invalid(
            &format!("{key}.a"),
            format!("is {a}, above the upper bound {b}"),
            "give the lower bound as a",
        );
    }
    (a, b)
}

/// Rejects arguments that the initializer does not have: either the argument or the initializer is a mistake.
fn refuse_foreign_arguments(check: &mut ResolveContext<'_>, key: &str, p: &InitializerParams, kind: InitializerKind) {
    let used: &[&str] = match kind {
        InitializerKind::Normal => &["mean", "std"],
        InitializerKind::TruncatedNormal => &["mean", "std", "a", "b"],
        InitializerKind::Uniform => &["a", "b"],
        InitializerKind::Constant => &["val"],
        InitializerKind::Fixed(_) => &[],
    };
    for (argument, given) in [("mean", p.mean), ("std", p.std), ("a", p.a), ("b", p.b), ("val", p.val)] {
        if given.is_some() && !used.contains(&argument) {
            let name = p.name.as_deref().unwrap_or_default();
            check.report_invalid(&format!("{key}.{argument}"), format!("has no meaning for {name}"), "leave it out");
        }
    }
}
