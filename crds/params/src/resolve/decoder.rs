//! Resolves the keys of `model` by which decoders differ from GPT-2.

use super::check::ResolveContext;
use super::image;
use super::model::{MAX_POSITIONS, MAX_WIDTH, ModelSizes};
use super::mup::{self, WidthRatios};
use super::seq2seq;
use crate::document::{ModelParams, Params, RotaryScalingParams};
use crate::job::{DecoderOptions, ModelFamily, Norm, ParallelBlocks, Positions, RotaryPositions, RotaryScaling};
use crate::keywords::{
    ATTENTION_MODULES, FAMILIES, NONLINEARITIES, NORMS, POSITION_EMBEDDINGS, PositionKind, ROTARY_SCALINGS,
    RotaryScalingKind,
};

/// Resolves `model.name`, or else the flag `--model`; both must agree. Without either, as in older files, their keys
/// tell GPT-J and its relatives, models with an encoder, and models of images, from GPT-2. `encoder` is the family that
/// the data show.
pub(super) fn family(
    check: &mut ResolveContext<'_>,
    params: &Params,
    p: &ModelParams,
    flag: Option<&str>,
    encoder: Option<ModelFamily>,
) -> ModelFamily {
    let has_gptj_keys =
        p.residual_dropout_rate.is_some() || p.use_untied_layer_norm.is_some() || is_gptj_of_tensorflow(p);
    let default = match (has_gptj_keys, is_multiquery(check, p)) {
        (false, _) if image::has_mlp_keys(p) => ModelFamily::FcMnist,
        (false, _) if image::has_transformer_keys(p) => ModelFamily::VisionTransformer,
        (false, _) => ModelFamily::Gpt2,
        (true, false) => ModelFamily::Gptj,
        (true, true) => ModelFamily::Falcon,
    };
    let default = seq2seq::recognize(params, p).or(encoder).unwrap_or(default);
    match (p.name.as_deref(), flag) {
        (None, Some(flag)) => check.keyword("--model", Some(flag), default, &FAMILIES),
        (value, flag) => {
            if let (Some(value), Some(flag)) = (value, flag)
                && !value.eq_ignore_ascii_case(flag)
                && (FAMILIES.get(value).is_none() || FAMILIES.get(value) != FAMILIES.get(flag))
            {
                let message = format!("is {flag}, but model.name is {value}");
                check.report_invalid(
                    "--model",
                    message,
                    "leave --model out: it is for params that do not name a model",
                );
            }
            check.keyword("model.name", value, default, &FAMILIES)
        }
    }
}

/// Returns whether the keys are those of the zoo's TensorFlow files of GPT-J, which give the number of rotated elements
/// without the kind of positions.
pub(super) fn is_gptj_of_tensorflow(p: &ModelParams) -> bool {
    p.rotary_dim.is_some() && p.position_embedding_type.is_none()
}

pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    p: &ModelParams,
    family: ModelFamily,
    sizes: &ModelSizes,
    ratios: Option<WidthRatios>,
) -> DecoderOptions {
    let parallel_blocks = parallel_blocks(check, p, family);
    let window = p
        .attention_sliding_window_length
        .map(|length| check.count("model.attention_sliding_window_length", Some(length), MAX_POSITIONS, MAX_POSITIONS));
    let attention_sinks = attention_sinks(check, p);
    let is_window_alternating = p.sliding_window_every_other_decoder_layer.unwrap_or(false);
    if is_window_alternating && window.is_none() {
        let hint = "sliding_window_every_other_decoder_layer needs the length of the window";
        check.report_missing("model.attention_sliding_window_length", hint);
    }
    let defaults = DecoderOptions::default();
    let positions = positions(check, p, family, sizes);
    let softcap_key = "model.attention_logit_softcapping";
    let attention_softcap = softcap(check, softcap_key, p.attention_logit_softcapping);
    if attention_softcap.is_some() && positions == Positions::Alibi {
        check.report_invalid(softcap_key, "excludes position_embedding_type: alibi", "leave one of the two out");
    }
    let is_branch_normalized = p.norm_first_sandwich.unwrap_or(false);
    if is_branch_normalized && parallel_blocks.is_some() {
        let message = "is true, but blocks of gptj and falcon have one sum of both outputs";
        check.report_invalid("model.norm_first_sandwich", message, "leave it out, or set model.name");
    }
    DecoderOptions {
        positions,
        norm: norm(check, p, defaults.norm),
        is_embedding_normalized: p.embedding_layer_norm.unwrap_or(false),
        parallel_blocks,
        num_key_heads: key_heads(check, p, sizes.heads),
        attention_window: window,
        attention_sinks,
        is_window_alternating,
        attention_softcap,
        attention_width: (sizes.attention != sizes.hidden).then_some(sizes.attention),
        is_attention_scaled_by_block: check
            .either_spelling(
                "model.scale_qk_dot_by_layer_idx",
                p.scale_qk_dot_by_layer_idx,
                "model.scale_by_layer_index",
                p.scale_by_layer_index,
            )
            .unwrap_or(false),
        is_gated: p
            .nonlinearity
            .as_deref()
            .or(p.encoder_nonlinearity.as_deref())
            .and_then(|name| NONLINEARITIES.get(name))
            .is_some_and(|(_, gated)| gated),
        is_branch_normalized,
        embeddings_scale: check.positive("model.embeddings_scale", p.embeddings_scale, 1.0),
        logits_scale: mup::logits_scale(check, p, ratios),
        logits_softcap: softcap(check, "model.final_logit_softcapping", p.final_logit_softcapping),
        is_packed: false,
    }
}

/// Resolves the kind of norm, which older files give by switches.
fn norm(check: &mut ResolveContext<'_>, p: &ModelParams, default: Norm) -> Norm {
    let by_switch = match (p.use_biasless_norm, p.use_rms_norm) {
        (Some(true), Some(true)) => {
            let message = "excludes use_biasless_norm, which is given too";
            check.report_invalid("model.use_rms_norm", message, "keep one of the two");
            None
        }
        (Some(true), _) => Some("biasless-layernorm"),
        (_, Some(true)) => Some("rmsnorm"),
        (Some(false), _) | (_, Some(false)) => Some("layernorm"),
        (None, None) => None,
    };
    let older = if p.use_biasless_norm == Some(true) { "model.use_biasless_norm" } else { "model.use_rms_norm" };
    let value = check.either_spelling("model.norm_type", p.norm_type.as_deref(), older, by_switch);
    check.keyword("model.norm_type", value, default, &NORMS)
}

/// Returns the number of tokens that are attended to besides those of the window.
fn attention_sinks(check: &mut ResolveContext<'_>, p: &ModelParams) -> usize {
    let key = "model.attention_sink_tokens";
    let Some(value) = p.attention_sink_tokens.filter(|sinks| *sinks > 0) else { return 0 };
    let sinks = check.count(key, Some(value), 1, MAX_POSITIONS);
    if p.attention_sliding_window_length.is_some() {
        return sinks;
    }
    check.note(format!("{key} has no effect without attention_sliding_window_length"));
    0
}

fn softcap(check: &mut ResolveContext<'_>, key: &str, value: Option<f64>) -> Option<f64> {
    value.map(|_| check.positive(key, value, 1.0))
}

fn is_multiquery(check: &mut ResolveContext<'_>, p: &ModelParams) -> bool {
    check.keyword("model.attention_module", p.attention_module.as_deref(), false, &ATTENTION_MODULES)
}

fn parallel_blocks(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) -> Option<ParallelBlocks> {
    let two_norms = p.use_untied_layer_norm.unwrap_or(false);
    if matches!(family, ModelFamily::Gptj | ModelFamily::Falcon) {
        return Some(if two_norms { ParallelBlocks::TwoNorms } else { ParallelBlocks::OneNorm });
    }
    if two_norms {
        let message = "is true, but only gptj and falcon have blocks whose two parts read the same input";
        check.report_invalid("model.use_untied_layer_norm", message, "leave it out, or set model.name");
    }
    None
}

