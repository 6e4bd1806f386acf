//! BERT for each of its tasks. A RoBERTa is exported as a BERT without segments, because the positions of
//! `transformers`' RoBERTa depend on the token of padding, which a graph does not contain.

use super::*;

/// Segments of `transformers`' BERT.
const SEGMENTS: usize = 2;

pub(super) fn defaults() -> Value {
    json!({"hidden_act": "gelu", "layer_norm_eps": 1e-12, "tie_word_embeddings": true, "type_vocab_size": SEGMENTS,
        "position_embedding_type": "absolute", "num_attention_heads": 12})
}

pub(super) fn describe(encoder: &Encoder) -> Result<HfModel, Unsuitable> {
    let mut config = config(encoder)?;
    config["type_vocab_size"] = SEGMENTS.into();
    config["architectures"] = json!([match encoder.head {
        EncoderHead::MaskedTokens { next_sentence: Some(_), .. } => "BertForPreTraining",
        EncoderHead::MaskedTokens { .. } => "BertForMaskedLM",
        EncoderHead::Classifier { .. } => "BertForSequenceClassification",
        EncoderHead::TokenClassifier { .. } => "BertForTokenClassification",
        EncoderHead::Answer => "BertForQuestionAnswering",
    }]);
    match encoder.head {
        EncoderHead::MaskedTokens { activation, next_sentence } => require(&[
            (activation == encoder.activation, "has one activation for blocks and output layer"),
            (next_sentence.is_none_or(|kind| kind == Nonlinearity::Tanh), "has a pooler with tanh"),
        ])?,
        EncoderHead::Classifier { pooler, .. } => {
            require(&[(pooler == Nonlinearity::Tanh, "has a pooler with tanh")])?;
        }
        EncoderHead::TokenClassifier { .. } | EncoderHead::Answer => {}
    }
    let mut tensors = Tensors::of_encoder(encoder);
    tensors.layer("bert.embeddings.word_embeddings", "wte");
    tensors.layer("bert.embeddings.position_embeddings", "wpe");
    tensors.layer("bert.embeddings.token_type_embeddings", "wse");
    if !encoder.tensors.has("wse.weight") {
        tensors.zeros("bert.embeddings.token_type_embeddings.weight", &[SEGMENTS, encoder.hidden]);
    }
    tensors.layer("bert.embeddings.LayerNorm", "ln_embed");
    blocks(&mut tensors, encoder, "bert");
    tensors.layer("bert.pooler.dense", "pooler");
    tensors.layer("cls.predictions.transform.dense", "head.dense");
    tensors.layer("cls.predictions.transform.LayerNorm", "ln_f");
    tensors.reshaped("cls.predictions.bias", "lm_head.bias", &[encoder.vocabulary]);
    // Not tied, the layer has a bias of its own, and the other one has no effect.
    tensors.head("cls.predictions.decoder");
    tensors.layer("cls.seq_relationship", "nsp");
    let is_answer = encoder.head == EncoderHead::Answer;
    tensors.layer(if is_answer { "qa_outputs" } else { "classifier" }, "classifier");
    Ok(HfModel { config, tensors: tensors.all })
}

/// Returns the settings that BERT and RoBERTa share.
pub(super) fn config(encoder: &Encoder) -> Result<Value, Unsuitable> {
    let EncoderPositions::Learned(positions) = encoder.positions else { return Err("has learned positions") };
    require(&[
        (!encoder.norm_first, "normalizes the output of blocks"),
        (encoder.tensors.has("ln_embed.weight"), "normalizes embeddings"),
        (encoder.token_dropout.is_none(), "has an embedding of the mask"),
    ])?;
    let mut config = json!({
        "vocab_size": encoder.vocabulary,
        "hidden_size": encoder.hidden,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.inner,
        "hidden_act": activation(encoder.activation)?,
        "hidden_dropout_prob": decimal(encoder.rates.residual),
        "attention_probs_dropout_prob": decimal(encoder.rates.attention),
        "max_position_embeddings": positions,
        "layer_norm_eps": decimal(encoder.epsilon),
        "position_embedding_type": "absolute",
    });
    match encoder.head {
        EncoderHead::MaskedTokens { .. } => {
            config["tie_word_embeddings"] = encoder.is_tied.into();
        }
        EncoderHead::Classifier { dropout, .. } | EncoderHead::TokenClassifier { dropout } => {
            config["classifier_dropout"] = decimal(dropout).into();
            let classes = encoder.tensors.get("classifier.weight").and_then(|(_, shape)| shape.first().copied());
            config["num_labels"] = classes.into();
        }
        EncoderHead::Answer => config["num_labels"] = 2.into(),
    }
    Ok(config)
}

/// Adds the blocks of BERT or RoBERTa.
pub(super) fn blocks(tensors: &mut Tensors<'_>, encoder: &Encoder, base: &str) {
    for block in 0..encoder.layers {
        let hf_name = |part: &str| format!("{base}.encoder.layer.{block}.{part}");
        let name = |part: &str| format!("h.{block}.{part}");
        let parts = ["query", "key", "value"].map(|part| hf_name(&format!("attention.self.{part}")));
        tensors.biased_split(&parts, &name("attn.qkv"));
        tensors.biased_layer(&hf_name("attention.output.dense"), &name("attn.proj"));
        tensors.layer(&hf_name("attention.output.LayerNorm"), &name("ln_1"));
        tensors.biased_layer(&hf_name("intermediate.dense"), &name("mlp.fc"));
        tensors.biased_layer(&hf_name("output.dense"), &name("mlp.proj"));
        tensors.layer(&hf_name("output.LayerNorm"), &name("ln_2"));
    }
}
