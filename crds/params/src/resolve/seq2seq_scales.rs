//! Resolves the factors and the initial values of T5 and the Transformer, with those of muP (maximal update
//! parametrization).
//!
//! * The formulas are those of the public model zoo. m is the ratio of the width to that of the base model.
//! * Without sizes of the base model, nothing differs from the standard parametrization.

use super::check::ResolveContext;
use super::mup::WidthRatios;
use super::seq2seq::Sizes;
use crate::document::ModelParams;
use crate::job::{InitializerSpec, Initializers};
use crate::keywords::ATTENTION_TYPES;

/// Resolves the sizes of the base model of muP; `None` for the standard parametrization.
pub(super) fn width_ratios(
    check: &mut ResolveContext<'_>,
    p: &ModelParams,
    sizes: &Sizes,
    is_xavier: bool,
) -> Option<WidthRatios> {
    let [base_hidden, base_filter, base_head] = [
        ("model.mup_base_d_model", p.mup_base_d_model),
        ("model.mup_base_d_ff", p.mup_base_d_ff),
        ("model.mup_base_d_kv", p.mup_base_d_kv),
    ]
    .map(|(key, value)| check.positive(key, value, 1.0));
    if p.mup_base_d_model.or(p.mup_base_d_ff).or(p.mup_base_d_kv).is_none() {
        if p.output_logits_alpha.is_some() || p.scale_output_logits_by_d.is_some() {
            check
                .note("model.output_logits_alpha and scale_output_logits_by_d have no effect without mup_base_d_model");
        }
        return None;
    }
    for (key, is_given) in
        [("model.mup_base_d_model", p.mup_base_d_model.is_some()), ("model.mup_base_d_ff", p.mup_base_d_ff.is_some())]
    {
        if !is_given {
            check.report_missing(key, "muP needs both sizes of the base model");
        }
    }
    if is_xavier {
        let message = "excludes the initial values of the Transformer, whose standard deviations muP does not scale";
        check.report_invalid("model.mup_base_d_model", message, "set use_transformer_initialization: False");
    }
    // The factors of muP before and after the last projection cancel only without its bias.
    check.require_value("model.use_ffn_bias_in_attention", p.use_ffn_bias_in_attention, false);
    Some(WidthRatios {
        hidden: sizes.hidden as f64 / base_hidden,
        filter: sizes.filter as f64 / base_filter,
        head: p.mup_base_d_kv.map(|_| sizes.head as f64 / base_head),
    })
}

/// Returns the factor of the logits with muP.
pub(super) fn logits_scale(check: &mut ResolveContext<'_>, p: &ModelParams, ratios: WidthRatios) -> f64 {
    let alpha = check.positive("model.output_logits_alpha", p.output_logits_alpha, 1.0);
    alpha / if p.scale_output_logits_by_d.unwrap_or(false) { ratios.hidden } else { ratios.hidden.sqrt() }
}

/// Returns the factors of the products of queries and keys, of encoder and decoder. T5 has none: its initial queries
/// are small instead.
///
/// With muP, the zoo multiplies queries, keys and values by 1 / sqrt(m), and the output of the attention by sqrt(m):
/// those of values and output cancel, and those of queries and keys are part of the factor here.
pub(super) fn attention_scales(
    check: &mut ResolveContext<'_>,
    p: &ModelParams,
    is_xavier: bool,
    head: usize,
    ratios: Option<WidthRatios>,
) -> [f64; 2] {
    let is_scaled = is_xavier || ratios.is_some();
    let is_scaled = check.keyword("model.attention_type", p.attention_type.as_deref(), is_scaled, &ATTENTION_TYPES);
    let width = head.max(1) as f64;
    let of_projections = ratios.filter(|ratios| ratios.head.is_none()).map_or(1.0, |ratios| ratios.hidden.recip());
    [
        ("model.encoder_attention_logits_alpha", p.encoder_attention_logits_alpha, p.scale_encoder_qk_dot_by_d),
        ("model.decoder_attention_logits_alpha", p.decoder_attention_logits_alpha, p.scale_decoder_qk_dot_by_d),
    ]
    .map(|(key, alpha, by_width)| {
        let by_width = by_width.unwrap_or(ratios.is_some());
        let scale = match (is_scaled, by_width) {
            (true, true) => width.recip(),
            (true, false) => width.sqrt().recip(),
            (false, _) => 1.0,
        };
        check.positive(key, alpha, 1.0) * scale * of_projections
    })
}

/// Returns the initial values of encoder and decoder: those of T5's published code, or those of the Transformer. The
/// query projection has its own.
pub(super) fn initializers(sizes: &Sizes, is_xavier: bool, ratios: Option<WidthRatios>) -> [Initializers; 2] {
    let base = base_initializers(sizes, is_xavier);
    let Some(ratios) = ratios else { return [base.clone(), base] };
    let (hidden, filter, attention) = (sizes.hidden as f64, sizes.filter as f64, (sizes.heads * sizes.head) as f64);
    let normal = |variance: f64, factor: f64| InitializerSpec::Normal { mean: 0.0, std: variance.sqrt() * factor };
    let output_width = if ratios.head.is_some() { attention } else { hidden };
    [sizes.encoder_layers, sizes.decoder_layers].map(|layers| {
        let depth = 2.0 * layers as f64;
        Initializers {
            embedding: normal(hidden.recip(), 1.0),
            residual_output: normal(output_width.recip(), depth),
            ffn_output: Some(normal(filter.recip(), depth)),
            lm_head: normal(hidden.recip(), 1.0),
            ..base.clone()
        }
    })
}

