//! The tokenizer of an exported model, as `transformers.AutoTokenizer` reads it.

use serde_json::{Value, json};

/// The tokenizer of the training data of a model.
pub struct ExportedTokenizer {
    /// Content of the file `tokenizer.json`.
    pub json: Vec<u8>,
    /// Its special tokens.
    pub special: SpecialTokens,
}

/// A token that is no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    /// Its number.
    pub id: u32,
    /// Its name in the tokenizer.
    pub name: String,
}

/// The special tokens of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Those of a decoder.
    Decoder {
        /// The token between documents.
        end: SpecialToken,
    },
    /// Those of an encoder.
    Encoder {
        /// Beginning of a sample.
        begin: SpecialToken,
        /// End of a segment.
        end: SpecialToken,
        /// Fills a sample.
        padding: SpecialToken,
        /// Stands for a token that is predicted.
        mask: SpecialToken,
    },
    /// Those of an encoder with a decoder.
    Seq2Seq {
        /// What the decoder begins with, which is also padding.
        begin: SpecialToken,
        /// End of a sequence.
        end: SpecialToken,
    },
}

impl ExportedTokenizer {
    /// Returns keys of `config.json` for the special tokens.
    pub(super) fn config(&self) -> Vec<(&'static str, u32)> {
        match &self.special {
            SpecialTokens::Decoder { end } => vec![("bos_token_id", end.id), ("eos_token_id", end.id)],
            SpecialTokens::Encoder { padding, .. } => vec![("pad_token_id", padding.id)],
            SpecialTokens::Seq2Seq { begin, end } => {
                vec![("decoder_start_token_id", begin.id), ("pad_token_id", begin.id), ("eos_token_id", end.id)]
            }
        }
    }

    /// Returns the files of the tokenizer, and of what generation begins and ends with.
    pub(super) fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false});
        let roles = match &self.special {
            SpecialTokens::Decoder { end } => vec![("bos_token", end), ("eos_token", end)],
            SpecialTokens::Encoder { begin, end, padding, mask } => {
                vec![("cls_token", begin), ("sep_token", end), ("pad_token", padding), ("mask_token", mask)]
            }
            SpecialTokens::Seq2Seq { begin, end } => vec![("pad_token", begin), ("eos_token", end)],
        };
        for (role, token) in roles {
            config[role] = token.name.as_str().into();
        }
        let mut files = vec![("tokenizer.json", self.json.clone()), ("tokenizer_config.json", document(&config))];
        if !matches!(self.special, SpecialTokens::Encoder { .. }) {
            let generation = self.config().into_iter().map(|(key, id)| (key.to_owned(), id.into())).collect();
            files.push(("generation_config.json", document(&Value::Object(generation))));
        }
        files
    }
}

/// Returns the text of a JSON document.
pub(super) fn document(value: &Value) -> Vec<u8> {
    format!("{value:#}").into_bytes()
}
