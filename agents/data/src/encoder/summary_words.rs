//! Numbers the words of a text, so that ROUGE can compare those of a predicted summary with those of the actual one.
//!
//! ```text
//! tokens    [CLS] un  ##aff  the  ,  Un  ##aff  [SEP]
//! words      -1    0   -1     1  -1   0   -1     -1
//! ```
//!
//! As in the public model zoo, a token that begins with `##` continues the word before it, case does not count, and
//! punctuation and special tokens are not words.

use std::collections::HashMap;
use std::path::Path;

use super::words::read_vocabulary;
use crate::DataError;

/// Where no word begins.
const NO_WORD: i32 = -1;
/// Tokens that are not words, in lower case.
const SPECIAL_TOKENS: [&str; 3] = ["[pad]", "[cls]", "[sep]"];

/// The vocabulary of the tokens.
pub(super) struct SummaryWords {
    /// The tokens in lower case, by number.
    tokens: Vec<String>,
    /// Digest of the file.
    pub digest: [u8; 32],
}

impl SummaryWords {
    /// Reads a file with a token in each line.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let text = read_vocabulary(path)?;
        let mut hasher = blake3::Hasher::new_derive_key("millrace words of summaries, version 1");
        let digest = *hasher.update(text.as_bytes()).finalize().as_bytes();
        Ok(Self { tokens: text.lines().map(|token| token.trim().to_lowercase()).collect(), digest })
    }

    /// Returns for each token the number of the word that begins there, -1 if none does. Equal words have one number,
    /// in order of their first occurrence in `tokens`. A token that the vocabulary lacks is a word.
    pub fn word_ids(&self, tokens: &[i32]) -> Vec<i32> {
        let mut numbers = HashMap::new();
        let mut ids = vec![NO_WORD; tokens.len()];
        let mut end = 0;
        while end < tokens.len() {
            let start = end;
            let mut word = self.token(tokens[start]);
            end += 1;
            while let Some(part) = tokens.get(end).and_then(|token| self.continuation(*token)) {
                word.push_str(part);
                end += 1;
            }
            if !is_ignored(&word) {
                let next = numbers.len() as i32;
                ids[start] = *numbers.entry(word).or_insert(next);
            }
        }
        ids
    }

    fn token(&self, token: i32) -> String {
        self.known(token).map_or_else(|| format!("[{token}]"), str::to_owned)
    }

    /// Returns what a token adds to the word before it; `None` if it begins a word.
    fn continuation(&self, token: i32) -> Option<&str> {
        self.known(token)?.strip_prefix("##")
    }

    fn known(&self, token: i32) -> Option<&str> {
        usize::try_from(token).ok().and_then(|token| self.tokens.get(token)).map(String::as_str)
    }
}

fn is_ignored(word: &str) -> bool {
    SPECIAL_TOKENS.contains(&word)
        || (word.len() == 1 && word.chars().all(|character| character.is_ascii_punctuation()))
}

#[cfg(test)]
mod tests {
    use super::super::words::tests::WORDS;
    use super::*;

    #[test]
    fn equal_words_have_one_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vocab.txt");
        std::fs::write(&path, WORDS).unwrap();
        let words = SummaryWords::open(&path).unwrap();
        // [CLS] un ##aff the , un ##aff un [SEP] 99 Running 99 [UNK] -1 [PAD]
        let ids = words.word_ids(&[2, 6, 7, 5, 9, 6, 7, 6, 3, 99, 11, 99, 1, -1, 0]);
        assert_eq!(ids, [-1, 0, -1, 1, -1, 0, -1, 2, -1, 3, 4, 3, 5, 6, -1]);
        assert_eq!(words.word_ids(&[]), [0; 0]);
        assert_eq!(words.word_ids(&[12, 9, 8]), [0, 1, -1], "a continuation, and punctuation with one");
    }
}
