//! The tokenizer of an exported model, as `transformers.AutoTokenizer` reads it.

use serde_json::{Value, json};

/// The tokenizer of the training data of a model.
pub struct ExportedTokenizer {
    /// Content of the file `tokenizer.json`.
    pub json: Vec<u8>,
    /// The token between documents.
    pub end: u32,
    /// The name of this token.
    pub end_name: String,
}

impl ExportedTokenizer {
    /// Returns the files of the tokenizer, and of what generation begins and ends with.
    pub(super) fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": self.end_name,
            "eos_token": self.end_name, "clean_up_tokenization_spaces": false});
        let generation = json!({"bos_token_id": self.end, "eos_token_id": self.end});
        vec![
            ("tokenizer.json", self.json.clone()),
            ("tokenizer_config.json", document(&config)),
            ("generation_config.json", document(&generation)),
        ]
    }
}

/// Returns the text of a JSON document.
pub(super) fn document(value: &Value) -> Vec<u8> {
    format!("{value:#}").into_bytes()
}
