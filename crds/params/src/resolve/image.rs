//! Resolves `model` of the families that read images.

use super::check::ResolveContext;
use super::initializer::{self, InitializerSizes};
use super::model::{self, MAX_LAYERS, MAX_WIDTH, RUN_KEYS};
use crate::document::ModelParams;
use crate::job::{
    DecoderOptions, ImageNetwork, ImageOptions, ImageShape, InitializerSpec, Initializers, ModelFamily, ModelSpec,
    Nonlinearity,
};
use crate::keywords::{LAYER_NONLINEARITIES, NONLINEARITIES};
use crate::yaml::ParamsSection;

/// Maximum rows and columns of an image.
const MAX_PIXELS: usize = 1 << 14;
const MAX_CLASSES: usize = 1 << 24;
const MAX_CHANNELS: usize = 4;

/// Keys that only models of images have.
const IMAGE_KEYS: &[&str] = &[
    "hidden_sizes",
    "depth",
    "dropout",
    "activation_fn",
    "image_size",
    "num_channels",
    "patch_size",
    "use_embed_proj_bias",
    "prepend_cls_token",
    "use_encoder_pooler_layer",
];

/// Keys that every model of images has.
const COMMON_KEYS: &[&str] = &["name", "num_classes", "image_size", "num_channels", "hidden_size", "dropout_rate"];

const MLP_KEYS: &[&str] = &["hidden_sizes", "depth", "dropout", "activation_fn"];

const TRANSFORMER_KEYS: &[&str] = &[
    "num_hidden_layers",
    "num_heads",
    "filter_size",
    "patch_size",
    "position_embedding_type",
    "use_position_embedding",
    "embedding_dropout_rate",
    "attention_dropout_rate",
    "layer_norm_epsilon",
    "norm_first",
    "norm_type",
    "attention_type",
    "scale_qk_dot_by_d",
    "attention_logits_alpha",
    "use_projection_bias_in_attention",
    "use_ffn_bias_in_attention",
    "nonlinearity",
    "use_ffn_bias",
    "use_ff_layer1_dropout",
    "initializer_range",
    "embedding_initializer",
    "initializer",
    "output_layer_initializer",
    "ffn_initializer",
    "ffn_output_layer_initializer",
    "use_embed_proj_bias",
    "prepend_cls_token",
    "use_encoder_pooler_layer",
    "pooler_nonlinearity",
];

/// Returns whether the keys are those of a `fc_mnist`.
pub(super) fn has_mlp_keys(p: &ModelParams) -> bool {
    p.hidden_sizes.is_some() || p.depth.is_some()
}

/// Returns whether the keys are those of a `vision_transformer`.
pub(super) fn has_transformer_keys(p: &ModelParams) -> bool {
    p.patch_size.is_some() && (p.image_size.is_some() || p.num_channels.is_some())
}

/// Returns whether a family reads images.
pub(super) const fn reads_images(family: ModelFamily) -> bool {
    matches!(family, ModelFamily::FcMnist | ModelFamily::VisionTransformer)
}

/// Rejects keys of images in a model that reads tokens.
pub(super) fn refuse_image_keys(check: &mut ResolveContext<'_>, p: &ModelParams) {
    for key in p.given_keys().into_iter().filter(|key| IMAGE_KEYS.contains(key)) {
        let message = "has no meaning for a model that reads tokens";
        check.report_invalid(&format!("model.{key}"), message, "leave it out, or set model.name");
    }
}

/// Resolves the section for a family that reads images.
pub(super) fn resolve(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) -> ModelSpec {
    let (name, own_keys) = match family {
        ModelFamily::FcMnist => ("fc_mnist", MLP_KEYS),
        _ => ("vision_transformer", TRANSFORMER_KEYS),
    };
    for key in p.given_keys().into_iter().filter(|key| ![COMMON_KEYS, RUN_KEYS, own_keys].concat().contains(key)) {
        check.report_invalid(&format!("model.{key}"), format!("has no meaning for {name}"), "leave it out");
    }
    if family == ModelFamily::FcMnist { mlp(check, p) } else { transformer(check, p) }
}

