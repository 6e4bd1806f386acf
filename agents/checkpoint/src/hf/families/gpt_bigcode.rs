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
        let theirs = |part: &str| format!("transformer.h.{block}.{part}");
        let ours = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&theirs("ln_1"), &ours("ln_1"));
        tensors.biased_layer(&theirs("attn.c_attn"), &ours("attn.qkv"));
        tensors.biased_layer(&theirs("attn.c_proj"), &ours("attn.proj"));
        tensors.layer(&theirs("ln_2"), &ours("ln_2"));
        tensors.biased_layer(&theirs("mlp.c_fc"), &ours("mlp.fc"));
        tensors.biased_layer(&theirs("mlp.c_proj"), &ours("mlp.proj"));
    }
    tensors.layer("transformer.ln_f", "ln_f");
    tensors.head("lm_head");
    Ok(HfModel { config, tensors: tensors.all })
}
