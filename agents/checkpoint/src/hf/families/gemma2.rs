//! Gemma 2: norms around each part of a block, a window in every other block, capped scores and logits. Embeddings are
//! scaled by the root of their width, and the gains of norms are stored less 1.

use millrace_emulator::ops::RotaryPairing;

use super::*;

pub(super) fn defaults() -> Value {
    json!({"hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "rope_scaling": null, "tie_word_embeddings": true, "attention_bias": false, "head_dim": 256,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0})
}

pub(super) fn describe(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    let block = &decoder.block;
    require(&[
        (block.is_branch_normalized, "normalizes the outputs of attention and network"),
        (decoder.norm == NormForm::Rms, "has RMS norms"),
        (block.is_gated, "has a gated feed-forward network"),
        (block.form == BlockForm::Sequential, "has no parallel blocks"),
        (!block.alibi && decoder.learned_positions.is_none(), "has rotary positions"),
        (!decoder.is_embedding_normalized, "does not normalize embeddings"),
        (!decoder.has_block_bias() && !decoder.has("lm_head.bias"), "has no biases"),
        (decoder.is_tied, "has the token embedding as output layer"),
        (
            decoder.is_window_alternating || block.window.is_some() && decoder.layers == 1,
            "has a window in every other block",
        ),
        (is_root(decoder.embedding_scale, decoder.hidden), "scales embeddings by the root of their width"),
    ])?;
    let rotary = block.rotary.ok_or("has rotary positions")?;
    require(&[
        (rotary.pairing == RotaryPairing::Halves, "rotates elements of two halves"),
        (rotary.dimensions == decoder.head_dim && rotary.scaling.is_none(), "rotates whole heads"),
    ])?;
    // Scores are scaled by the inverse root of a whole number. What is left is a factor on the queries.
    let scale = f64::from(block.scale);
    let scalar = (scale * scale).recip().round().clamp(1.0, f64::from(1 << 20));
    let config = json!({
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_size": decoder.hidden,
        "intermediate_size": decoder.inner,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": block.heads,
        "num_key_value_heads": block.key_heads,
        "head_dim": decoder.head_dim,
        "hidden_activation": activation(block.activation)?,
        "max_position_embeddings": decoder.sequence,
        "rms_norm_eps": decimal(decoder.epsilon),
        "rope_theta": rotary.base,
        "rope_scaling": null,
        "attention_bias": false,
        "attention_dropout": decimal(decoder.rates.attention),
        "query_pre_attn_scalar": scalar as u64,
        "sliding_window": block.window,
        "attn_logit_softcapping": block.softcap.map(decimal),
        "final_logit_softcapping": decoder.logits_softcap.map(decimal),
    });
    Ok(HfModel { config, tensors: tensors(decoder, scalar) })
}

/// Returns whether `scale` is the square root of `width`, rounded to f32 or bfloat16.
fn is_root(scale: f32, width: usize) -> bool {
    let root = (width as f64).sqrt();
    (f64::from(scale) / root - 1.0).abs() < 4e-3
}

fn tensors(decoder: &Decoder, scalar: f64) -> Vec<MappedTensor> {
    let mut tensors = Tensors::of_decoder_scaled(decoder, scalar);
    tensors.layer("model.embed_tokens", "wte");
    for block in 0..decoder.layers {
        let hf_name = |part: &str| format!("model.layers.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.shifted_gain(&hf_name("input_layernorm"), &name("ln_1"));
        let parts = ["q", "k", "v"].map(|part| hf_name(&format!("self_attn.{part}_proj")));
        tensors.split(&parts, &name("attn.qkv"));
        tensors.layer(&hf_name("self_attn.o_proj"), &name("attn.proj"));
        tensors.shifted_gain(&hf_name("post_attention_layernorm"), &name("ln_1_post"));
        tensors.shifted_gain(&hf_name("pre_feedforward_layernorm"), &name("ln_2"));
        tensors.layer(&hf_name("mlp.gate_proj"), &name("mlp.gate"));
        tensors.layer(&hf_name("mlp.up_proj"), &name("mlp.fc"));
        tensors.layer(&hf_name("mlp.down_proj"), &name("mlp.proj"));
        tensors.shifted_gain(&hf_name("post_feedforward_layernorm"), &name("ln_2_post"));
    }
    tensors.shifted_gain("model.norm", "ln_f");
    tensors.all
}
