//! Compares the settings of two `config.json` of one model family.

use serde_json::{Map, Value};

use super::families::HfFamily;

/// Returns a key of `config.json` in which `found` differs from `expected`, with both values. Keys that neither affect
/// the computation nor can differ are not compared.
pub(super) fn differing_key(expected: &Value, found: &Value, family: &HfFamily) -> Option<(String, Value, Value)> {
    const IGNORED: [&str; 9] = [
        "architectures",
        "bos_token_id",
        "eos_token_id",
        "dtype",
        "torch_dtype",
        "model_type",
        "max_position_embeddings",
        "max_seq_len",
        "classifier_dropout",
    ];
    let (found, defaults) = (with_older_keys(found), (family.defaults)());
    let empty = Map::new();
    for (key, expected) in expected.as_object().unwrap_or(&empty) {
        let is_rate = ["dropout", "pdrop", "dropout_prob", "dropout_rate"].iter().any(|end| key.ends_with(end));
        let is_ignored = IGNORED.contains(&key.as_str()) || family.unused_keys.contains(&key.as_str());
        if is_ignored || is_rate && key != "token_dropout" {
            continue;
        }
        let Some(found) = found.get(key).or_else(|| defaults.get(key)) else { continue };
        if !is_same(expected, found) {
            return Some((key.clone(), found.clone(), expected.clone()));
        }
    }
    None
}

fn is_same(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Number(expected), Value::Number(found)) => {
            expected.as_f64().map(|value| value as f32) == found.as_f64().map(|value| value as f32)
        }
        (Value::Object(expected), Value::Object(found)) => {
            expected.len() == found.len()
                && expected.iter().all(|(key, value)| found.get(key).is_some_and(|other| is_same(value, other)))
        }
        // The names of one function.
        (Value::String(expected), Value::String(found)) => {
            expected == found
                || [expected, found].iter().all(|name| ["gelu_new", "gelu_pytorch_tanh"].contains(&name.as_str()))
        }
        (expected, found) => expected == found,
    }
}

/// Replaces keys of newer versions of transformers by those of older ones, which both read.
pub(super) fn with_older_keys(config: &Value) -> Value {
    let mut config = config.clone();
    // Newer versions set tie_word_embeddings of every T5, and keep here what it meant.
    if let Some(scales) = config.get("scale_decoder_outputs").cloned() {
        config["tie_word_embeddings"] = scales;
    }
    let Some(Value::Object(mut rope)) = config.get("rope_parameters").cloned() else { return config };
    for (from, to) in [("rope_theta", "rope_theta"), ("partial_rotary_factor", "rotary_pct")] {
        if let Some(value) = rope.remove(from) {
            config[to] = value.clone();
            if from == "rope_theta" {
                config["rotary_emb_base"] = value;
            }
        }
    }
    let is_default = rope.get("rope_type").is_none_or(|kind| kind == "default");
    config["rope_scaling"] = if is_default { Value::Null } else { Value::Object(rope) };
    config
}
