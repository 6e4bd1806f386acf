//! Falcon: parallel blocks with one norm, or two (40B and later), rotary positions.

use millrace_emulator::ops::RotaryPairing;

use super::*;

pub(super) fn defaults() -> Value {
    json!({"activation": "gelu", "layer_norm_epsilon": 1e-5, "rope_theta": 10_000.0, "rope_scaling": null,
        "multi_query": true, "parallel_attn": true, "bias": false, "alibi": false, "new_decoder_architecture": false,
        "tie_word_embeddings": true})
}

pub(super) fn describe(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    let block = &decoder.block;
    let is_new = block.form == BlockForm::ParallelTwoNorms;
    require(&[
        (decoder.norm == NormForm::Layer, "has layer norms with offsets"),
        (block.form != BlockForm::Sequential, "has parallel blocks"),
        (!block.is_gated, "has no gated feed-forward network"),
        (is_new || block.key_heads == 1 || block.key_heads == block.heads, "has one head of keys, or one for each"),
        (block.window.is_none() && !block.alibi && decoder.learned_positions.is_none(), "has rotary positions only"),
        (!decoder.is_embedding_normalized, "does not normalize embeddings"),
        (!decoder.has("lm_head.bias"), "has no bias in the output layer"),
        (decoder.head_dim * block.heads == decoder.hidden, "has heads of the width of the model"),
    ])?;
    let rotary = block.rotary.ok_or("has rotary positions")?;
    require(&[
        (rotary.pairing == RotaryPairing::Halves, "rotates elements of two halves"),
        (rotary.dimensions == decoder.head_dim && rotary.scaling.is_none(), "rotates whole heads"),
    ])?;
    let is_biased = decoder.has_block_bias();
    let mut config = json!({
        "architectures": ["FalconForCausalLM"],
        "hidden_size": decoder.hidden,
        "ffn_hidden_size": decoder.inner,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": block.heads,
        "max_position_embeddings": decoder.sequence,
        "activation": activation(decoder.block.activation)?,
        "layer_norm_epsilon": decimal(decoder.epsilon),
        "rope_theta": rotary.base,
        "multi_query": !is_new && block.key_heads == 1,
        "parallel_attn": true,
        "new_decoder_architecture": is_new,
        "alibi": false,
        "bias": is_biased,
        "attention_dropout": decimal(decoder.rates.attention),
        "hidden_dropout": decimal(decoder.rates.residual),
    });
    if is_new {
        // Older models ignore the number, and have 1 head with multi_query, otherwise all.
        config["num_kv_heads"] = block.key_heads.into();
    }
    let mut tensors = Tensors::of_decoder(decoder);
    tensors.layer("transformer.word_embeddings", "wte");
    for block in 0..decoder.layers {
        let hf_name = |part: &str| format!("transformer.h.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name(if is_new { "ln_attn" } else { "input_layernorm" }), &name("ln_1"));
        tensors.layer(&hf_name("ln_mlp"), &name("ln_2"));
        tensors.by_key_head(&hf_name("self_attention.query_key_value"), &name("attn.qkv"), is_biased);
        for (hf_name, name) in [
            (hf_name("self_attention.dense"), name("attn.proj")),
            (hf_name("mlp.dense_h_to_4h"), name("mlp.fc")),
            (hf_name("mlp.dense_4h_to_h"), name("mlp.proj")),
        ] {
            if is_biased { tensors.biased_layer(&hf_name, &name) } else { tensors.layer(&hf_name, &name) }
        }
    }
    tensors.layer("transformer.ln_f", "ln_f");
    tensors.head("lm_head");
    Ok(HfModel { config, tensors: tensors.all })
}
