//! BLOOM: ALiBi, and a norm of the embeddings.

use millrace_emulator::ops::Nonlinearity;

use super::*;

pub(super) fn defaults() -> Value {
    json!({"layer_norm_epsilon": 1e-5, "tie_word_embeddings": true, "apply_residual_connection_post_layernorm": false})
}

pub(super) fn describe(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    let block = &decoder.block;
    require(&[
        (decoder.norm == NormForm::Layer, "has layer norms with offsets"),
        (block.alibi && block.rotary.is_none() && decoder.learned_positions.is_none(), "has ALiBi only"),
        (decoder.is_embedding_normalized, "normalizes embeddings"),
        (block.form == BlockForm::Sequential, "has no parallel blocks"),
        (!block.is_gated && decoder.inner == 4 * decoder.hidden, "has a network 4 times as wide as the model"),
        (block.activation == Nonlinearity::GeluTanh, "has the activation gelu_new"),
        (block.key_heads == block.heads, "has keys and values for each head"),
        (block.window.is_none(), "has no attention window"),
        (!decoder.has("lm_head.bias"), "has no bias in the output layer"),
        (decoder.head_dim * block.heads == decoder.hidden, "has heads of the width of the model"),
    ])?;
    let config = json!({
        "architectures": ["BloomForCausalLM"],
        "hidden_size": decoder.hidden,
        "n_layer": decoder.layers,
        "n_head": block.heads,
        "layer_norm_epsilon": decimal(decoder.epsilon),
        "apply_residual_connection_post_layernorm": false,
        "attention_dropout": decimal(decoder.rates.attention),
        "hidden_dropout": decimal(decoder.rates.residual),
    });
    let mut tensors = Tensors::of_decoder(decoder);
    tensors.layer("transformer.word_embeddings", "wte");
    tensors.layer("transformer.word_embeddings_layernorm", "ln_embed");
    for block in 0..decoder.layers {
        let hf_name = |part: &str| format!("transformer.h.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name("input_layernorm"), &name("ln_1"));
        tensors.by_key_head(&hf_name("self_attention.query_key_value"), &name("attn.qkv"), true);
        tensors.biased_layer(&hf_name("self_attention.dense"), &name("attn.proj"));
        tensors.layer(&hf_name("post_attention_layernorm"), &name("ln_2"));
        tensors.biased_layer(&hf_name("mlp.dense_h_to_4h"), &name("mlp.fc"));
        tensors.biased_layer(&hf_name("mlp.dense_4h_to_h"), &name("mlp.proj"));
    }
    tensors.layer("transformer.ln_f", "ln_f");
    tensors.head("lm_head");
    Ok(HfModel { config, tensors: tensors.all })
}
