//! GPT-NeoX: parts of heads are rotated, blocks are parallel with two norms or sequential.

use millrace_emulator::ops::RotaryPairing;

use super::*;

pub(super) fn defaults() -> Value {
    json!({"hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10_000.0,
        "use_parallel_residual": true, "attention_bias": true, "tie_word_embeddings": false})
}

pub(super) fn describe(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    let block = &decoder.block;
    require(&[
        (decoder.norm == NormForm::Layer, "has layer norms with offsets"),
        (block.form != BlockForm::ParallelOneNorm, "has two norms in a block"),
        (!block.is_gated, "has no gated feed-forward network"),
        (block.key_heads == block.heads, "has keys and values for each head"),
        (block.window.is_none() && !block.alibi && decoder.learned_positions.is_none(), "has rotary positions only"),
        (!decoder.is_embedding_normalized, "does not normalize embeddings"),
        (!decoder.has("lm_head.bias"), "has no bias in the output layer"),
        (decoder.head_dim * block.heads == decoder.hidden, "has heads of the width of the model"),
    ])?;
    let rotary = block.rotary.ok_or("has rotary positions")?;
    require(&[
        (rotary.pairing == RotaryPairing::Halves, "rotates elements of two halves"),
        (rotary.scaling.is_none(), "does not scale rotary positions"),
    ])?;
    let config = json!({
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_size": decoder.hidden,
        "intermediate_size": decoder.inner,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": block.heads,
        "max_position_embeddings": decoder.sequence,
        "hidden_act": activation(decoder.block.activation)?,
        "rotary_pct": rotary.dimensions as f64 / decoder.head_dim as f64,
        "rotary_emb_base": rotary.base,
        "layer_norm_eps": decimal(decoder.epsilon),
        "use_parallel_residual": block.form == BlockForm::ParallelTwoNorms,
        "attention_bias": true,
        "attention_dropout": decimal(decoder.rates.attention),
        "hidden_dropout": decimal(decoder.rates.residual),
    });
    let mut tensors = Tensors::of_decoder(decoder);
    tensors.layer("gpt_neox.embed_in", "wte");
    for block in 0..decoder.layers {
        let hf_name = |part: &str| format!("gpt_neox.layers.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name("input_layernorm"), &name("ln_1"));
        tensors.by_key_head(&hf_name("attention.query_key_value"), &name("attn.qkv"), true);
        tensors.biased_layer(&hf_name("attention.dense"), &name("attn.proj"));
        tensors.layer(&hf_name("post_attention_layernorm"), &name("ln_2"));
        tensors.biased_layer(&hf_name("mlp.dense_h_to_4h"), &name("mlp.fc"));
        tensors.biased_layer(&hf_name("mlp.dense_4h_to_h"), &name("mlp.proj"));
    }
    tensors.layer("gpt_neox.final_layer_norm", "ln_f");
    tensors.head("embed_out");
    Ok(HfModel { config, tensors: tensors.all })
}
