//! MPT: ALiBi, layer norms without offsets, no biases.

use millrace_emulator::ops::Nonlinearity;

use super::*;

pub(super) fn defaults() -> Value {
    json!({"layer_norm_epsilon": 1e-5, "no_bias": true, "tie_word_embeddings": true})
}

pub(super) fn describe(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    let block = &decoder.block;
    require(&[
        (decoder.norm == NormForm::BiaslessLayer, "has layer norms without offsets"),
        (block.alibi && block.rotary.is_none() && decoder.learned_positions.is_none(), "has ALiBi only"),
        (!decoder.is_embedding_normalized, "does not normalize embeddings"),
        (block.form == BlockForm::Sequential, "has no parallel blocks"),
        (!block.is_gated && decoder.inner == 4 * decoder.hidden, "has a network 4 times as wide as the model"),
        (block.activation == Nonlinearity::Gelu, "has the activation gelu"),
        (block.key_heads == block.heads, "has keys and values for each head"),
        (block.window.is_none(), "has no attention window"),
        (decoder.head_dim * block.heads == decoder.hidden, "has heads of the width of the model"),
        (!decoder.has_block_bias(), "has no biases"),
        (!decoder.has("lm_head.bias"), "has no bias in the output layer"),
    ])?;
    let config = json!({
        "architectures": ["MptForCausalLM"],
        "d_model": decoder.hidden,
        "n_layers": decoder.layers,
        "n_heads": block.heads,
        "expansion_ratio": 4,
        "max_seq_len": decoder.sequence,
        "layer_norm_epsilon": decimal(decoder.epsilon),
        "no_bias": true,
        "emb_pdrop": decimal(decoder.rates.embedding),
        "resid_pdrop": decimal(decoder.rates.residual),
    });
    let mut tensors = Tensors::of_decoder(decoder);
    tensors.layer("transformer.wte", "wte");
    for block in 0..decoder.layers {
        let hf_name = |part: &str| format!("transformer.blocks.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name("norm_1"), &name("ln_1"));
        tensors.layer(&hf_name("attn.Wqkv"), &name("attn.qkv"));
        tensors.layer(&hf_name("attn.out_proj"), &name("attn.proj"));
        tensors.layer(&hf_name("norm_2"), &name("ln_2"));
        tensors.layer(&hf_name("ffn.up_proj"), &name("mlp.fc"));
        tensors.layer(&hf_name("ffn.down_proj"), &name("mlp.proj"));
    }
    tensors.layer("transformer.norm_f", "ln_f");
    tensors.head("lm_head");
    Ok(HfModel { config, tensors: tensors.all })
}
