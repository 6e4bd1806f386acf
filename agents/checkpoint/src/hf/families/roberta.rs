//! RoBERTa: a BERT without segments, whose positions are counted from the token of padding.

use super::*;

/// The token of padding. It and all rows of positions before the first token are unused.
const PAD_TOKEN: usize = 1;
const UNUSED_POSITIONS: usize = PAD_TOKEN + 1;

pub(super) fn defaults() -> Value {
    json!({"hidden_act": "gelu", "layer_norm_eps": 1e-12, "tie_word_embeddings": true, "type_vocab_size": 2,
        "position_embedding_type": "absolute", "pad_token_id": PAD_TOKEN})
}

pub(super) fn describe(encoder: &Encoder) -> Result<HfModel, Unsuitable> {
    let mut config = super::bert::config(encoder)?;
    config["type_vocab_size"] = 1.into();
    config["pad_token_id"] = PAD_TOKEN.into();
    let (architecture, output) = match encoder.head {
        EncoderHead::MaskedTokens { activation, next_sentence } => {
            require(&[
                (next_sentence.is_none(), "does not predict the next sentence"),
                (activation == Nonlinearity::Gelu, "has gelu before the output layer"),
            ])?;
            ("RobertaForMaskedLM", "lm_head")
        }
        EncoderHead::Classifier { pooler, .. } => {
            require(&[(pooler == Nonlinearity::Tanh, "has tanh before the output layer")])?;
            ("RobertaForSequenceClassification", "classifier.out_proj")
        }
        EncoderHead::TokenClassifier { .. } => ("RobertaForTokenClassification", "classifier"),
        EncoderHead::Answer => ("RobertaForQuestionAnswering", "qa_outputs"),
    };
    require(&[(!encoder.tensors.has("wse.weight"), "has no segments")])?;
    config["architectures"] = json!([architecture]);
    if let Some(positions) = config["max_position_embeddings"].as_u64() {
        config["max_position_embeddings"] = positions.saturating_add(UNUSED_POSITIONS as u64).into();
    }
    let mut tensors = Tensors::of_encoder(encoder);
    tensors.layer("roberta.embeddings.word_embeddings", "wte");
    tensors.padded_table("roberta.embeddings.position_embeddings", "wpe", UNUSED_POSITIONS);
    tensors.zeros("roberta.embeddings.token_type_embeddings.weight", &[1, encoder.hidden]);
    tensors.layer("roberta.embeddings.LayerNorm", "ln_embed");
    super::bert::blocks(&mut tensors, encoder, "roberta");
    tensors.layer("classifier.dense", "pooler");
    tensors.layer("lm_head.dense", "head.dense");
    tensors.layer("lm_head.layer_norm", "ln_f");
    tensors.reshaped("lm_head.bias", "lm_head.bias", &[encoder.vocabulary]);
    tensors.head("lm_head.decoder");
    tensors.layer(output, "classifier");
    Ok(HfModel { config, tensors: tensors.all })
}
