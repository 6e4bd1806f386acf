//! Writes the vocabulary of a BERT as a file `tokenizer.json`, which `transformers` reads.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::words::{MAX_WORD_CHARACTERS, Vocabulary};
use crate::DataError;
use crate::tokenizer::special_token;

/// The words that are no text: padding, beginning, end, mask, unknown.
pub(super) const SPECIAL_WORDS: [&str; 5] = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"];

/// Returns the content of a file `tokenizer.json` that gives the tokens which training reads for a text, for a
/// vocabulary file with a word in each line.
///
/// # Errors
/// The file can't be read, or lacks a special word.
pub fn word_piece_tokenizer(vocabulary: &Path, is_lower_case: bool) -> Result<Vec<u8>, DataError> {
    let vocabulary = Vocabulary::open(vocabulary, is_lower_case)?;
    let [_, begin, end, ..] = SPECIAL_WORDS;
    let mut words: Map<String, Value> =
        vocabulary.words().map(|(word, number)| (word.to_owned(), number.into())).collect();
    let mut added = Vec::new();
    for word in SPECIAL_WORDS {
        // A vocabulary of lower case has these, too, in lower case.
        let number = words.remove(&word.to_lowercase()).unwrap_or(vocabulary.number(word).into());
        let id = number.as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or_default();
        added.push(special_token(id, word));
        words.insert(word.to_owned(), number);
    }
    added.sort_by_key(|token| token["id"].as_i64());
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": is_lower_case},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": [end, words[end]], "cls": [begin, words[begin]]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": MAX_WORD_CHARACTERS, "vocab": words},
    });
    Ok(tokenizer.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::words::tests::WORDS;
    use super::*;
    use crate::{Tokenizer, TokenizerName};

    #[test]
    fn written_tokenizer_gives_the_tokens_of_training() {
        let dir = tempfile::tempdir().unwrap();
        let [words, json] = ["vocab.txt", "tokenizer.json"].map(|name| dir.path().join(name));
        std::fs::write(&words, WORDS).unwrap();
        let text = "The unaffable, café中 running unaffablex Running the\u{7}s \u{2014}un un\u{301}";
        for is_lower_case in [true, false] {
            std::fs::write(&json, word_piece_tokenizer(&words, is_lower_case).unwrap()).unwrap();
            let read = Tokenizer::open(TokenizerName::File, Some(&json)).unwrap();
            let expected = Vocabulary::open(&words, is_lower_case).unwrap().encode(text);
            let found: Vec<i32> = read.encode(text).unwrap().iter().map(|token| *token as i32).collect();
            assert_eq!(found, expected, "lower case: {is_lower_case}");
        }
    }
}
