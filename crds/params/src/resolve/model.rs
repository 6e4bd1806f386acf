//! Resolves `model`.

use super::check::ResolveContext;
use super::initializer::{self, InitializerSizes};
use super::mup::{self, WidthRatios};
use super::{decoder, encoder, graph, image, packing, seq2seq};
use crate::document::{ModelParams, Params};
use crate::job::{LossScaling, ModelFamily, ModelSpec, Nonlinearity, Precision};
use crate::keywords::{ATTENTION_TYPES, HALF_TYPES, LOSS_SCALINGS, NONLINEARITIES};

/// Bounds far above any real model, so that products of these numbers can't overflow.
pub(super) const MAX_VOCABULARY: usize = 1 << 24;
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_LAYERS: usize = 1 << 14;
pub(super) const MAX_POSITIONS: usize = 1 << 22;

/// Keys of every model, which describe how it is trained: precision, loss and metrics.
pub(super) const RUN_KEYS: &[&str] =
    &["mixed_precision", "use_bfloat16", "fp16_type", "loss_scaling", "loss_weight", "compute_eval_metrics"];

/// Resolves the section. `flag` is the family of `--model`. With muP, also returns the ratios to the base model.
pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    params: &Params,
    flag: Option<&str>,
) -> (ModelSpec, Option<WidthRatios>) {
    let section = params.model.as_ref();
    if section.is_none() {
        check.report_missing(
            "model",
            "describe the model under model: hidden_size, num_hidden_layers, num_heads, vocab_size",
        );
    }
    // A missing section is one problem, not one for each of its keys.
    let absent = ModelParams {
        vocab_size: Some(MAX_VOCABULARY as u64),
        hidden_size: Some(1),
        num_hidden_layers: Some(1),
        num_heads: Some(1),
        ..ModelParams::default()
    };
    let p = section.unwrap_or(&absent);
    if let Some(path) = &p.graph {
        if flag.is_some() {
            let hint = "leave it out: the model is that of model.graph";
            check.report_invalid("--model", "is given beside model.graph", hint);
        }
        return (graph::resolve(check, p, path), None);
    }
    let family = decoder::family(check, params, p, flag, encoder::recognize(params, p));
    if family.is_seq2seq() {
        return seq2seq::resolve(check, params, p, family);
    }
    seq2seq::reject_keys(check, p, family);
    check_supported_kinds(check, p, family);
    if image::reads_images(family) {
        return (image::resolve(check, p, family), None);
    }
    image::refuse_image_keys(check, p);
    let vocab_size = vocab_size(check, params, p, family);
    let sizes = block_sizes(check, p);
    let vocab_size = vocabulary(check, vocab_size);
    let positions = check.count("model.max_position_embeddings", p.max_position_embeddings, 1024, MAX_POSITIONS);
    let [dropout_rate, embedding_dropout_rate, attention_dropout_rate] = dropout(check, p, family);
    let (loss_scaling, mut loss_weight) = loss(check, p, family);
    if family.is_encoder() {
        loss_weight = encoder::loss_weight(params, p, loss_weight);
    }
    let ratios = mup::width_ratios(check, p, sizes.hidden, sizes.filter);
    let extent = InitializerSizes { layers: sizes.layers, vocabulary: vocab_size, hidden: sizes.hidden };
    let mut spec = ModelSpec {
        family,
        vocab_size,
        hidden_size: sizes.hidden,
        num_hidden_layers: sizes.layers,
        num_heads: sizes.heads,
        filter_size: sizes.filter,
        max_position_embeddings: if family.is_encoder() {
            extend_positions(check, params, p, positions)
        } else {
            positions
        },
        use_position_embedding: use_position_embedding(check, p, family),
        share_embedding_weights: p.share_embedding_weights.unwrap_or(true),
        dropout_rate,
        embedding_dropout_rate,
        attention_dropout_rate,
        layer_norm_epsilon: check.positive("model.layer_norm_epsilon", p.layer_norm_epsilon, 1e-5),
        attention_scale: attention_scale(check, p, sizes.head()),
        nonlinearity: nonlinearity(check, p),
        use_projection_bias_in_attention: p.use_projection_bias_in_attention.unwrap_or(true),
        use_ffn_bias_in_attention: p.use_ffn_bias_in_attention.unwrap_or(true),
        use_ffn_bias: p.use_ffn_bias.unwrap_or(true),
        use_bias_in_output: p.use_bias_in_output.unwrap_or(false),
        initializers: initializer::resolve(check, p, extent, family, ratios),
        precision: precision(check, p),
        loss_scaling,
        loss_weight,
        compute_eval_metrics: p.compute_eval_metrics.unwrap_or(true),
        decoder: decoder::resolve(check, p, family, &sizes, ratios),
        encoder: encoder::resolve(check, params, p, family),
        seq2seq: None,
        image: None,
        graph: None,
    };
    spec.decoder.is_packed = packing::is_packed(check, params, p, family, &spec.decoder);
    if family.is_encoder() {
        encoder::check_decoder_options(check, &spec.decoder);
    }
    (spec, ratios)
}

