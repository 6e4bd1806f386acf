//! Resolves `model` for the families with an encoder and a decoder: T5 and the Transformer. Defaults are those of the
//! public model zoo.

use super::check::ResolveContext;
use super::decoder;
use super::model::{self, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use super::mup::WidthRatios;
use super::seq2seq_scales::{attention_scales, initializers, logits_scale, variance_scaling, width_ratios};
use crate::document::{ModelParams, Params};
use crate::job::{
    DecoderOptions, InitializerSpec, LossScaling, ModelFamily, ModelSpec, Nonlinearity, Norm, Seq2SeqDecoder,
    Seq2SeqOptions, Seq2SeqPositions,
};
use crate::keywords::{NONLINEARITIES, NORMS, POSITION_EMBEDDINGS, PositionKind, SEQ2SEQ_LOSS_SCALINGS};

/// Vocabulary of the zoo's models whose params do not give one.
const DEFAULT_VOCABULARY: usize = 32_128;
/// Distance from which on all distances share a bias.
const MAX_DISTANCE: usize = 128;
const MAX_BUCKETS: usize = MAX_DISTANCE - 2;

/// The keys that all other families lack.
const OWN_KEYS: &[&str] = &[
    "src_vocab_size",
    "tgt_vocab_size",
    "extra_ids",
    "d_model",
    "d_ff",
    "d_kv",
    "encoder_num_hidden_layers",
    "decoder_num_hidden_layers",
    "encoder_nonlinearity",
    "decoder_nonlinearity",
    "src_max_position_embeddings",
    "tgt_max_position_embeddings",
    "share_encoder_decoder_embedding",
    "use_t5_layer_norm",
    "use_relative_attention_bias",
    "relative_attention_num_buckets",
    "relu_dropout_rate",
    "use_pre_encoder_decoder_dropout",
    "use_pre_encoder_decoder_layer_norm",
    "use_dropout_outside_residual_path",
    "use_transformer_initialization",
    "lm_loss_weight",
    "mlm_loss_scaling",
    "mup_base_d_model",
    "mup_base_d_ff",
    "mup_base_d_kv",
    "embeddings_alpha",
    "encoder_attention_logits_alpha",
    "decoder_attention_logits_alpha",
    "scale_encoder_qk_dot_by_d",
    "scale_decoder_qk_dot_by_d",
];
/// The keys that these families share with others.
const SHARED_KEYS: &[&str] = &[
    "name",
    "hidden_size",
    "filter_size",
    "num_heads",
    "position_embedding_type",
    "positional_embedding_type",
    "share_embedding_weights",
    "dropout_rate",
    "attention_dropout_rate",
    "layer_norm_epsilon",
    "norm_type",
    "attention_type",
    "attention_module",
    "use_projection_bias_in_attention",
    "use_ffn_bias_in_attention",
    "use_ffn_bias",
    "mixed_precision",
    "use_bfloat16",
    "fp16_type",
    "use_vsl",
    "compute_eval_metrics",
    "output_logits_alpha",
    "scale_output_logits_by_d",
];

/// Recognizes a model whose params do not name it, as in older files.
pub(super) fn recognize(params: &Params, p: &ModelParams) -> Option<ModelFamily> {
    p.encoder_num_hidden_layers.filter(|_| p.decoder_num_hidden_layers.is_some() || p.d_model.is_some())?;
    let processor = params.train_input.as_ref().and_then(|input| input.data_processor.as_deref()).unwrap_or_default();
    let is_transformer = processor.to_ascii_lowercase().starts_with("transformer");
    Some(if is_transformer { ModelFamily::Transformer } else { ModelFamily::T5 })
}

/// Rejects the keys of these families in others.
pub(super) fn reject_keys(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) {
    let is_shared = |key: &str| family.is_encoder() && key == "encoder_nonlinearity";
    for key in given_keys(p).filter(|key| OWN_KEYS.contains(key) && !is_shared(key)) {
        let message = "has a meaning in t5 and transformer only";
        check.report_invalid(&format!("model.{key}"), message, "leave it out, or set model.name");
    }
}

fn given_keys(p: &ModelParams) -> impl Iterator<Item = &'static str> {
    crate::yaml::ParamsSection::given_keys(p).into_iter()
}

