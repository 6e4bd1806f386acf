//! Writes tokenizers as files `tokenizer.json`, which `transformers` reads.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{Tokenizer, gpt2, special_token};
use crate::DataError;

/// Name of the token between two documents of an embedded tokenizer.
const END_NAME: &str = "<|endoftext|>";

impl Tokenizer {
    /// Returns the name of the [separator](Self::separator).
    pub fn separator_name(&self) -> &str {
        match self {
            Tokenizer::Gpt2 | Tokenizer::Bytes => END_NAME,
            Tokenizer::File(file) => file.tokenizer.separator_name(),
        }
    }

    /// Returns the content of a file `tokenizer.json` with this tokenizer.
    ///
    /// # Errors
    /// The file of the tokenizer can't be read.
    pub fn to_json(&self) -> Result<Vec<u8>, DataError> {
        let (vocabulary, merges, splits_words) = match self {
            Tokenizer::Gpt2 => {
                let (vocabulary, merges) = gpt2_vocabulary();
                (vocabulary, merges, true)
            }
            Tokenizer::Bytes => (bytes_vocabulary(), Vec::new(), false),
            Tokenizer::File(file) => return file.content(),
        };
        let level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits_words});
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [special_token(self.separator(), END_NAME)],
            "normalizer": null,
            "pre_tokenizer": level,
            "post_processor": null,
            "decoder": level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
                "merges": merges},
        });
        Ok(tokenizer.to_string().into_bytes())
    }
}

/// Returns a vocabulary of the 256 bytes, of which the first separates documents.
fn bytes_vocabulary() -> Map<String, Value> {
    let name = |byte: u8| if byte == 0 { END_NAME.to_owned() } else { byte_character(byte).to_string() };
    (0..=u8::MAX).map(|byte| (name(byte), byte.into())).collect()
}

/// Returns the vocabulary of GPT-2, and the pairs that are merged, in the order of their tokens.
fn gpt2_vocabulary() -> (Map<String, Value>, Vec<String>) {
    let tokens: Vec<Vec<u8>> = (0..Tokenizer::Gpt2.separator()).map(|token| gpt2().decode(&[token])).collect();
    let numbers: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(number, bytes)| (bytes.as_slice(), number)).collect();
    let name = |bytes: &[u8]| bytes.iter().map(|byte| byte_character(*byte)).collect::<String>();
    let merges = tokens.iter().enumerate().filter_map(|(number, bytes)| {
        let (left, right) = merged_pair(bytes, number, &numbers)?;
        Some(format!("{} {}", name(left), name(right)))
    });
    let merges = merges.collect();
    let mut vocabulary: Map<String, Value> =
        tokens.iter().enumerate().map(|(number, bytes)| (name(bytes), number.into())).collect();
    vocabulary.insert(END_NAME.to_owned(), Tokenizer::Gpt2.separator().into());
    (vocabulary, merges)
}

/// Returns the two parts whose merge is the token `number`: those that the merges of smaller tokens leave of its bytes.
/// Returns `None` for a single byte.
fn merged_pair<'a>(bytes: &'a [u8], number: usize, numbers: &HashMap<&[u8], usize>) -> Option<(&'a [u8], &'a [u8])> {
    // Ends of the parts.
    let mut ends: Vec<usize> = (1..=bytes.len()).collect();
    while ends.len() > 2 {
        let begin = |part: usize| part.checked_sub(1).map_or(0, |before| ends[before]);
        let merged = (0..ends.len() - 1).filter_map(|part| {
            let token = *numbers.get(&bytes[begin(part)..ends[part + 1]])?;
            (token < number).then_some((token, part))
        });
        let (_, part) = merged.min()?;
        ends.remove(part);
    }
    (ends.len() == 2).then(|| bytes.split_at(ends[0]))
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
    use millrace_params::TokenizerName;

    use super::*;

    #[test]
    fn written_tokenizers_give_the_same_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let text = "In the beginning, it's 2024: naïve\n\n  café 中文 😀\t\u{a0}x\r\nAAAA    end";
        for tokenizer in [Tokenizer::Gpt2, Tokenizer::Bytes] {
            std::fs::write(&path, tokenizer.to_json().unwrap()).unwrap();
            let read = Tokenizer::open(TokenizerName::File, Some(&path)).unwrap();
            assert_eq!(read.encode(text).unwrap(), tokenizer.encode(text).unwrap(), "{tokenizer:?}");
            assert_eq!(read.decode(&read.encode(text).unwrap()), text);
            assert_eq!((read.separator(), read.vocab_size()), (tokenizer.separator(), tokenizer.vocab_size()));
            assert_eq!(read.to_json().unwrap(), tokenizer.to_json().unwrap());
        }
    }

    #[test]
    fn every_byte_has_a_name_of_its_own() {
        let vocabulary = bytes_vocabulary();
        assert_eq!(vocabulary.len(), 256);
        for (token, number) in [("<|endoftext|>", 0), ("A", 65), ("Ġ", 32), ("Ċ", 10), ("Ń", 173), ("ÿ", 255)] {
            assert_eq!(vocabulary[token], number, "{token}");
        }
    }
}
