//! Resolves the model's initializers.

use super::check::ResolveContext;
use super::mup::WidthRatios;
use crate::document::{InitializerParams, InitializerSetting, ModelParams};
use crate::job::{Fan, InitializerSpec, Initializers, ModelFamily, ScalingDistribution};
use crate::keywords::{
    FAN_MODES, INITIALIZERS, InitializerKind, SCALE_TYPES, SCALING_DISTRIBUTIONS, SIZE_KEYS, ScaleType, SizeKey,
};

/// Default of the standard deviation, and of half the width of a uniform distribution.
const DEFAULT_STD: f64 = 0.05;

/// The sizes that initializers may depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct InitializerSizes {
    /// Number of blocks.
    pub layers: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
}

/// Resolves the initializers of a model of these sizes, scaled for muP if there are `ratios`.
pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    p: &ModelParams,
    sizes: InitializerSizes,
    family: ModelFamily,
    ratios: Option<WidthRatios>,
) -> Initializers {
    let range = check.positive("model.initializer_range", p.initializer_range, 0.02);
    let default = InitializerSpec::truncated_normal(range);
    // Two layers of each block add to the residual stream: with this factor its variance stays near that of the
    // embedding.
    let depth = (2.0 * sizes.layers as f64).sqrt();
    let mut read = |key: &str, setting: &Option<InitializerSetting>| match setting {
        None => None,
        Some(InitializerSetting::Detailed(full)) => Some(initializer(check, key, full, sizes)),
        Some(InitializerSetting::Name(name)) => {
            let full = InitializerParams { name: Some(name.clone()), ..InitializerParams::default() };
            Some(initializer(check, key, &full, sizes))
        }
    };
    let embedding = read("model.embedding_initializer", &p.embedding_initializer).unwrap_or(default);
    let hidden = read("model.initializer", &p.initializer).unwrap_or(default);
    let ffn_hidden = read("model.ffn_initializer", &p.ffn_initializer).unwrap_or(hidden);
    let output = read("model.output_layer_initializer", &p.output_layer_initializer);
    let ffn_output = read("model.ffn_output_layer_initializer", &p.ffn_output_layer_initializer);
    let lm_head = InitializerSpec::Normal { mean: 0.0, std: range };
    let Some(WidthRatios { hidden: hidden_ratio, filter: filter_ratio, .. }) = ratios else {
        // Blocks of an encoder normalize their output, so that its variance does not grow with depth.
        let output_range = if family.is_encoder() { range } else { range / depth };
        let output = output.unwrap_or(InitializerSpec::truncated_normal(output_range));
        return initializers(embedding, [hidden, ffn_hidden], [output, ffn_output.unwrap_or(output)], lm_head);
    };
    let [width, filter_width] = [hidden_ratio, filter_ratio].map(|ratio| ratio.sqrt().recip());
    let output = output.unwrap_or(default);
    let is_parallel = matches!(family, ModelFamily::Gptj | ModelFamily::Falcon);
    let ffn_output = ffn_output.unwrap_or(if is_parallel { output } else { default });
    let mut scale = |key: &str, initializer: InitializerSpec, factor: f64| match initializer.scaled(factor) {
        Some(scaled) => scaled,
        None => {
            let message = "is not a normal distribution, which muP needs";
            check.report_invalid(key, message, "use normal or truncated_normal");
            initializer
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

fn initializer(
    check: &mut ResolveContext<'_>,
    key: &str,
    p: &InitializerParams,
    sizes: InitializerSizes,
) -> InitializerSpec {
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
                let message = format!("leaves almost nothing of the distribution between {a} and {b}");
                check.report_invalid(key, message, "widen the bounds a and b");
            }
            InitializerSpec::TruncatedNormal { mean, std, a, b }
        }
        InitializerKind::Uniform => {
            let (a, b) = bounds(check, key, p, DEFAULT_STD);
            InitializerSpec::Uniform { a, b }
        }
        InitializerKind::Constant => InitializerSpec::Constant { val: p.val.unwrap_or(0.0) },
        InitializerKind::Fixed(val) => InitializerSpec::Constant { val },
        InitializerKind::Scaling { scale, fan, distribution } => {
            let gain = check.positive(&format!("{key}.gain"), p.gain, 1.0);
            InitializerSpec::VarianceScaling {
                scale: scale.unwrap_or_else(|| given_scale(check, key, p, sizes)) * gain * gain,
                fan: fan
                    .unwrap_or_else(|| check.keyword(&format!("{key}.mode"), p.mode.as_deref(), Fan::In, &FAN_MODES)),
                distribution: distribution.unwrap_or_else(|| {
                    let default = ScalingDistribution::TruncatedNormal;
                    let key = format!("{key}.distribution");
                    check.keyword(&key, p.distribution.as_deref(), default, &SCALING_DISTRIBUTIONS)
                }),
            }
        }
        InitializerKind::ByModelSize => {
            let size = check.keyword(&format!("{key}.key"), p.key.as_deref(), SizeKey::Vocabulary, &SIZE_KEYS);
            let size = match size {
                SizeKey::Vocabulary => sizes.vocabulary,
                SizeKey::Hidden => sizes.hidden,
            };
            InitializerSpec::Normal { mean: 0.0, std: (size.max(1) as f64).sqrt().recip() }
        }
    }
}