pub(super) struct Sizes {
    pub hidden: usize,
    pub heads: usize,
    pub head: usize,
    pub filter: usize,
    source_vocabulary: usize,
    target_vocabulary: usize,
    pub encoder_layers: usize,
    pub decoder_layers: usize,
}

/// Resolves the section for a model of `family`.
pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    params: &Params,
    p: &ModelParams,
    family: ModelFamily,
) -> (ModelSpec, Option<WidthRatios>) {
    for key in given_keys(p).filter(|key| !OWN_KEYS.contains(key) && !SHARED_KEYS.contains(key)) {
        check.report_invalid(&format!("model.{key}"), "has no meaning in t5 and transformer", "leave it out");
    }
    check_notes(check, p);
    let is_t5 = family == ModelFamily::T5;
    let sizes = sizes(check, p);
    let dropout_rate = check.probability("model.dropout_rate", p.dropout_rate, 0.1);
    let is_xavier = p.use_transformer_initialization.unwrap_or(!is_t5);
    let ratios = width_ratios(check, p, &sizes, is_xavier);
    let (nonlinearity, is_gated) = activation(check, "model.encoder_nonlinearity", p.encoder_nonlinearity.as_deref());
    let shares_output = p.share_embedding_weights.unwrap_or(true);
    let (loss_scaling, loss_weight) = loss(check, p);
    let source_length =
        params.train_input.as_ref().and_then(|input| input.max_sequence_length.or(input.src_max_sequence_length));
    let attention_width = sizes.heads.saturating_mul(sizes.head);
    let root = (sizes.hidden as f64).sqrt();
    let embeddings_alpha = check.positive("model.embeddings_alpha", p.embeddings_alpha, 1.0);
    let [initializers, of_decoder] = initializers(&sizes, is_xavier, ratios);
    let [attention_scale, decoder_attention_scale] = attention_scales(check, p, is_xavier, sizes.head, ratios);
    let mut options = options(check, params, p, &sizes, is_t5, dropout_rate);
    options.decoder = Some(Seq2SeqDecoder {
        attention_scale: decoder_attention_scale,
        residual_output: of_decoder.residual_output,
        ffn_output: of_decoder.ffn_output.unwrap_or(of_decoder.residual_output),
    });
    if (decoder_attention_scale, &of_decoder) == (attention_scale, &initializers) {
        options.decoder = None;
    }
    let spec = ModelSpec {
        family,
        vocab_size: sizes.source_vocabulary,
        hidden_size: sizes.hidden,
        num_hidden_layers: sizes.encoder_layers,
        num_heads: sizes.heads,
        filter_size: sizes.filter,
        max_position_embeddings: check.count(
            "model.src_max_position_embeddings",
            p.src_max_position_embeddings.or(source_length),
            512,
            MAX_POSITIONS,
        ),
        use_position_embedding: false,
        share_embedding_weights: shares_output,
        dropout_rate,
        embedding_dropout_rate: dropout_rate,
        attention_dropout_rate: check.probability(
            "model.attention_dropout_rate",
            p.attention_dropout_rate,
            dropout_rate,
        ),
        layer_norm_epsilon: check.positive("model.layer_norm_epsilon", p.layer_norm_epsilon, 1e-6),
        attention_scale,
        nonlinearity,
        use_projection_bias_in_attention: p.use_projection_bias_in_attention.unwrap_or(false),
        use_ffn_bias_in_attention: p.use_ffn_bias_in_attention.unwrap_or(false),
        use_ffn_bias: p.use_ffn_bias.unwrap_or(false),
        use_bias_in_output: false,
        initializers,
        precision: model::precision(check, p),
        loss_scaling,
        loss_weight,
        compute_eval_metrics: p.compute_eval_metrics.unwrap_or(true),
        decoder: DecoderOptions {
            norm: norm(check, p, is_t5),
            attention_width: (attention_width != sizes.hidden).then_some(attention_width),
            is_gated,
            embeddings_scale: if ratios.is_some() { embeddings_alpha * root } else { embeddings_alpha },
            logits_scale: match ratios {
                Some(ratios) => logits_scale(check, p, ratios),
                // Small logits of an output layer whose weights are those of the embedding, whose variance is 1.
                None if shares_output => root.recip(),
                None => 1.0,
            },
            ..DecoderOptions::default()
        },
        encoder: None,
        seq2seq: Some(options),
        image: None,
        graph: None,
    };
    (spec, ratios)
}

