//! GPT-J: adjacent elements are rotated, blocks are parallel with one norm, the output layer has a bias.

use millrace_emulator::ops::RotaryPairing;

use super::*;

pub(super) fn defaults() -> Value {
    json!({"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "rotary_dim": 64,
        "tie_word_embeddings": false})
}

pub(super) fn describe(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    let block = &decoder.block;
    require(&[
        (decoder.norm == NormForm::Layer, "has layer norms with offsets"),
        (block.form == BlockForm::ParallelOneNorm, "has parallel blocks with one norm"),
        (!block.is_gated, "has no gated feed-forward network"),
        (block.key_heads == block.heads, "has keys and values for each head"),
        (block.window.is_none() && !block.alibi && decoder.learned_positions.is_none(), "has rotary positions only"),
        (!decoder.is_embedding_normalized, "does not normalize embeddings"),
        (decoder.head_dim * block.heads == decoder.hidden, "has heads of the width of the model"),
    ])?;
    let rotary = block.rotary.ok_or("has rotary positions")?;
    require(&[
        (rotary.pairing == RotaryPairing::Adjacent, "rotates adjacent elements"),
        (rotary.base == 10_000.0 && rotary.scaling.is_none(), "has the base 10000 of rotary positions"),
    ])?;
    let config = json!({
        "architectures": ["GPTJForCausalLM"],
        "n_embd": decoder.hidden,
        "n_inner": decoder.inner,
        "n_layer": decoder.layers,
        "n_head": block.heads,
        "n_positions": decoder.sequence,
        "rotary_dim": rotary.dimensions,
        "activation_function": activation(decoder.block.activation)?,
        "layer_norm_epsilon": decimal(decoder.epsilon),
        "embd_pdrop": decimal(decoder.rates.embedding),
        "attn_pdrop": decimal(decoder.rates.attention),
        "resid_pdrop": decimal(decoder.rates.residual),
    });
    let mut tensors = Tensors::of_decoder(decoder);
    tensors.layer("transformer.wte", "wte");
    for block in 0..decoder.layers {
        let hf_name = |part: &str| format!("transformer.h.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name("ln_1"), &name("ln_1"));
        let parts = ["q", "k", "v"].map(|part| hf_name(&format!("attn.{part}_proj")));
        tensors.split(&parts, &name("attn.qkv"));
        tensors.layer(&hf_name("attn.out_proj"), &name("attn.proj"));
        tensors.biased_layer(&hf_name("mlp.fc_in"), &name("mlp.fc"));
        tensors.biased_layer(&hf_name("mlp.fc_out"), &name("mlp.proj"));
    }
    tensors.layer("transformer.ln_f", "ln_f");
    require(&[
        (!decoder.is_tied, "has an output layer of its own"),
        (!decoder.has("h.0.attn.qkv.bias") && !decoder.has("h.0.attn.proj.bias"), "has no biases of attention"),
    ])?;
    tensors.biased_layer("lm_head", "lm_head");
    Ok(HfModel { config, tensors: tensors.all })
}
