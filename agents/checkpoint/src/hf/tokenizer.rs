//! The tokenizer of an exported model, as `transformers.AutoTokenizer` reads it.
//!
//! Only that of bytes is written. GPT-2's own is part of any GPT-2 that `transformers` downloads.

use serde_json::{Map, Value, json};

/// Token between two documents of bytes, and its name.
const END: (u32, &str) = (0, "<|endoftext|>");
/// The token of that name in GPT-2's vocabulary.
const GPT2_END: u32 = 50_256;

/// Returns the files of the tokenizer of a job, and what generation begins and ends with; none if the job has no text,
/// or another tokenizer.
pub(super) fn files(job: &str) -> Vec<(&'static str, Value)> {
    match name(job).as_deref() {
        Some("bytes") => bytes(),
        Some("gpt2") => vec![generation(GPT2_END)],
        _ => Vec::new(),
    }
}

/// Returns the token that ends a document in the training data of a job; `None` if the job has no tokenizer.
pub(super) fn end_token(job: &str) -> Option<u32> {
    match name(job).as_deref() {
        Some("bytes") => Some(END.0),
        Some("gpt2") => Some(GPT2_END),
        _ => None,
    }
}

fn name(job: &str) -> Option<String> {
    let job: Value = serde_json::from_str(job).unwrap_or_default();
    Some(job.pointer("/train_input/source/tokenizer")?.as_str()?.to_owned())
}

fn generation(end: u32) -> (&'static str, Value) {
    ("generation_config.json", json!({"bos_token_id": end, "eos_token_id": end}))
}

/// A vocabulary of the 256 bytes, without merges.
fn bytes() -> Vec<(&'static str, Value)> {
    let (id, name) = END;
    let mut vocabulary = Map::new();
    for byte in 0..=255u8 {
        let token = if u32::from(byte) == id { name.to_owned() } else { byte_character(byte).to_string() };
        vocabulary.insert(token, byte.into());
    }
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": level,
        "post_processor": null,
        "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    });
    let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": name, "eos_token": name,
        "clean_up_tokenization_spaces": false});
    vec![("tokenizer.json", tokenizer), ("tokenizer_config.json", config), generation(id)]
}

/// Returns the printable character that byte-level encodings write for a byte: itself, or one from U+0100 on.
fn byte_character(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !is_printable(*byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_token_of_its_own() {
        let all = files(r#"{"train_input": {"source": {"kind": "text", "tokenizer": "bytes"}}}"#);
        let vocabulary = all[0].1["model"]["vocab"].as_object().unwrap();
        assert_eq!(vocabulary.len(), 256);
        for (token, id) in [("<|endoftext|>", 0), ("A", 65), ("Ġ", 32), ("Ċ", 10), ("Ń", 173), ("ÿ", 255)] {
            assert_eq!(vocabulary[token], id, "{token}");
        }
        assert!(files("{}").is_empty() && files("").is_empty());
    }
}