/// What `fc_mnist` and `vision_transformer` resolve alike.
fn base(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily, image: ImageOptions) -> ModelSpec {
    let (loss_scaling, loss_weight) = model::loss(check, p, family);
    let classes = if family == ModelFamily::FcMnist { 10 } else { 2 };
    ModelSpec {
        family,
        vocab_size: check.count("model.num_classes", p.num_classes, classes, MAX_CLASSES),
        hidden_size: 1,
        num_hidden_layers: 1,
        num_heads: 1,
        filter_size: 1,
        // Samples are images, one each.
        max_position_embeddings: 1,
        use_position_embedding: true,
        share_embedding_weights: false,
        dropout_rate: 0.0,
        embedding_dropout_rate: 0.0,
        attention_dropout_rate: 0.0,
        layer_norm_epsilon: 1e-5,
        attention_scale: 1.0,
        nonlinearity: Nonlinearity::Relu,
        use_projection_bias_in_attention: true,
        use_ffn_bias_in_attention: true,
        use_ffn_bias: true,
        use_bias_in_output: true,
        initializers: Initializers::uniform(InitializerSpec::truncated_normal(0.02)),
        precision: model::precision(check, p),
        loss_scaling,
        loss_weight,
        compute_eval_metrics: p.compute_eval_metrics.unwrap_or(true),
        decoder: DecoderOptions::default(),
        encoder: None,
        seq2seq: None,
        image: Some(image),
        graph: None,
    }
}

fn mlp(check: &mut ResolveContext<'_>, p: &ModelParams) -> ModelSpec {
    let hidden_sizes = hidden_sizes(check, p);
    let shape = shape(check, p, [28, 28], 1);
    let value = check.either_spelling("model.dropout_rate", p.dropout_rate, "model.dropout", p.dropout);
    let dropout_rate = check.probability("model.dropout_rate", value, 0.0);
    let name = p.activation_fn.as_deref();
    let key = "model.activation_fn";
    let nonlinearity = check.keyword(key, name, Nonlinearity::Relu, &LAYER_NONLINEARITIES);
    let (hidden_size, num_hidden_layers) = (hidden_sizes.iter().copied().max().unwrap_or(1), hidden_sizes.len().max(1));
    let image = ImageOptions { shape, network: ImageNetwork::Mlp { hidden_sizes } };
    let spec = base(check, p, ModelFamily::FcMnist, image);
    ModelSpec { hidden_size, num_hidden_layers, filter_size: hidden_size, dropout_rate, nonlinearity, ..spec }
}

fn hidden_sizes(check: &mut ResolveContext<'_>, p: &ModelParams) -> Vec<usize> {
    if let Some(sizes) = &p.hidden_sizes {
        if sizes.len() > MAX_LAYERS {
            let message = format!("has {} layers", sizes.len());
            check.report_invalid("model.hidden_sizes", message, format!("give at most {MAX_LAYERS}"));
            return Vec::new();
        }
        if p.depth.is_some_and(|depth| depth != sizes.len() as u64) {
            let message = format!("differs from the {} numbers of model.hidden_sizes", sizes.len());
            check.report_invalid("model.depth", message, "leave it out");
        }
        return sizes.iter().map(|&size| check.count("model.hidden_sizes", Some(size), 1, MAX_WIDTH)).collect();
    }
    let depth = check.required_count("model.depth", p.depth, MAX_LAYERS);
    let width = check.required_count("model.hidden_size", p.hidden_size, MAX_WIDTH);
    vec![width; depth]
}

