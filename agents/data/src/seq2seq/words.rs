//! The vocabulary of a source of lines: a text file with one word in a line, whose number is that of the line, from 0.
//!
//! Lines of data are words of the vocabulary already, as sentencepiece or byte-pair encoding has divided them. Words
//! that the vocabulary lacks are `<unk>`.

use std::collections::HashMap;
use std::path::Path;

use crate::DataError;
use crate::encoder::{VocabularyProblem, read_vocabulary};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