/// Returns the number of heads of keys and values, if heads of queries share them.
fn key_heads(check: &mut ResolveContext<'_>, p: &ModelParams, heads: usize) -> Option<usize> {
    let key = "model.extra_attention_params.num_kv_groups";
    let value = p.extra_attention_params.as_ref().and_then(|extra| extra.num_kv_groups);
    let is_multiquery = p.attention_module.as_deref().and_then(|name| ATTENTION_MODULES.get(name)).unwrap_or(false);
    if !is_multiquery {
        if value.is_some() {
            let message = "has no meaning without attention_module: multiquery_attention";
            check.report_invalid(key, message, "leave extra_attention_params out, or set model.attention_module");
        }
        return None;
    }
    let groups = check.count(key, value, 1, MAX_WIDTH);
    if !heads.is_multiple_of(groups) {
        let message = format!("is {groups}, which does not divide model.num_heads {heads}");
        check.report_invalid(key, message, "choose a number of groups that divides num_heads");
        return None;
    }
    (groups != heads).then_some(groups)
}

/// Returns how the model knows positions, in either spelling.
pub(super) fn position_embedding_type<'p>(check: &mut ResolveContext<'_>, p: &'p ModelParams) -> Option<&'p str> {
    check.either_spelling(
        "model.position_embedding_type",
        p.position_embedding_type.as_deref(),
        "model.positional_embedding_type",
        p.positional_embedding_type.as_deref(),
    )
}

fn positions(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily, sizes: &ModelSizes) -> Positions {
    let value = position_embedding_type(check, p);
    let default = if family == ModelFamily::Gptj { PositionKind::Rotary } else { PositionKind::Learned };
    let kind = check.keyword("model.position_embedding_type", value, default, &POSITION_EMBEDDINGS);
    check.require_value("model.alibi_trainable_slopes", p.alibi_trainable_slopes, false);
    if kind != PositionKind::Rotary {
        note_unused_rotary_keys(check, p);
    }
    match kind {
        PositionKind::Learned => Positions::Learned,
        PositionKind::Alibi => Positions::Alibi,
        PositionKind::Rotary => Positions::Rotary(rotary(check, p, family, sizes.head())),
        PositionKind::Fixed | PositionKind::Relative => {
            let key = "model.position_embedding_type";
            check.unsupported(key, value.unwrap_or_default(), "use learned, rotary or alibi in a decoder");
            Positions::Learned
        }
    }
}

fn rotary(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily, head_size: usize) -> RotaryPositions {
    let dimensions = check.count("model.rotary_dim", p.rotary_dim, head_size, MAX_WIDTH);
    if dimensions > head_size || !dimensions.is_multiple_of(2) {
        let message = format!("is {dimensions}, but must be even and at most the width of a head, {head_size}");
        check.report_invalid("model.rotary_dim", message, "choose a smaller even number");
    }
    RotaryPositions {
        dimensions,
        base: check.positive("model.rope_theta", p.rope_theta, 10_000.0),
        // GPT-NeoX, which has two norms, rotates halves.
        is_adjacent: family == ModelFamily::Gptj && !p.use_untied_layer_norm.unwrap_or(false),
        scaling: rotary_scaling(check, p),
    }
}

fn rotary_scaling(check: &mut ResolveContext<'_>, p: &ModelParams) -> Option<RotaryScaling> {
    let factor = check.positive("model.pos_scaling_factor", p.pos_scaling_factor, 1.0);
    let value = p.pos_scaling_type.as_deref();
    let kind = check.keyword("model.pos_scaling_type", value, RotaryScalingKind::Linear, &ROTARY_SCALINGS);
    let extra = p.pos_scaling_extra_args.as_ref();
    if kind == RotaryScalingKind::Linear {
        if extra.is_some() {
            let message = "has no meaning without pos_scaling_type: llama3";
            check.report_invalid("model.pos_scaling_extra_args", message, "leave it out");
        }
        return (factor != 1.0).then_some(RotaryScaling::Linear { factor });
    }
    let Some(extra) = extra else {
        check.report_missing("model.pos_scaling_extra_args", "give original_max_position_embeddings and both factors");
        return None;
    };
    let RotaryScalingParams { low_freq_factor, high_freq_factor, original_max_position_embeddings } = *extra;
    let key_path = |key: &str| format!("model.pos_scaling_extra_args.{key}");
    let low = check.positive(&key_path("low_freq_factor"), low_freq_factor, 1.0);
    let high = check.positive(&key_path("high_freq_factor"), high_freq_factor, 4.0);
    if high <= low {
        let message = format!("is {high}, but must be greater than low_freq_factor {low}");
        check.report_invalid(&key_path("high_freq_factor"), message, "use 4 and 1, as LLaMA 3.1 does");
    }
    let key = key_path("original_max_position_embeddings");
    let positions = check.count(&key, original_max_position_embeddings, 8192, MAX_POSITIONS);
    Some(RotaryScaling::Llama3 {
        factor,
        low_frequency_factor: low,
        high_frequency_factor: high,
        original_positions: positions as f64,
    })
}

