//! The vision transformer that classifies images.

use super::*;

pub(super) fn defaults() -> Value {
    json!({"hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": true, "num_channels": 3, "image_size": 224,
        "patch_size": 16, "num_attention_heads": 12})
}

pub(super) fn describe(model: &VisionTransformer) -> Result<HfModel, Unsuitable> {
    require(&[(model.pooler.is_none(), "has no layer between norm and output layer")])?;
    let [channels, height, width] = model.image;
    let [rows, columns] = model.patch;
    let has_qkv_bias = model.tensors.has("h.0.attn.qkv.bias");
    let config = json!({
        "architectures": ["ViTForImageClassification"],
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.inner,
        "hidden_act": activation(model.activation)?,
        "hidden_dropout_prob": decimal(model.rates.residual),
        "attention_probs_dropout_prob": decimal(model.rates.attention),
        "layer_norm_eps": decimal(model.epsilon),
        "image_size": size(height, width),
        "patch_size": size(rows, columns),
        "num_channels": channels,
        "qkv_bias": has_qkv_bias,
        "num_labels": model.classes,
    });
    let mut tensors = Tensors::of_vision_transformer(model);
    tensors.reshaped("vit.embeddings.cls_token", "cls.weight", &[1, 1, model.hidden]);
    let positions = model.tensors.get("wpe.weight").and_then(|(_, shape)| shape.first().copied());
    let positions = positions.ok_or("has learned positions")?;
    tensors.reshaped("vit.embeddings.position_embeddings", "wpe.weight", &[1, positions, model.hidden]);
    let projection = "vit.embeddings.patch_embeddings.projection";
    tensors.reshaped(&format!("{projection}.weight"), "patch.weight", &[model.hidden, channels, rows, columns]);
    match model.tensors.has("patch.bias") {
        true => tensors.reshaped(&format!("{projection}.bias"), "patch.bias", &[model.hidden]),
        false => tensors.zeros(&format!("{projection}.bias"), &[model.hidden]),
    }
    for block in 0..model.layers {
        let hf_name = |part: &str| format!("vit.encoder.layer.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        tensors.layer(&hf_name("layernorm_before"), &name("ln_1"));
        let parts = ["query", "key", "value"].map(|part| hf_name(&format!("attention.attention.{part}")));
        match has_qkv_bias {
            true => tensors.biased_split(&parts, &name("attn.qkv")),
            false => tensors.split(&parts, &name("attn.qkv")),
        }
        tensors.biased_layer(&hf_name("attention.output.dense"), &name("attn.proj"));
        tensors.layer(&hf_name("layernorm_after"), &name("ln_2"));
        tensors.biased_layer(&hf_name("intermediate.dense"), &name("mlp.fc"));
        tensors.biased_layer(&hf_name("output.dense"), &name("mlp.proj"));
    }
    tensors.layer("vit.layernorm", "ln_f");
    tensors.layer("classifier", "classifier");
    Ok(HfModel { config, tensors: tensors.all })
}

/// Returns a size as `transformers` writes it: one number for a square.
fn size(rows: usize, columns: usize) -> Value {
    if rows == columns { rows.into() } else { json!([rows, columns]) }
}
