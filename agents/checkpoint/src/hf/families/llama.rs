//! LLaMA and Mistral: RMS norms, gated activations, rotary positions, grouped keys and values. Mistral may have a
//! window.

use millrace_emulator::ops::{RotaryPairing, RotaryScaling};

use super::*;

pub(super) fn llama(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    require(&[(decoder.block.window.is_none(), "has no attention window")])?;
    let mut model = describe(decoder, "LlamaForCausalLM")?;
    model.config["attention_bias"] = decoder.has("h.0.attn.qkv.bias").into();
    model.config["mlp_bias"] = decoder.has("h.0.mlp.fc.bias").into();
    Ok(model)
}

pub(super) fn mistral(decoder: &Decoder) -> Result<HfModel, Unsuitable> {
    require(&[(!decoder.has_block_bias(), "has no biases")])?;
    let mut model = describe(decoder, "MistralForCausalLM")?;
    model.config["sliding_window"] = decoder.block.window.into();
    Ok(model)
}

pub(super) fn defaults() -> Value {
    json!({"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "rope_scaling": null,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false})
}

pub(super) fn mistral_defaults() -> Value {
    json!({"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "rope_scaling": null,
        "tie_word_embeddings": false, "sliding_window": 4096})
}

fn describe(decoder: &Decoder, architecture: &str) -> Result<HfModel, Unsuitable> {
    let block = &decoder.block;
    let has_bias = |part: &str| decoder.has(&format!("h.0.{part}.bias"));
    require(&[
        (decoder.norm == NormForm::Rms, "has RMS norms"),
        (block.is_gated, "has a gated feed-forward network"),
        (block.form == BlockForm::Sequential, "has no parallel blocks"),
        (!block.alibi && decoder.learned_positions.is_none(), "has rotary positions"),
        (!decoder.is_embedding_normalized, "does not normalize embeddings"),
        (has_bias("attn.qkv") == has_bias("attn.proj"), "has all biases of attention or none"),
        (
            has_bias("mlp.fc") == has_bias("mlp.gate") && has_bias("mlp.fc") == has_bias("mlp.proj"),
            "has all biases of the network or none",
        ),
    ])?;
    let rotary = block.rotary.ok_or("has rotary positions")?;
    require(&[
        (rotary.pairing == RotaryPairing::Halves, "rotates elements of two halves"),
        (rotary.dimensions == decoder.head_dim, "rotates whole heads"),
    ])?;
    let scaling = match rotary.scaling {
        None => Value::Null,
        Some(RotaryScaling::Linear { factor }) => json!({"rope_type": "linear", "factor": factor}),
        Some(RotaryScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_positions }) => {
            json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low_frequency_factor,
                "high_freq_factor": high_frequency_factor,
                "original_max_position_embeddings": original_positions as u64})
        }
    };
    let config = json!({
        "architectures": [architecture],
        "hidden_size": decoder.hidden,
        "intermediate_size": decoder.inner,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": block.heads,
        "num_key_value_heads": block.key_heads,
        "head_dim": decoder.head_dim,
        "hidden_act": activation(decoder.block.activation)?,
        "max_position_embeddings": decoder.sequence,
        "rms_norm_eps": decimal(decoder.epsilon),
        "rope_theta": rotary.base,
        "rope_scaling": scaling,
        "attention_dropout": decimal(decoder.rates.attention),
    });
    Ok(HfModel { config, tensors: tensors(decoder) })
}

fn tensors(decoder: &Decoder) -> Vec<MappedTensor> {
    let mut tensors = Tensors::of_decoder(decoder);
    tensors.layer("model.embed_tokens", "wte");
    for block in 0..decoder.layers {
        let hf_name = |part: &str| format!("model.layers.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name("input_layernorm"), &name("ln_1"));
        let parts = ["q", "k", "v"].map(|part| hf_name(&format!("self_attn.{part}_proj")));
        tensors.split(&parts, &name("attn.qkv"));
        tensors.layer(&hf_name("self_attn.o_proj"), &name("attn.proj"));
        tensors.layer(&hf_name("post_attention_layernorm"), &name("ln_2"));
        tensors.layer(&hf_name("mlp.gate_proj"), &name("mlp.gate"));
        tensors.layer(&hf_name("mlp.up_proj"), &name("mlp.fc"));
        tensors.layer(&hf_name("mlp.down_proj"), &name("mlp.proj"));
    }
    tensors.layer("model.norm", "ln_f");
    tensors.head("lm_head");
    tensors.all
}