/// Returns the size of the vocabulary. Older files have it only beside the data, and those of BERT nowhere.
fn vocab_size(check: &mut ResolveContext<'_>, params: &Params, p: &ModelParams, family: ModelFamily) -> Option<u64> {
    let value = p.vocab_size.or(params.train_input.as_ref().and_then(|input| input.vocab_size));
    if value.is_none() && family.is_encoder() && family != ModelFamily::Esm2 && params.model.is_some() {
        let entries = encoder::BERT_VOCABULARY;
        check.note(format!("model.vocab_size is omitted: the model has {entries} tokens, as BERT's vocabularies have"));
        return Some(entries);
    }
    value
}

/// Returns the positions of an encoder: those of its samples, if these are longer than the params say, as in some files
/// of the zoo.
fn extend_positions(check: &mut ResolveContext<'_>, params: &Params, p: &ModelParams, positions: usize) -> usize {
    let Some(tokens) = params.train_input.as_ref().and_then(|input| input.max_sequence_length) else {
        return positions;
    };
    let tokens = usize::try_from(tokens).unwrap_or(usize::MAX).min(MAX_POSITIONS);
    if tokens > positions && p.max_position_embeddings.is_some() {
        check.note(format!("model.max_position_embeddings is {tokens}, the length of a sample in train_input"));
    }
    tokens.max(positions)
}

pub(super) struct ModelSizes {
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Width of all heads of queries together.
    pub(super) attention: usize,
    pub(super) filter: usize,
}

impl ModelSizes {
    /// Returns the width of a head.
    pub(super) const fn head(&self) -> usize {
        self.attention / self.heads
    }
}

/// Resolves the sizes of the blocks.
pub(super) fn block_sizes(check: &mut ResolveContext<'_>, p: &ModelParams) -> ModelSizes {
    let hidden = check.required_count("model.hidden_size", p.hidden_size, MAX_WIDTH);
    let heads = check.required_count("model.num_heads", p.num_heads, MAX_WIDTH);
    let attention = check.count("model.attention_inner_dim", p.attention_inner_dim, hidden, MAX_WIDTH);
    let both_fine = p.hidden_size == Some(hidden as u64) && p.num_heads == Some(heads as u64);
    if both_fine && !attention.is_multiple_of(heads) {
        let key = if p.attention_inner_dim.is_some() { "attention_inner_dim" } else { "hidden_size" };
        let message = format!("is {heads}, which does not divide model.{key} {attention}");
        check.report_invalid("model.num_heads", message, format!("choose a number of heads that divides {key}"));
    }
    ModelSizes {
        hidden,
        layers: check.required_count("model.num_hidden_layers", p.num_hidden_layers, MAX_LAYERS),
        heads,
        attention,
        filter: check.count("model.filter_size", p.filter_size, 4 * hidden, MAX_WIDTH),
    }
}

fn vocabulary(check: &mut ResolveContext<'_>, value: Option<u64>) -> usize {
    let vocab = check.required_count("model.vocab_size", value, MAX_VOCABULARY);
    // A missing or invalid vocabulary must not also be reported as too small for the tokens.
    if value == Some(vocab as u64) { vocab } else { MAX_VOCABULARY }
}

