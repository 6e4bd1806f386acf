//! The vocabulary of a source of lines: a text file with one word in a line, whose number is that of the line, from 0.
//!
//! Lines of data are words of the vocabulary already, as sentencepiece or byte-pair encoding has divided them. Words
//! that the vocabulary lacks are `<unk>`.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::DataError;
use crate::encoder::{VocabularyProblem, read_vocabulary};
use crate::tokenizer::special_token;

/// See the module documentation.
pub(super) struct LineVocabulary {
    words: HashMap<String, i32>,
    is_lower_case: bool,
    unknown: i32,
    /// What the decoder begins with: `<s>`, or `<pad>` in a vocabulary without it.
    pub begin: i32,
    /// `</s>`.
    pub end: i32,
    pub entries: u32,
    /// Digest of the file and of how it is used.
    pub digest: [u8; 32],
}

impl LineVocabulary {
    pub fn open(path: &Path, is_lower_case: bool) -> Result<Self, DataError> {
        let text = read_vocabulary(path)?;
        let digest = *blake3::Hasher::new_derive_key("millrace vocabulary of lines, version 1")
            .update(&[u8::from(is_lower_case)])
            .update(text.as_bytes())
            .finalize()
            .as_bytes();
        let (mut words, mut entries) = (HashMap::new(), 0_u32);
        for line in text.lines() {
            // Lists of sentencepiece have a score after a tab.
            let word = line.split('\t').next().unwrap_or_default().trim();
            words.insert(if is_lower_case { word.to_lowercase() } else { word.to_owned() }, entries as i32);
            entries = entries.saturating_add(1);
        }
        let special = |word: &'static str| {
            let missing =
                || DataError::Vocabulary { path: path.into(), problem: VocabularyProblem::MissingToken { word } };
            words.get(word).copied().ok_or_else(missing)
        };
        let (unknown, end) = (special("<unk>")?, special("</s>")?);
        let begin = special("<s>").or_else(|_| special("<pad>"))?;
        Ok(Self { words, is_lower_case, unknown, begin, end, entries, digest })
    }

    /// Returns the number of a word; bytes that are not UTF-8 are no word of the vocabulary.
    pub fn number(&self, word: &[u8]) -> i32 {
        let found = std::str::from_utf8(word).ok().and_then(|word| match self.is_lower_case {
            true => self.words.get(&word.to_lowercase()),
            false => self.words.get(word),
        });
        found.copied().unwrap_or(self.unknown)
    }
}

/// Returns a vocabulary of lines as the content of a file `tokenizer.json`, which divides text at white space as lines
/// of data are.
///
/// # Errors
/// The file can't be read, or lacks a special word.
pub fn line_tokenizer(vocabulary: &Path, is_lower_case: bool) -> Result<Vec<u8>, DataError> {
    let vocabulary = LineVocabulary::open(vocabulary, is_lower_case)?;
    let words: Map<String, Value> =
        vocabulary.words.iter().map(|(word, number)| (word.clone(), (*number).into())).collect();
    let begin = if vocabulary.words.contains_key("<s>") { "<s>" } else { "<pad>" };
    let special = [(vocabulary.begin, begin), (vocabulary.end, "</s>"), (vocabulary.unknown, "<unk>")];
    let mut added = special.map(|(id, name)| (u32::try_from(id).unwrap_or_default(), name));
    added.sort_unstable();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.map(|(id, name)| special_token(id, name)),
        "normalizer": is_lower_case.then(|| json!({"type": "Lowercase"})),
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": words},
    });
    Ok(tokenizer.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tokenizer, TokenizerName};

    #[test]
    fn words_have_the_numbers_of_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vocab.txt");
        std::fs::write(&path, "<pad>\n</s>\n<unk>\t0\n\u{2581}The\t-3.5\nend@@\n").unwrap();
        let words = LineVocabulary::open(&path, false).unwrap();
        assert_eq!((words.begin, words.end, words.entries), (0, 1, 5));
        assert_eq!(["\u{2581}The", "end@@", "\u{2581}the"].map(|word| words.number(word.as_bytes())), [3, 4, 2]);
        assert_eq!(words.number(b"\xff"), 2);
        let words = LineVocabulary::open(&path, true).unwrap();
        assert_eq!(words.number("\u{2581}the".as_bytes()), 3);
        std::fs::write(&path, "<pad>\n<unk>\n").unwrap();
        let error = LineVocabulary::open(&path, false).err().unwrap();
        assert!(error.to_string().contains("has no word </s>"), "{error}");
        assert!(error.hint().contains("<unk>"), "{}", error.hint());
    }
    #[test]
    fn written_tokenizer_divides_lines_as_training_does() {
        let dir = tempfile::tempdir().unwrap();
        let [words, json] = ["vocab.txt", "tokenizer.json"].map(|name| dir.path().join(name));
        std::fs::write(&words, "<pad>\n</s>\n<unk>\t0\n\u{2581}The\t-3.5\nend@@\n").unwrap();
        for is_lower_case in [false, true] {
            std::fs::write(&json, line_tokenizer(&words, is_lower_case).unwrap()).unwrap();
            let read = Tokenizer::open(TokenizerName::File, Some(&json)).unwrap();
            let vocabulary = LineVocabulary::open(&words, is_lower_case).unwrap();
            let line = "\u{2581}The end@@ \u{2581}the other";
            let expected: Vec<u32> = line.split(' ').map(|word| vocabulary.number(word.as_bytes()) as u32).collect();
            assert_eq!(read.encode(line).unwrap(), expected);
            assert_eq!(["<pad>", "</s>", "<s>"].map(|name| read.token(name)), [Some(0), Some(1), None]);
        }
    }
}