/// Notes keys of rotary positions in a model without them.
fn note_unused_rotary_keys(check: &mut ResolveContext<'_>, p: &ModelParams) {
    let keys = [
        ("rotary_dim", p.rotary_dim.is_some()),
        ("rope_theta", p.rope_theta.is_some()),
        ("pos_scaling_factor", p.pos_scaling_factor.is_some()),
        ("pos_scaling_type", p.pos_scaling_type.is_some()),
        ("pos_scaling_extra_args", p.pos_scaling_extra_args.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        check.note(format!("model.{key} has no effect without position_embedding_type: rotary"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ModelSpec;
    use crate::{FlagOverrides, Params, ParamsError};

    /// Resolves the lines of a section `model` besides the sizes: 12 heads of 64.
    fn model(lines: &[&str]) -> Result<ModelSpec, ParamsError> {
        let section = lines.join("\n  ");
        let text = format!(
            "train_input: {{data_processor: GptTokenDataProcessor, data_files: x, batch_size: 8}}\n\
             model:\n  vocab_size: 50257\n  hidden_size: 768\n  num_hidden_layers: 2\n  num_heads: 12\n  {section}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1}}\nrunconfig: {{max_steps: 1}}\n"
        );
        Ok(Params::parse_yaml(&text)?.resolve(&FlagOverrides::default())?.job.model)
    }

    #[test]
    fn models_without_these_keys_are_gpt2() {
        let spec = model(&[]).unwrap();
        assert!(spec.family == ModelFamily::Gpt2 && spec.decoder.is_gpt2());
        // The document of such a job is that of earlier releases.
        assert!(!serde_json::to_string(&spec).unwrap().contains("decoder"));
    }

    #[test]
    fn keys_of_llama_3_are_resolved() {
        let lines = [
            "name: llama",
            "position_embedding_type: rotary",
            "rotary_dim: 64",
            "rope_theta: 500000",
            "norm_type: rmsnorm",
            "nonlinearity: swiglu",
            "attention_module: multiquery_attention",
            "extra_attention_params: {num_kv_groups: 4}",
            "attention_sliding_window_length: 4096",
            "attention_sink_tokens: 64",
            "pos_scaling_type: llama3",
            "pos_scaling_factor: 8",
            "pos_scaling_extra_args: {low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 8192}",
        ];
        let scaling = RotaryScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_positions: 8192.0,
        };
        let rotary = RotaryPositions { dimensions: 64, base: 5e5, is_adjacent: false, scaling: Some(scaling) };
        let expected = DecoderOptions {
            positions: Positions::Rotary(rotary),
            norm: Norm::RmsNorm,
            num_key_heads: Some(4),
            attention_window: Some(4096),
            attention_sinks: 64,
            is_gated: true,
            ..DecoderOptions::default()
        };
        assert_eq!(model(&lines).unwrap().decoder, expected);
    }

    #[test]
    fn unnamed_family_is_recognized_by_its_keys() {
        let rotary = "position_embedding_type: rotary";
        let gptj = model(&[rotary, "residual_dropout_rate: 0.0"]).unwrap();
        let neox = model(&[rotary, "residual_dropout_rate: 0.0", "use_untied_layer_norm: True"]).unwrap();
        let falcon = model(&[rotary, "residual_dropout_rate: 0.0", "attention_module: multiquery_attention"]).unwrap();
        let summary = |spec: &ModelSpec| {
            let Positions::Rotary(rotary) = spec.decoder.positions else { panic!("{spec:?}") };
            (spec.family, spec.decoder.parallel_blocks.unwrap(), rotary.is_adjacent, spec.decoder.num_key_heads)
        };
        assert_eq!(summary(&gptj), (ModelFamily::Gptj, ParallelBlocks::OneNorm, true, None));
        assert_eq!(summary(&neox), (ModelFamily::Gptj, ParallelBlocks::TwoNorms, false, None));
        assert_eq!(summary(&falcon), (ModelFamily::Falcon, ParallelBlocks::OneNorm, false, Some(1)));
        assert_eq!(gptj.dropout_rate, 0.0);
        // Files for TensorFlow give nothing but the number of rotated elements.
        let of_tensorflow = model(&["rotary_dim: 32", "use_position_embeddings: False"]).unwrap();
        assert_eq!(summary(&of_tensorflow), (ModelFamily::Gptj, ParallelBlocks::OneNorm, true, None));
        assert_eq!((of_tensorflow.dropout_rate, of_tensorflow.attention_dropout_rate), (0.0, 0.0));
        assert_eq!(model(&["name: gptj"]).unwrap().dropout_rate, 0.1);
    }

    #[test]
    fn switches_of_older_files_stand_for_kinds_of_norms() {
        let norm = |line: &str| model(&[line]).unwrap().decoder.norm;
        assert_eq!(norm("use_rms_norm: True"), Norm::RmsNorm);
        assert_eq!(norm("use_rms_norm: False"), Norm::LayerNorm);
        assert_eq!(norm("use_biasless_norm: True"), Norm::BiaslessLayerNorm);
        let both = model(&["use_rms_norm: True", "use_biasless_norm: True"]).unwrap_err().report();
        assert!(both.contains("model.use_rms_norm excludes use_biasless_norm"), "{both}");
        let other = model(&["norm_type: layernorm", "use_rms_norm: True"]).unwrap_err().report();
        assert!(other.contains("model.use_rms_norm is another spelling of model.norm_type"), "{other}");
    }

    #[test]
    fn settings_that_do_not_fit_are_rejected_by_key() {
        let rotary = "position_embedding_type: rotary";
        let multiquery = "attention_module: multiquery_attention";
        for (lines, key) in [
            (vec![rotary, "rotary_dim: 63"], "model.rotary_dim is 63"),
            (vec![rotary, "rotary_dim: 66"], "model.rotary_dim is 66"),
            (vec![rotary, "pos_scaling_type: yarn"], "model.pos_scaling_type yarn"),
            (vec![rotary, "pos_scaling_type: llama3"], "model.pos_scaling_extra_args is missing"),
            (vec![rotary, "pos_scaling_extra_args: {}"], "model.pos_scaling_extra_args has no meaning"),
            (
                vec![rotary, "pos_scaling_type: llama3", "pos_scaling_extra_args: {low_freq_factor: 4}"],
                "model.pos_scaling_extra_args.high_freq_factor is 4",
            ),
            (
                vec![multiquery, "extra_attention_params: {num_kv_groups: 5}"],
                "num_kv_groups is 5, which does not divide",
            ),
            (vec!["extra_attention_params: {num_kv_groups: 4}"], "num_kv_groups has no meaning"),
            (
                vec!["sliding_window_every_other_decoder_layer: true"],
                "model.attention_sliding_window_length is missing",
            ),
            (vec!["attention_logit_softcapping: 0"], "model.attention_logit_softcapping is 0"),
            (
                vec!["attention_logit_softcapping: 50", "position_embedding_type: alibi"],
                "model.attention_logit_softcapping excludes",
            ),
            (vec!["name: gptj", "norm_first_sandwich: true"], "model.norm_first_sandwich is true"),
            (
                vec!["dropout_rate: 0.1", "residual_dropout_rate: 0.2"],
                "model.residual_dropout_rate is another spelling",
            ),
        ] {
            let error = model(&lines).unwrap_err().report();
            assert!(error.contains(key), "{lines:?}: {error}");
        }
    }
}