fn transformer(check: &mut ResolveContext<'_>, p: &ModelParams) -> ModelSpec {
    let shape = shape(check, p, [224, 224], 3);
    let patch_size = pair(check, "model.patch_size", p.patch_size.as_deref(), [16, 16]);
    if !shape.height.is_multiple_of(patch_size[0]) || !shape.width.is_multiple_of(patch_size[1]) {
        let message =
            format!("is {patch_size:?}, which does not divide the image of {} x {}", shape.height, shape.width);
        check.report_invalid("model.patch_size", message, "choose a size that divides model.image_size");
    }
    check.require_value("model.prepend_cls_token", p.prepend_cls_token, true);
    check.require_value("model.use_position_embedding", p.use_position_embedding, true);
    check_parts(check, p);
    let sizes = model::block_sizes(check, p);
    let pooler = pooler(check, p);
    let network = ImageNetwork::Transformer {
        patch_size,
        has_projection_bias: p.use_embed_proj_bias.unwrap_or(true),
        pooler_nonlinearity: pooler,
    };
    let spec = base(check, p, ModelFamily::VisionTransformer, ImageOptions { shape, network });
    let rate = check.probability("model.dropout_rate", p.dropout_rate, 0.0);
    let (nonlinearity, is_gated) =
        check.keyword("model.nonlinearity", p.nonlinearity.as_deref(), (Nonlinearity::Gelu, false), &NONLINEARITIES);
    refuse_gated(check, "model.nonlinearity", p.nonlinearity.as_deref(), is_gated);
    let extent = InitializerSizes { layers: sizes.layers, vocabulary: spec.vocab_size, hidden: sizes.hidden };
    ModelSpec {
        hidden_size: sizes.hidden,
        num_hidden_layers: sizes.layers,
        num_heads: sizes.heads,
        filter_size: sizes.filter,
        dropout_rate: rate,
        embedding_dropout_rate: check.probability("model.embedding_dropout_rate", p.embedding_dropout_rate, rate),
        attention_dropout_rate: check.probability("model.attention_dropout_rate", p.attention_dropout_rate, rate),
        layer_norm_epsilon: check.positive("model.layer_norm_epsilon", p.layer_norm_epsilon, 1e-5),
        attention_scale: model::attention_scale(check, p, sizes.head()),
        nonlinearity,
        use_projection_bias_in_attention: p.use_projection_bias_in_attention.unwrap_or(true),
        use_ffn_bias_in_attention: p.use_ffn_bias_in_attention.unwrap_or(true),
        use_ffn_bias: p.use_ffn_bias.unwrap_or(true),
        initializers: initializer::resolve(check, p, extent, ModelFamily::VisionTransformer, None),
        ..spec
    }
}

/// Checks the keys of which only one kind is supported.
fn check_parts(check: &mut ResolveContext<'_>, p: &ModelParams) {
    for (key, value, supported) in [
        ("model.position_embedding_type", &p.position_embedding_type, "learned"),
        ("model.norm_type", &p.norm_type, "layernorm"),
    ] {
        if let Some(value) = value.as_deref().filter(|value| !value.eq_ignore_ascii_case(supported)) {
            check.unsupported(key, value, format!("use {supported}"));
        }
    }
}

fn pooler(check: &mut ResolveContext<'_>, p: &ModelParams) -> Option<Nonlinearity> {
    let name = p.pooler_nonlinearity.as_deref();
    let kind = check.keyword("model.pooler_nonlinearity", name, Nonlinearity::Tanh, &LAYER_NONLINEARITIES);
    p.use_encoder_pooler_layer.unwrap_or(false).then_some(kind)
}

fn refuse_gated(check: &mut ResolveContext<'_>, key: &str, name: Option<&str>, is_gated: bool) {
    if is_gated {
        check.unsupported(key, name.unwrap_or_default(), "use a function of one value, such as gelu");
    }
}

fn shape(check: &mut ResolveContext<'_>, p: &ModelParams, default: [usize; 2], channels: usize) -> ImageShape {
    let [height, width] = pair(check, "model.image_size", p.image_size.as_deref(), default);
    ImageShape { channels: check.count("model.num_channels", p.num_channels, channels, MAX_CHANNELS), height, width }
}

/// Checks rows and columns of pixels.
pub(super) fn pair(
    check: &mut ResolveContext<'_>,
    key: &str,
    sizes: Option<&[u64]>,
    default: [usize; 2],
) -> [usize; 2] {
    match sizes {
        None => default,
        Some(&[rows, columns]) => [
            check.count(key, Some(rows), default[0], MAX_PIXELS),
            check.count(key, Some(columns), default[1], MAX_PIXELS),
        ],
        Some(other) => {
            let message = format!("has {} numbers", other.len());
            check.report_invalid(key, message, "give two, the rows and columns of pixels");
            default
        }
    }
}
