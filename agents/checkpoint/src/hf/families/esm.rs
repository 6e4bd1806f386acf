//! ESM-2: rotary positions, blocks that normalize their input, and no embedding of masked tokens.

use millrace_emulator::ops::RotaryPairing;

use super::*;

/// Those of the head for contacts, which is not trained here, and of positions, which are rotary instead.
pub(super) const UNUSED_TENSORS: &[&str] = &["contact_head.", "embeddings.position_embeddings."];
/// See [`PAD_TOKEN`].
pub(super) const UNUSED_KEYS: &[&str] = &["pad_token_id"];
/// A token whose embedding `transformers` does not train. It has no effect on the output.
const PAD_TOKEN: usize = 1;

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-12, "tie_word_embeddings": true, "position_embedding_type": "absolute",
        "emb_layer_norm_before": false, "token_dropout": false})
}

pub(super) fn describe(encoder: &Encoder) -> Result<HfModel, Unsuitable> {
    let EncoderPositions::Rotary(rotary) = encoder.positions else { return Err("has rotary positions") };
    let EncoderHead::MaskedTokens { activation, next_sentence } = encoder.head else {
        return Err("predicts masked tokens");
    };
    require(&[
        (encoder.norm_first, "normalizes the input of blocks"),
        (next_sentence.is_none(), "does not predict the next sentence"),
        (activation == Nonlinearity::Gelu && encoder.activation == Nonlinearity::Gelu, "has gelu as activation"),
        (!encoder.tensors.has("wse.weight"), "has no segments"),
        (rotary.pairing == RotaryPairing::Halves, "rotates elements of two halves"),
        (rotary.dimensions == rotary.head_dim && rotary.scaling.is_none(), "rotates whole heads"),
        (rotary.base == 10_000.0, "has a rotary base of 10000"),
    ])?;
    let config = json!({
        "architectures": ["EsmForMaskedLM"],
        "vocab_size": encoder.vocabulary,
        "hidden_size": encoder.hidden,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.inner,
        "hidden_act": "gelu",
        "hidden_dropout_prob": decimal(encoder.rates.residual),
        "attention_probs_dropout_prob": decimal(encoder.rates.attention),
        "max_position_embeddings": encoder.sequence,
        "layer_norm_eps": decimal(encoder.epsilon),
        "position_embedding_type": "rotary",
        "emb_layer_norm_before": encoder.tensors.has("ln_embed.weight"),
        "token_dropout": encoder.token_dropout.is_some(),
        "mask_token_id": encoder.token_dropout,
        "pad_token_id": PAD_TOKEN.min(encoder.vocabulary.saturating_sub(1)),
        "tie_word_embeddings": encoder.is_tied,
    });
    let mut tensors = Tensors::of_encoder(encoder);
    tensors.layer("esm.embeddings.word_embeddings", "wte");
    tensors.layer("esm.embeddings.layer_norm", "ln_embed");
    for block in 0..encoder.layers {
        let hf_name = |part: &str| format!("esm.encoder.layer.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name("attention.LayerNorm"), &name("ln_1"));
        let parts = ["query", "key", "value"].map(|part| hf_name(&format!("attention.self.{part}")));
        tensors.biased_split(&parts, &name("attn.qkv"));
        let frequencies = (0..rotary.dimensions / 2).map(|pair| rotary.frequency(pair) as f32).collect();
        tensors.constant(&hf_name("attention.self.rotary_embeddings.inv_freq"), frequencies);
        tensors.biased_layer(&hf_name("attention.output.dense"), &name("attn.proj"));
        tensors.layer(&hf_name("LayerNorm"), &name("ln_2"));
        tensors.biased_layer(&hf_name("intermediate.dense"), &name("mlp.fc"));
        tensors.biased_layer(&hf_name("output.dense"), &name("mlp.proj"));
    }
    tensors.layer("esm.encoder.emb_layer_norm_after", "ln_out");
    tensors.zeros("esm.contact_head.regression.weight", &[1, encoder.layers.saturating_mul(encoder.heads)]);
    tensors.zeros("esm.contact_head.regression.bias", &[1]);
    tensors.layer("lm_head.dense", "head.dense");
    tensors.layer("lm_head.layer_norm", "ln_f");
    if !encoder.is_tied {
        tensors.reshaped("lm_head.decoder.weight", "lm_head.weight", &[encoder.vocabulary, encoder.hidden]);
    }
    tensors.reshaped("lm_head.bias", "lm_head.bias", &[encoder.vocabulary]);
    Ok(HfModel { config, tensors: tensors.all })
}