fn options(
    check: &mut ResolveContext<'_>,
    params: &Params,
    p: &ModelParams,
    sizes: &Sizes,
    is_t5: bool,
    dropout_rate: f64,
) -> Seq2SeqOptions {
    let target_length = params.train_input.as_ref().and_then(|input| input.tgt_max_sequence_length);
    let value = p.decoder_nonlinearity.as_deref().or(p.encoder_nonlinearity.as_deref());
    let (decoder_nonlinearity, is_decoder_gated) = activation(check, "model.decoder_nonlinearity", value);
    let shares_embedding = p.share_encoder_decoder_embedding.unwrap_or(true);
    if shares_embedding && sizes.source_vocabulary != sizes.target_vocabulary {
        let message = format!(
            "is {}, but encoder and decoder share an embedding of {} tokens",
            sizes.target_vocabulary, sizes.source_vocabulary
        );
        let hint = "leave it out, or set share_encoder_decoder_embedding: false";
        check.report_invalid("model.tgt_vocab_size", message, hint);
    }
    let normal = InitializerSpec::Normal { mean: 0.0, std: (sizes.hidden as f64).sqrt().recip() };
    let buckets =
        check.count("model.relative_attention_num_buckets", p.relative_attention_num_buckets, 32, MAX_BUCKETS);
    if buckets < 4 || !buckets.is_multiple_of(2) {
        let message = format!("is {buckets}, but must be even and at least 4");
        check.report_invalid("model.relative_attention_num_buckets", message, "use 32");
    }
    let relative = Seq2SeqPositions::Relative { buckets, max_distance: MAX_DISTANCE, initializer: normal };
    let is_xavier = p.use_transformer_initialization.unwrap_or(!is_t5);
    Seq2SeqOptions {
        target_vocab_size: sizes.target_vocabulary,
        target_length: check.count(
            "model.tgt_max_position_embeddings",
            target_length.or(p.tgt_max_position_embeddings),
            512,
            MAX_POSITIONS,
        ),
        num_decoder_layers: sizes.decoder_layers,
        shares_embedding,
        positions: positions(check, p, is_t5, relative),
        norm_first: p.use_pre_encoder_decoder_layer_norm.unwrap_or(is_t5),
        decoder_nonlinearity,
        is_decoder_gated,
        ffn_dropout_rate: check.probability("model.relu_dropout_rate", p.relu_dropout_rate, dropout_rate),
        input_dropout_rate: if p.use_pre_encoder_decoder_dropout.unwrap_or(false) { dropout_rate } else { 0.0 },
        output_dropout_rate: if p.use_dropout_outside_residual_path.unwrap_or(is_t5) { dropout_rate } else { 0.0 },
        query_initializer: match is_xavier {
            true => variance_scaling(1.0 / (9.0 * sizes.head as f64), sizes.hidden, sizes.heads * sizes.head),
            false => {
                let std = (sizes.hidden as f64 * sizes.head as f64).sqrt().recip();
                InitializerSpec::Normal { mean: 0.0, std }
            }
        },
        decoder: None,
    }
}

fn check_notes(check: &mut ResolveContext<'_>, p: &ModelParams) {
    if p.use_vsl == Some(true) {
        check.note("model.use_vsl has no effect: samples of two sequences are padded");
    }
    if p.attention_module.as_deref().is_some_and(|module| !module.eq_ignore_ascii_case("aiayn_attention")) {
        let value = p.attention_module.as_deref().unwrap_or_default();
        check.unsupported("model.attention_module", value, "leave it out in t5 and transformer");
    }
}