/// Returns the dropout rates of the residual branches, of the embedding and of the attention weights. Their default is
/// 0 in the zoo's TensorFlow program for GPT-J.
fn dropout(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) -> [f64; 3] {
    let is_of_tensorflow = family == ModelFamily::Gptj && decoder::is_gptj_of_tensorflow(p);
    let value = check.either_spelling(
        "model.dropout_rate",
        p.dropout_rate,
        "model.residual_dropout_rate",
        p.residual_dropout_rate,
    );
    let rate = check.probability("model.dropout_rate", value, if is_of_tensorflow { 0.0 } else { 0.1 });
    [
        rate,
        check.probability("model.embedding_dropout_rate", p.embedding_dropout_rate, rate),
        check.probability("model.attention_dropout_rate", p.attention_dropout_rate, rate),
    ]
}

pub(super) fn attention_scale(check: &mut ResolveContext<'_>, p: &ModelParams, head_size: usize) -> f64 {
    let width = head_size.max(1) as f64;
    let is_scaled = check.keyword("model.attention_type", p.attention_type.as_deref(), true, &ATTENTION_TYPES);
    let alpha = check.positive("model.attention_logits_alpha", p.attention_logits_alpha, 1.0);
    let by_width = match (is_scaled, p.scale_qk_dot_by_d.unwrap_or(false)) {
        (true, true) => width.recip(),
        (true, false) => width.sqrt().recip(),
        (false, true) => {
            check.note("model.scale_qk_dot_by_d has no effect with attention_type: dot_product");
            1.0
        }
        (false, false) => 1.0,
    };
    alpha * by_width
}

fn nonlinearity(check: &mut ResolveContext<'_>, p: &ModelParams) -> Nonlinearity {
    let value = check.either_spelling(
        "model.nonlinearity",
        p.nonlinearity.as_deref(),
        "model.encoder_nonlinearity",
        p.encoder_nonlinearity.as_deref(),
    );
    check.keyword("model.nonlinearity", value, (Nonlinearity::Gelu, false), &NONLINEARITIES).0
}

/// Checks the keys of which only one kind is supported.
fn check_supported_kinds(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) {
    if !family.is_encoder() {
        check.require_value("model.norm_first", p.norm_first, true);
    }
    check.require_value("model.use_ff_layer1_dropout", p.use_ff_layer1_dropout, false);
}

pub(super) fn loss(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) -> (LossScaling, f64) {
    let scaling =
        check.keyword("model.loss_scaling", p.loss_scaling.as_deref(), LossScaling::NumTokens, &LOSS_SCALINGS);
    let weight = check.positive("model.loss_weight", p.loss_weight, 1.0);
    if family.is_encoder() {
        if p.loss_scaling.is_some() && scaling == LossScaling::NumTokens {
            check.unsupported("model.loss_scaling", "num_tokens in an encoder", "leave it out, or use batch_size");
        }
        return (LossScaling::BatchSize, weight);
    }
    if scaling == LossScaling::NumTokens && weight != 1.0 {
        check.note(format!(
            "model.loss_weight {weight} requires loss_scaling: batch_size, which is used instead of num_tokens"
        ));
        return (LossScaling::BatchSize, weight);
    }
    (scaling, weight)
}

fn use_position_embedding(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) -> bool {
    let older_key = "model.use_position_embeddings";
    // Older files of GPT-J say by it that no table of positions is added; queries and keys are rotated nevertheless.
    let older = p.use_position_embeddings.filter(|_| family != ModelFamily::Gptj);
    check.either_spelling("model.use_position_embedding", p.use_position_embedding, older_key, older).unwrap_or(true)
}

pub(super) fn precision(check: &mut ResolveContext<'_>, p: &ModelParams) -> Precision {
    let by_name = p.fp16_type.as_deref().map(|name| check.keyword("model.fp16_type", Some(name), true, &HALF_TYPES));
    if !p.mixed_precision.unwrap_or(false) {
        if p.use_bfloat16 == Some(true) {
            check.note("model.use_bfloat16 has no effect without mixed_precision: the model is trained in f32");
        }
        return Precision::F32;
    }
    if !by_name.or(p.use_bfloat16).unwrap_or(false) {
        check.note(match &p.fp16_type {
            Some(name) => format!("model.fp16_type {name} is replaced by bf16, which needs no loss scaling"),
            None => "mixed precision uses bf16 instead of fp16: it needs no loss scaling".to_owned(),
        });
    }
    Precision::Bf16
}