fn base_initializers(sizes: &Sizes, is_xavier: bool) -> Initializers {
    let (hidden, filter, attention) = (sizes.hidden, sizes.filter, sizes.heads * sizes.head);
    let normal = |width: usize| InitializerSpec::Normal { mean: 0.0, std: (width as f64).sqrt().recip() };
    let unit = InitializerSpec::Normal { mean: 0.0, std: 1.0 };
    if is_xavier {
        let network = variance_scaling(1.0, hidden, filter);
        let projection = variance_scaling(1.0 / 9.0, hidden, attention);
        return Initializers {
            embedding: InitializerSpec::truncated_normal(1.0),
            hidden: projection,
            ffn_hidden: Some(network),
            residual_output: projection,
            ffn_output: Some(network),
            lm_head: unit,
        };
    }
    Initializers {
        embedding: unit,
        hidden: normal(hidden),
        ffn_hidden: None,
        residual_output: normal(hidden),
        ffn_output: Some(normal(filter)),
        lm_head: unit,
    }
}

/// Returns a uniform distribution whose variance is `scale` over the mean of the numbers of inputs and outputs.
pub(super) fn variance_scaling(scale: f64, inputs: usize, outputs: usize) -> InitializerSpec {
    let bound = (6.0 * scale / (inputs as f64 + outputs as f64)).sqrt();
    InitializerSpec::Uniform { a: -bound, b: bound }
}

#[cfg(test)]
mod tests {
    use crate::job::{InitializerSpec, JobSpec};
    use crate::{FlagOverrides, Params};

    /// Resolves a model with ratios of 4 and 3, heads of 8, and two blocks.
    fn job(keys: &str) -> JobSpec {
        let text = format!(
            "train_input: {{data_processor: T5DynamicDataProcessor, batch_size: 8, src_max_sequence_length: 64, \
             tgt_max_sequence_length: 24, src_data_dir: text, src_vocab_file: vocab.txt}}\n\
             model: {{d_model: 64, d_kv: 8, d_ff: 96, num_heads: 4, encoder_num_hidden_layers: 2, \
             mup_base_d_model: 16, mup_base_d_ff: 32{keys}}}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1}}\nrunconfig: {{max_steps: 1}}\n"
        );
        Params::parse_yaml(&text).unwrap().resolve(&FlagOverrides::default()).unwrap().job
    }

    fn std(spec: InitializerSpec) -> f64 {
        if let InitializerSpec::Normal { std, .. } = spec { std } else { panic!("{spec:?}") }
    }

    /// Compares with the formulas of the public model zoo.
    #[test]
    fn base_sizes_scale_initial_values_products_and_logits() {
        let keys = ", embeddings_alpha: 3, output_logits_alpha: 5, decoder_num_hidden_layers: 3, \
                    decoder_attention_logits_alpha: 2, share_embedding_weights: False";
        let t5 = job(keys).model;
        let decoder = t5.seq2seq.as_ref().unwrap().decoder.unwrap();
        let (initializers, root) = (&t5.initializers, 96f64.sqrt().recip());
        for (found, expected) in [
            (t5.decoder.embeddings_scale, 3.0 * 8.0),
            (t5.decoder.logits_scale, 5.0 / 2.0),
            (t5.attention_scale, 1.0 / 8.0 / 4.0),
            (decoder.attention_scale, 2.0 / 8.0 / 4.0),
            (std(initializers.embedding), 1.0 / 8.0),
            (std(initializers.lm_head), 1.0 / 8.0),
            (std(initializers.hidden), 1.0 / 8.0),
            (std(initializers.residual_output), 4.0 / 8.0),
            (std(initializers.ffn_output.unwrap()), 4.0 * root),
            (std(decoder.residual_output), 6.0 / 8.0),
            (std(decoder.ffn_output), 6.0 * root),
        ] {
            assert!((found - expected).abs() < 1e-15, "{found} {expected}");
        }
        let other = ", mup_base_d_kv: 2, scale_encoder_qk_dot_by_d: False, scale_output_logits_by_d: True";
        let t5 = job(&format!("{other}, output_logits_alpha: 5")).model;
        assert_eq!((t5.attention_scale, t5.decoder.logits_scale), (8f64.sqrt().recip(), 1.25));
        assert!((std(t5.initializers.residual_output) - 4.0 * 32f64.sqrt().recip()).abs() < 1e-15);
    }

    #[test]
    fn learning_rates_of_mup_follow_the_zoo() {
        let [same_heads, other_heads] = ["", ", mup_base_d_kv: 2"].map(|keys| job(keys).optimizer);
        for (tensor, same, other) in [
            ("encoder.wte.weight", 0.5, 0.5),
            ("decoder.relative.weight", 0.5, 0.5),
            ("lm_head.weight", 0.5, 0.5),
            ("encoder.h.1.attn.q.weight", 0.5, 0.25),
            ("decoder.h.0.cross.kv.weight", 0.5, 0.25),
            ("decoder.h.0.cross.proj.weight", 0.5, 0.25),
            ("decoder.h.0.mlp.fc.weight", 0.25, 0.25),
            ("encoder.h.0.mlp.proj.weight", 1.0 / 3.0, 1.0 / 3.0),
            ("encoder.h.0.ln_1.weight", 1.0, 1.0),
        ] {
            assert_eq!(same_heads.learning_rate_scale(tensor), same, "{tensor}");
            assert_eq!(other_heads.learning_rate_scale(tensor), other, "{tensor}");
        }
    }
}