/// Returns the scale of `variance_scaling`.
fn given_scale(check: &mut ResolveContext<'_>, key: &str, p: &InitializerParams, sizes: InitializerSizes) -> f64 {
    let scale = check.positive(&format!("{key}.scale"), p.scale, 1.0);
    let Some(name) = p.scale_type.as_deref() else { return scale };
    if p.scale.is_some() {
        check.report_invalid(&format!("{key}.scale_type"), "is given beside scale", "leave one of them out");
    }
    match check.keyword(&format!("{key}.scale_type"), Some(name), ScaleType::Small, &SCALE_TYPES) {
        ScaleType::Small => 0.4,
        ScaleType::Wang => 4.0 / (sizes.layers.max(1) as f64).powi(2),
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
        InitializerKind::Scaling { scale: None, .. } => &["scale", "scale_type", "mode", "distribution"],
        InitializerKind::Scaling { fan: Some(_), .. } => &["gain"],
        InitializerKind::Scaling { .. } => &["mode"],
        InitializerKind::ByModelSize => &["key"],
    };
    let arguments = [
        ("mean", p.mean.is_some()),
        ("std", p.std.is_some()),
        ("a", p.a.is_some()),
        ("b", p.b.is_some()),
        ("val", p.val.is_some()),
        ("scale", p.scale.is_some()),
        ("scale_type", p.scale_type.is_some()),
        ("mode", p.mode.is_some()),
        ("distribution", p.distribution.is_some()),
        ("gain", p.gain.is_some()),
        ("key", p.key.is_some()),
    ];
    for (argument, is_given) in arguments {
        if is_given && !used.contains(&argument) {
            let name = p.name.as_deref().unwrap_or_default();
            check.report_invalid(&format!("{key}.{argument}"), format!("has no meaning for {name}"), "leave it out");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlagOverrides, Params, ParamsError};

    /// Resolves the initializer of the hidden layers of a model of 10 blocks.
    fn hidden(value: &str) -> Result<InitializerSpec, ParamsError> {
        let text = format!(
            "train_input: {{data_processor: GptTokenDataProcessor, data_files: x, batch_size: 8}}\n\
             model: {{vocab_size: 400, hidden_size: 64, num_hidden_layers: 10, num_heads: 4, initializer: {value}}}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1}}\nrunconfig: {{max_steps: 1}}\n"
        );
        Ok(Params::parse_yaml(&text)?.resolve(&FlagOverrides::default())?.job.model.initializers.hidden)
    }

    #[test]
    fn initializers_that_depend_on_sizes_are_resolved() {
        let scaled = |scale, fan, distribution| InitializerSpec::VarianceScaling { scale, fan, distribution };
        for (value, expected) in [
            ("variance_scaling", scaled(1.0, Fan::In, ScalingDistribution::TruncatedNormal)),
            (
                "{name: variance_scaling, scale: 3, mode: fan_out, distribution: normal}",
                scaled(3.0, Fan::Out, ScalingDistribution::Normal),
            ),
            ("[{name: variance_scaling, scale_type: small_init}]", scaled(0.4, Fan::In, TRUNCATED)),
            ("{name: variance_scaling, scale_type: wang_init}", scaled(0.04, Fan::In, TRUNCATED)),
            ("{name: xavier_uniform, gain: 2}", scaled(4.0, Fan::Average, ScalingDistribution::Uniform)),
            ("kaiming_normal", scaled(2.0, Fan::In, ScalingDistribution::Normal)),
            ("lecun_normal", scaled(1.0, Fan::In, TRUNCATED)),
            ("[{name: scaled_init_normal, key: vocab_size}]", InitializerSpec::Normal { mean: 0.0, std: 0.05 }),
        ] {
            assert_eq!(hidden(value).unwrap(), expected, "{value}");
        }
    }

    const TRUNCATED: ScalingDistribution = ScalingDistribution::TruncatedNormal;

    #[test]
    fn arguments_that_do_not_fit_are_rejected() {
        for (value, message) in [
            ("{name: variance_scaling, std: 1}", "model.initializer.std has no meaning for variance_scaling"),
            ("{name: variance_scaling, scale: 0}", "model.initializer.scale is 0"),
            ("{name: variance_scaling, scale: 1, scale_type: wang_init}", "scale_type is given beside scale"),
            ("{name: variance_scaling, mode: fan}", "model.initializer.mode is \"fan\""),
            ("{name: xavier_normal, mode: fan_in}", "model.initializer.mode has no meaning"),
            ("{name: scaled_init_normal, key: seed}", "model.initializer.key is \"seed\""),
            ("[normal, normal]", "model.initializer must be an initializer's name"),
        ] {
            let error = hidden(value).unwrap_err().report();
            assert!(error.contains(message), "{value}: {error}");
        }
    }
}
