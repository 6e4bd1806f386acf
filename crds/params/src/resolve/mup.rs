//! Resolves muP (maximal update parametrization): what follows from the sizes of the base model, and the factors of
//! the learning rates, which also have keys of their own.
//!
//! * With m for the ratio of a width to that of the base model, the logits are multiplied by `output_logits_alpha` / m,
//!   learning rates of weights by 1 / m, and standard deviations of initial values by 1 / sqrt(m).
//! * T5 has keys of its own for the base model, and further scales: see `seq2seq`.
//! * Without sizes of the base model, nothing differs from the standard parametrization.

use super::check::ResolveContext;
use crate::document::{LearningRateScaleParams, ModelParams};
use crate::job::{LearningRateScale, ModelSpec};
use crate::yaml::ParamsSection as _;

const ATTENTION: &str = "h.*.attn.*.weight";
const INPUT_FFN: &[&str] = &["h.*.mlp.fc.weight", "h.*.mlp.gate.weight"];
const OUTPUT_FFN: &str = "h.*.mlp.proj.weight";
const KERNEL: &[&str] = &[ATTENTION, INPUT_FFN[0], INPUT_FFN[1], OUTPUT_FFN];

/// A key of `adjust_learning_rate`: its value, its default, and the weights that it scales.
type Group = (&'static str, Option<f64>, f64, &'static [&'static str]);

/// The widths of a model relative to those of the base model of muP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WidthRatios {
    /// Of the residual stream.
    pub hidden: f64,
    /// Of the feed-forward network.
    pub filter: f64,
    /// Of a head of T5, if its base model has other heads.
    pub head: Option<f64>,
}

/// Resolves the sizes of the base model, for a model with these widths; `None` for the standard parametrization.
pub(super) fn width_ratios(
    check: &mut ResolveContext<'_>,
    p: &ModelParams,
    hidden_size: usize,
    filter_size: usize,
) -> Option<WidthRatios> {
    let base_hidden = check.positive("model.mup_base_hidden_size", p.mup_base_hidden_size, 1.0);
    let base_filter = check.positive("model.mup_base_filter_size", p.mup_base_filter_size, 1.0);
    match (p.mup_base_hidden_size, p.mup_base_filter_size) {
        (None, None) => {
            note_unused_keys(check, p);
            return None;
        }
        (Some(_), None) => check.report_missing("model.mup_base_filter_size", "muP needs both sizes of the base model"),
        (None, Some(_)) => check.report_missing("model.mup_base_hidden_size", "muP needs both sizes of the base model"),
        (Some(_), Some(_)) => {}
    }
    if p.output_logits_scale.is_some() {
        let message = "excludes mup_base_hidden_size, which is given too";
        check.report_invalid("model.output_logits_scale", message, "use output_logits_alpha");
    }
    Some(WidthRatios { hidden: hidden_size as f64 / base_hidden, filter: filter_size as f64 / base_filter, head: None })
}

fn note_unused_keys(check: &mut ResolveContext<'_>, p: &ModelParams) {
    let value = [
        ("output_logits_alpha", p.output_logits_alpha.is_some()),
        ("scale_output_logits_by_d", p.scale_output_logits_by_d.is_some()),
    ];
    for (key, _) in value.into_iter().filter(|(_, is_given)| *is_given) {
        check.note(format!("model.{key} has no effect without mup_base_hidden_size"));
    }
}

/// Returns the factor of the logits.
pub(super) fn logits_scale(check: &mut ResolveContext<'_>, p: &ModelParams, ratios: Option<WidthRatios>) -> f64 {
    let alpha = check.positive("model.output_logits_alpha", p.output_logits_alpha, 1.0);
    let Some(WidthRatios { hidden, .. }) = ratios else {
        return check.positive("model.output_logits_scale", p.output_logits_scale, 1.0);
    };
    let by_width = p.scale_output_logits_by_d.unwrap_or(true);
    alpha / if by_width { hidden } else { hidden.sqrt() }
}

/// Returns the factors of learning rates: those of `adjust_learning_rate`, or else those of muP.
pub(super) fn learning_rate_scales(
    check: &mut ResolveContext<'_>,
    params: Option<&LearningRateScaleParams>,
    ratios: Option<WidthRatios>,
    model: &ModelSpec,
) -> Vec<LearningRateScale> {
    let none = LearningRateScaleParams::default();
    let params = params.unwrap_or(&none);
    let groups = match (&model.seq2seq, &model.encoder) {
        (Some(_), _) => groups_of_seq2seq(params, ratios),
        (None, Some(_)) => groups_of_encoder(params, ratios),
        (None, None) => groups_of_decoder(params, ratios),
    };
    for key in params.given_keys().into_iter().filter(|key| groups.iter().all(|(group, ..)| group != key)) {
        let message = format!("names no weights of a {:?}", model.family);
        let names: Vec<&str> = groups.iter().map(|(group, ..)| *group).collect();
        let hint = format!("use {}", names.join(", "));
        check.report_invalid(&format!("optimizer.adjust_learning_rate.{key}"), message, hint);
    }
    let mut scales = Vec::new();
    for (group, factor, default, patterns) in groups {
        let factor = check.non_negative(&format!("optimizer.adjust_learning_rate.{group}"), factor, default);
        if factor != 1.0 {
            scales.extend(patterns.iter().map(|tensors| LearningRateScale { tensors: (*tensors).to_owned(), factor }));
        }
    }
    scales
}

fn groups_of_decoder(params: &LearningRateScaleParams, ratios: Option<WidthRatios>) -> Vec<Group> {
    let by_hidden = ratios.map_or(1.0, |ratios| ratios.hidden.recip());
    let by_filter = ratios.map_or(1.0, |ratios| ratios.filter.recip());
    vec![
        ("embedding", params.embedding, 1.0, &["wte.weight", "wpe.weight", "ln_embed.weight"]),
        ("decoder_kernel", params.decoder_kernel, 1.0, KERNEL),
        ("decoder_qkv_projection", params.decoder_qkv_projection, 1.0, &["h.*.attn.qkv.weight"]),
        ("decoder_output_projection", params.decoder_output_projection, 1.0, &["h.*.attn.proj.weight"]),
        ("decoder_attention", params.decoder_attention, by_hidden, &[ATTENTION]),
        ("decoder_input_ffn", params.decoder_input_ffn, by_hidden, INPUT_FFN),
        ("decoder_output_ffn", params.decoder_output_ffn, by_filter, &[OUTPUT_FFN]),
        ("lm_head", params.lm_head, 1.0, &["lm_head.weight"]),
    ]
}

/// Returns the groups of an encoder. Its blocks have the tensors of a decoder's, whose keys it has, too.
fn groups_of_encoder(params: &LearningRateScaleParams, ratios: Option<WidthRatios>) -> Vec<Group> {
    let mut groups: Vec<Group> = vec![
        ("encoder_attention", params.encoder_attention, 1.0, &[ATTENTION]),
        ("encoder_input_ffn", params.encoder_input_ffn, 1.0, INPUT_FFN),
        ("encoder_output_ffn", params.encoder_output_ffn, 1.0, &[OUTPUT_FFN]),
        ("pooler", params.pooler, 1.0, &["pooler.weight"]),
    ];
    groups.extend(groups_of_decoder(params, ratios));
    groups
}

fn groups_of_seq2seq(params: &LearningRateScaleParams, ratios: Option<WidthRatios>) -> Vec<Group> {
    let by_hidden = ratios.map_or(1.0, |ratios| ratios.hidden.recip());
    let by_filter = ratios.map_or(1.0, |ratios| ratios.filter.recip());
    let by_root = by_hidden.sqrt();
    // With heads of another width, the projections are hidden weights like others.
    let (projection, output) = match ratios.and_then(|ratios| ratios.head) {
        None => (by_root, by_root),
        Some(head) => (by_hidden, head.recip()),
    };
    vec![
        ("embedding", params.embedding, by_root, &["*.wte.weight", "*.relative.weight"]),
        (
            "encoder_qkv_projection",
            params.encoder_qkv_projection,
            projection,
            &["encoder.*.attn.q.weight", "encoder.*.attn.kv.weight"],
        ),
        ("encoder_output_projection", params.encoder_output_projection, output, &["encoder.*.attn.proj.weight"]),
        (
            "encoder_input_ffn",
            params.encoder_input_ffn,
            by_hidden,
            &["encoder.*.mlp.fc.weight", "encoder.*.mlp.gate.weight"],
        ),
        ("encoder_output_ffn", params.encoder_output_ffn, by_filter, &["encoder.*.mlp.proj.weight"]),
        (
            "decoder_qkv_projection",
            params.decoder_qkv_projection,
            projection,
            &[
                "decoder.*.attn.q.weight",
                "decoder.*.attn.kv.weight",
                "decoder.*.cross.q.weight",
                "decoder.*.cross.kv.weight",
            ],
        ),
        (
            "decoder_output_projection",
            params.decoder_output_projection,
            output,
            &["decoder.*.attn.proj.weight", "decoder.*.cross.proj.weight"],
        ),
        (
            "decoder_input_ffn",
            params.decoder_input_ffn,
            by_hidden,
            &["decoder.*.mlp.fc.weight", "decoder.*.mlp.gate.weight"],
        ),
        ("decoder_output_ffn", params.decoder_output_ffn, by_filter, &["decoder.*.mlp.proj.weight"]),
        ("lm_head", params.lm_head, by_root, &["lm_head.weight"]),
    ]
}

#[cfg(test)]
mod tests {
    use crate::{FlagOverrides, InitializerSpec, JobSpec, Params, ParamsError};

    /// Resolves a model of 6 blocks, 1024 wide with a feed-forward network of 8192.
    fn job(model: &[&str], optimizer: &str) -> Result<JobSpec, ParamsError> {
        let text = format!(
            "train_input: {{data_processor: GptTokenDataProcessor, data_files: x, batch_size: 8}}\n\
             model:\n  vocab_size: 50257\n  hidden_size: 1024\n  filter_size: 8192\n  num_hidden_layers: 6\n  \
             num_heads: 8\n  {}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1{optimizer}}}\nrunconfig: {{max_steps: 1}}\n",
            model.join("\n  ")
        );
        Ok(Params::parse_yaml(&text)?.resolve(&FlagOverrides::default())?.job)
    }

    const BASE: [&str; 2] = ["mup_base_hidden_size: 256", "mup_base_filter_size: 512"];

    fn normal(std: f64) -> InitializerSpec {
        InitializerSpec::Normal { mean: 0.0, std }
    }

    /// Compares with the formulas of the public model zoo: ratios of 4 and 16, a depth of 6.
    #[test]
    fn base_sizes_scale_initial_values_logits_and_rates() {
        let keys = [
            "initializer: {name: normal, std: 0.5}",
            "embedding_initializer: {name: normal, std: 0.25}",
            "output_layer_initializer: {name: truncated_normal, std: 0.75, a: -1, b: 2}",
            "ffn_output_layer_initializer: {name: normal, std: 0.125}",
            "output_logits_alpha: 3",
        ];
        let job = job(&[&BASE[..], &keys].concat(), "").unwrap();
        let depth = 12f64.sqrt();
        let initializers = &job.model.initializers;
        assert_eq!((initializers.embedding, initializers.hidden), (normal(0.25), normal(0.25)));
        assert_eq!(initializers.ffn_hidden, None);
        let InitializerSpec::TruncatedNormal { std, a, b, .. } = initializers.residual_output else { panic!() };
        for (found, expected) in [(std, 0.75), (a, -1.0), (b, 2.0)] {
            assert!((found - expected / 2.0 / depth).abs() < 1e-15, "{found}");
        }
        let Some(InitializerSpec::Normal { std, .. }) = initializers.ffn_output else { panic!() };
        assert!((std - 0.125 / 4.0 / depth).abs() < 1e-15, "{std}");
        assert_eq!(job.model.decoder.logits_scale, 3.0 / 4.0);
        let scales = [
            ("wte.weight", 1.0),
            ("h.3.attn.qkv.weight", 0.25),
            ("h.3.attn.proj.weight", 0.25),
            ("h.3.mlp.fc.weight", 0.25),
            ("h.3.mlp.gate.weight", 0.25),
            ("h.3.mlp.proj.weight", 0.0625),
            ("h.3.mlp.proj.bias", 1.0),
            ("h.3.ln_1.weight", 1.0),
            ("lm_head.weight", 1.0),
        ];
        for (tensor, expected) in scales {
            assert_eq!(job.optimizer.learning_rate_scale(tensor), expected, "{tensor}");
        }
    }

    #[test]
    fn defaults_of_mup_are_those_of_the_zoo() {
        let std = |spec: InitializerSpec| match spec {
            InitializerSpec::TruncatedNormal { std, .. } => std,
            other => panic!("{other:?}"),
        };
        let output = "output_layer_initializer: {name: truncated_normal, std: 0.5}";
        let lines = ["scale_output_logits_by_d: False", "ffn_initializer: {name: normal, std: 1}", output];
        let resolve_family = |family: &str| {
            let model = [&BASE[..], &lines, &[family]].concat();
            job(&model, "").unwrap().model
        };
        let (gpt, gptj) = (resolve_family("name: gpt3"), resolve_family("name: gptj"));
        assert_eq!(gpt.decoder.logits_scale, 0.5);
        assert!((std(gpt.initializers.hidden) - 0.01).abs() < 1e-15);
        assert_eq!(gpt.initializers.ffn_hidden, Some(normal(0.5)));
        assert!((std(gpt.initializers.ffn_output.unwrap()) - 0.02 / 4.0 / 12f64.sqrt()).abs() < 1e-15);
        assert!((std(gptj.initializers.ffn_output.unwrap()) - 0.5 / 4.0 / 12f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn first_group_with_a_factor_applies() {
        let scale = |model: &[&str], optimizer: &str, tensor: &str| {
            job(model, optimizer).unwrap().optimizer.learning_rate_scale(tensor)
        };
        let kernel = ", adjust_learning_rate: {decoder_kernel: 0.5, embedding: 2, decoder_attention: 0.1}";
        for (tensor, expected) in [
            ("wpe.weight", 2.0),
            ("h.0.attn.qkv.weight", 0.5),
            ("h.0.mlp.proj.weight", 0.5),
            ("h.0.mlp.proj.bias", 1.0),
            ("h.0.ln_2.weight", 1.0),
            ("lm_head.weight", 1.0),
        ] {
            assert_eq!(scale(&[], kernel, tensor), expected, "{tensor}");
        }
        let attention = ", adjust_learning_rate: {decoder_attention: 1}";
        assert_eq!(scale(&BASE, attention, "h.0.attn.qkv.weight"), 1.0);
        assert_eq!(scale(&BASE, attention, "h.0.mlp.fc.weight"), 0.25);
        assert!(job(&[], "").unwrap().optimizer.learning_rate_scales.is_empty());
    }

    #[test]
    fn settings_that_contradict_mup_are_rejected() {
        for (lines, message) in [
            (vec![BASE[0]], "model.mup_base_filter_size is missing"),
            (vec![BASE[1]], "model.mup_base_hidden_size is missing"),
            (vec![BASE[0], BASE[1], "output_logits_scale: 0.5"], "output_logits_scale excludes mup_base_hidden_size"),
            (vec![BASE[0], BASE[1], "initializer: uniform"], "model.initializer is not a normal distribution"),
            (vec!["mup_base_hidden_size: 0", BASE[1]], "model.mup_base_hidden_size is 0"),
        ] {
            let error = job(&lines, "").unwrap_err().report();
            assert!(error.contains(message), "{lines:?}: {error}");
        }
        let error = job(&[], ", adjust_learning_rate: {encoder_attention: 1}").unwrap_err().report();
        assert!(error.contains("encoder_attention"), "{error}");
    }
}
