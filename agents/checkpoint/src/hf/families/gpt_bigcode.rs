//! StarCoder and SantaCoder: as GPT-2, with one head of keys and values.

use super::*;

pub(super) fn defaults() -> Value {
    json!({"activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-5, "multi_query": true,
        "scale_attn_weights": true, "tie_word_embeddings": true})
}

pub(super) fn describe(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    let block = &decoder.block;
    require(&[
        (decoder.norm == NormForm::Layer, "has layer norms with offsets"),
        (block.rotary.is_none() && !block.alibi, "has learned positions"),
        (!decoder.is_embedding_normalized, "does not normalize embeddings"),
        (block.form == BlockForm::Sequential, "has no parallel blocks"),
        (!block.is_gated, "has no gated feed-forward network"),
        (block.key_heads == 1, "has one head of keys and values"),
        (block.window.is_none(), "has no attention window"),
        (!decoder.has("lm_head.bias"), "has no bias in the output layer"),
        (decoder.head_dim * block.heads == decoder.hidden, "has heads of the width of the model"),
    ])?;
    let positions = decoder.learned_positions.ok_or("has learned positions")?;
    let config = json!({
        "architectures": ["GPTBigCodeForCausalLM"],
        "n_embd": decoder.hidden,
        "n_inner": decoder.inner,
        "n_layer": decoder.layers,
        "n_head": block.heads,
        "n_positions": positions,
        "activation_function": activation(decoder.block.activation)?,
        "layer_norm_epsilon": decimal(decoder.epsilon),
        "multi_query": true,
        "scale_attn_weights": true,
        "embd_pdrop": decimal(decoder.rates.embedding),
        "attn_pdrop": decimal(decoder.rates.attention),
        "resid_pdrop": decimal(decoder.rates.residual),
    });
    let mut tensors = Tensors::of_decoder(decoder);
    tensors.layer("transformer.wte", "wte");
    tensors.layer("transformer.wpe", "wpe");
    for block in 0..decoder.layers {
        let hf_name = |part: &str| format!("transformer.h.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name("ln_1"), &name("ln_1"));
        tensors.biased_layer(&hf_name("attn.c_attn"), &name("attn.qkv"));
        tensors.biased_layer(&hf_name("attn.c_proj"), &name("attn.proj"));
        tensors.layer(&hf_name("ln_2"), &name("ln_2"));
        tensors.biased_layer(&hf_name("mlp.c_fc"), &name("mlp.fc"));
        tensors.biased_layer(&hf_name("mlp.c_proj"), &name("mlp.proj"));
    }
    tensors.layer("transformer.ln_f", "ln_f");
    tensors.head("lm_head");
    Ok(HfModel { config, tensors: tensors.all })
}
