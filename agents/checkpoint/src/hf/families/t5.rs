//! T5 and T5 1.1: relative positions, no biases, scores that are not scaled.

use super::*;

/// Tensors that are copies of the token embedding, or that old directories have without an effect.
pub(super) const UNUSED_TENSORS: &[&str] =
    &["encoder.embed_tokens.", "decoder.embed_tokens.", ".EncDecAttention.relative_attention_bias."];

/// What data and generation begin with.
pub(super) const UNUSED_KEYS: &[&str] = &["pad_token_id", "decoder_start_token_id"];

pub(super) fn defaults() -> Value {
    json!({"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu", "tie_word_embeddings": true, "num_heads": 8})
}

pub(super) fn describe(model: &Seq2Seq) -> Result<HfModel, Unsuitable> {
    let block = &model.block;
    let relative = block.relative.ok_or("has relative positions")?;
    // A tied output layer reads the decoder's output scaled by the inverse root of the width.
    let expected = if model.is_tied { (model.hidden as f64).sqrt().recip() } else { 1.0 };
    require(&[
        (model.norm == NormForm::Rms, "has RMS norms"),
        (!model.tensors.have_biases(), "has no biases"),
        (model.shares_embedding, "has one token embedding for encoder and decoder"),
        (
            (f64::from(model.logits_scale) / expected - 1.0).abs() < 1e-6,
            "scales logits only if its output layer is tied",
        ),
        (model.decoder_layers > 0, "has decoder blocks"),
    ])?;
    let name = match (block.activation, block.is_gated) {
        // This name stands for the approximation with tanh.
        (Nonlinearity::GeluTanh, true) => "gated-gelu".to_owned(),
        (Nonlinearity::Gelu, true) => return Err("approximates a gated gelu by tanh"),
        (kind, is_gated) => format!("{}{}", if is_gated { "gated-" } else { "" }, activation(kind)?),
    };
    let config = json!({
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": model.vocabulary,
        "d_model": model.hidden,
        "d_kv": model.attention_width / block.heads.max(1),
        "d_ff": model.inner,
        "num_layers": model.encoder_layers,
        "num_decoder_layers": model.decoder_layers,
        "num_heads": block.heads,
        "relative_attention_num_buckets": relative.buckets,
        "relative_attention_max_distance": relative.max_distance,
        "dropout_rate": decimal(model.residual_dropout),
        "layer_norm_epsilon": decimal(model.epsilon),
        "feed_forward_proj": name,
        "is_encoder_decoder": true,
        "tie_word_embeddings": model.is_tied,
        // Without a tokenizer they are unknown: transformers then refuses to generate, instead of beginning with a
        // word.
        "pad_token_id": null,
        "decoder_start_token_id": null,
        "eos_token_id": null,
    });
    let mut tensors = Tensors::of_seq2seq(model);
    tensors.layer("shared", "decoder.wte");
    for (side, layers) in [("encoder", model.encoder_layers), ("decoder", model.decoder_layers)] {
        let table = format!("{side}.block.0.layer.0.SelfAttention.relative_attention_bias");
        tensors.layer(&table, &format!("{side}.relative"));
        for block in 0..layers {
            add_block(&mut tensors, side, block);
        }
        tensors.layer(&format!("{side}.final_layer_norm"), &format!("{side}.ln_f"));
    }
    if !model.is_tied {
        tensors.layer("lm_head", "lm_head");
    }
    Ok(HfModel { config, tensors: tensors.all })
}

fn add_block(tensors: &mut Tensors<'_>, side: &str, block: usize) {
    let name = |part: &str| format!("{side}.h.{block}.{part}");
    let mut attentions = vec![("ln_1", "attn", "SelfAttention")];
    if side == "decoder" {
        attentions.push(("ln_cross", "cross", "EncDecAttention"));
    }
    let network = attentions.len();
    for (layer, (norm, part, kind)) in attentions.into_iter().enumerate() {
        let hf_name = |part: &str| format!("{side}.block.{block}.layer.{layer}.{part}");
        tensors.layer(&hf_name("layer_norm"), &name(norm));
        tensors.layer(&hf_name(&format!("{kind}.q")), &name(&format!("{part}.q")));
        let [keys, values] = ["k", "v"].map(|letter| hf_name(&format!("{kind}.{letter}")));
        tensors.split_keys([&keys, &values], &name(&format!("{part}.kv")));
        tensors.layer(&hf_name(&format!("{kind}.o")), &name(&format!("{part}.proj")));
    }
    let hf_name = |part: &str| format!("{side}.block.{block}.layer.{network}.{part}");
    tensors.layer(&hf_name("layer_norm"), &name("ln_2"));
    tensors.layer(&hf_name("DenseReluDense.wi_0"), &name("mlp.gate"));
    let is_gated = tensors.has(&name("mlp.gate.weight"));
    let fc = if is_gated { "DenseReluDense.wi_1" } else { "DenseReluDense.wi" };
    tensors.layer(&hf_name(fc), &name("mlp.fc"));
    tensors.layer(&hf_name("DenseReluDense.wo"), &name("mlp.proj"));
}