fn sizes(check: &mut ResolveContext<'_>, p: &ModelParams) -> Sizes {
    let hidden = check.either_spelling("model.hidden_size", p.hidden_size, "model.d_model", p.d_model);
    let hidden = check.required_count("model.hidden_size", hidden, MAX_WIDTH);
    let heads = check.required_count("model.num_heads", p.num_heads, MAX_WIDTH);
    if p.d_kv.is_none() && !hidden.is_multiple_of(heads) && !check.has_problem("model.num_heads") {
        let message = format!("is {heads}, which does not divide model.hidden_size {hidden}");
        check.report_invalid("model.num_heads", message, "choose a number of heads that divides it, or give d_kv");
    }
    let head = check.count("model.d_kv", p.d_kv, (hidden / heads).max(1), MAX_WIDTH);
    if heads.saturating_mul(head) > MAX_WIDTH {
        let message = format!("is {head}, which makes {heads} heads wider than {MAX_WIDTH} together");
        check.report_invalid("model.d_kv", message, "choose a smaller number");
    }
    let filter = check.either_spelling("model.filter_size", p.filter_size, "model.d_ff", p.d_ff);
    let extra = check.count("model.extra_ids", p.extra_ids.filter(|extra| *extra > 0), 0, MAX_VOCABULARY);
    let extra = if p.extra_ids.is_some_and(|extra| extra > 0) { extra } else { 0 };
    if p.src_vocab_size.is_none() {
        check
            .note(format!("model.src_vocab_size is omitted: the model has {DEFAULT_VOCABULARY} tokens, as in the zoo"));
    }
    let source = check.count("model.src_vocab_size", p.src_vocab_size, DEFAULT_VOCABULARY, MAX_VOCABULARY);
    let target = check.count("model.tgt_vocab_size", p.tgt_vocab_size, source, MAX_VOCABULARY);
    let layers = check.required_count("model.encoder_num_hidden_layers", p.encoder_num_hidden_layers, MAX_LAYERS);
    Sizes {
        hidden,
        heads,
        head,
        filter: check.count("model.filter_size", filter, hidden.saturating_mul(4), MAX_WIDTH.saturating_mul(4)),
        source_vocabulary: source + extra,
        target_vocabulary: target + extra,
        encoder_layers: layers,
        decoder_layers: check.count("model.decoder_num_hidden_layers", p.decoder_num_hidden_layers, layers, MAX_LAYERS),
    }
}

fn activation(check: &mut ResolveContext<'_>, key: &str, value: Option<&str>) -> (Nonlinearity, bool) {
    check.keyword(key, value, (Nonlinearity::Relu, false), &NONLINEARITIES)
}

fn norm(check: &mut ResolveContext<'_>, p: &ModelParams, is_t5: bool) -> Norm {
    let default = match p.use_t5_layer_norm.unwrap_or(is_t5) {
        true => Norm::RmsNorm,
        false => Norm::LayerNorm,
    };
    check.keyword("model.norm_type", p.norm_type.as_deref(), default, &NORMS)
}

fn positions(
    check: &mut ResolveContext<'_>,
    p: &ModelParams,
    is_t5: bool,
    relative: Seq2SeqPositions,
) -> Seq2SeqPositions {
    let key = "model.position_embedding_type";
    let value = decoder::position_embedding_type(check, p);
    let default = if is_t5 { PositionKind::Relative } else { PositionKind::Fixed };
    if p.use_relative_attention_bias == Some(false) && value.is_none() {
        return Seq2SeqPositions::Absent;
    }
    match check.keyword(key, value, default, &POSITION_EMBEDDINGS) {
        PositionKind::Relative => relative,
        PositionKind::Fixed => Seq2SeqPositions::Fixed,
        PositionKind::Learned | PositionKind::Rotary | PositionKind::Alibi => {
            check.unsupported(key, value.unwrap_or_default(), "use relative or fixed in t5 and transformer");
            relative
        }
    }
}

fn loss(check: &mut ResolveContext<'_>, p: &ModelParams) -> (LossScaling, f64) {
    let value = p.mlm_loss_scaling.as_deref();
    let scaling = check.keyword("model.mlm_loss_scaling", value, LossScaling::BatchSize, &SEQ2SEQ_LOSS_SCALINGS);
    let weight = check.positive("model.lm_loss_weight", p.lm_loss_weight, 1.0);
    match scaling {
        LossScaling::BatchSize | LossScaling::Sum => (scaling, weight),
        LossScaling::NumTokens => {
            if weight != 1.0 {
                check.note("model.lm_loss_weight has no effect: the loss is a mean over the labelled tokens");
            }
            (scaling, 1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlagOverrides, ParamsError};

    fn model(processor: &str, section: &str) -> Result<ModelSpec, ParamsError> {
        let text = format!(
            "train_input: {{data_processor: {processor}, batch_size: 8, src_max_sequence_length: 64, \
             tgt_max_sequence_length: 24, src_data_dir: text, src_vocab_file: vocab.txt}}\n\
             model: {{d_model: 64, d_kv: 8, d_ff: 96, num_heads: 4, encoder_num_hidden_layers: 2{section}}}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1}}\nrunconfig: {{max_steps: 1}}\n"
        );
        Ok(Params::parse_yaml(&text)?.resolve(&FlagOverrides::default())?.job.model)
    }

    #[test]
    fn defaults_are_those_of_the_family() {
        let t5 = model("T5DynamicDataProcessor", ", src_vocab_size: 100, extra_ids: 10").unwrap();
        let options = t5.seq2seq.as_ref().unwrap();
        assert_eq!((t5.family, t5.vocab_size, options.target_vocab_size), (ModelFamily::T5, 110, 110));
        assert_eq!((t5.decoder.norm, t5.attention_scale, t5.decoder.logits_scale), (Norm::RmsNorm, 1.0, 0.125));
        assert_eq!((options.norm_first, options.num_decoder_layers, options.target_length), (true, 2, 24));
        assert!(matches!(options.positions, Seq2SeqPositions::Relative { buckets: 32, max_distance: 128, .. }));
        assert_eq!(t5.decoder.attention_width, Some(32));

        let other = model("TransformerDynamicDataProcessor", ", tgt_vocab_size: 32128").unwrap();
        let options = other.seq2seq.as_ref().unwrap();
        assert_eq!((other.family, other.vocab_size), (ModelFamily::Transformer, DEFAULT_VOCABULARY));
        assert_eq!((other.decoder.norm, other.attention_scale), (Norm::LayerNorm, 8f64.sqrt().recip()));
        assert_eq!((options.norm_first, options.positions), (false, Seq2SeqPositions::Fixed));
        let InitializerSpec::Uniform { b, .. } = options.query_initializer else { panic!() };
        assert!((b - (6.0f64 / 72.0 / 96.0).sqrt()).abs() < 1e-15, "{b}");
    }

    #[test]
    fn keys_that_do_not_fit_are_rejected() {
        for (section, message) in [
            (", tgt_vocab_size: 7", "model.tgt_vocab_size is 7, but encoder and decoder share"),
            (", num_hidden_layers: 2", "model.num_hidden_layers has no meaning in t5"),
            (", position_embedding_type: alibi", "model.position_embedding_type alibi is not supported"),
            (", relative_attention_num_buckets: 7", "model.relative_attention_num_buckets is 7"),
            (", hidden_size: 63", "model.d_model is another spelling"),
            (", mup_base_d_model: 8", "model.mup_base_d_ff is missing"),
            (", mup_base_d_ff: 8, mup_base_d_model: 0", "model.mup_base_d_model is 0"),
            (
                ", mup_base_d_ff: 8, mup_base_d_model: 8, use_transformer_initialization: True",
                "excludes the initial values of the Transformer",
            ),
            (", mup_base_hidden_size: 8", "model.mup_base_hidden_size has no meaning in t5"),
            (", name: llama", "model.d_model has a meaning in t5 and transformer only"),
        ] {
            let error = model("T5DynamicDataProcessor", section).unwrap_err().report();
            assert!(error.contains(message), "{section}: {error}");
        }
    }
}
