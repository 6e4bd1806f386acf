//! The vocabulary of a BERT: its words and their numbers, and the division of text into them (WordPiece).
//!
//! A vocabulary is a text file with one word in a line, whose number is that of the line, from 0. A word that begins
//! with `##` continues the one before it. Text is divided as Google's and the zoo's tokenizers do: at white space and
//! punctuation, then into the longest words of the vocabulary.

use std::collections::HashMap;
use std::path::Path;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::masking::SpecialTokens;
use crate::DataError;
use crate::files::read_whole;

/// Maximum bytes of a vocabulary file; the largest published ones have about 5 MB.
const MAX_VOCABULARY_BYTES: u64 = 256 << 20;
/// Maximum characters of a word that is divided; longer ones are unknown, as for Google.
pub(super) const MAX_WORD_CHARACTERS: usize = 100;

/// What is wrong with a vocabulary file, as the end of a sentence that names the file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VocabularyProblem {
    #[error("has no word {word}")]
    MissingWord { word: &'static str },
    #[error("has no word {word}")]
    MissingToken { word: &'static str },
    #[error("does not map the names of classes to numbers, as JSON")]
    NotClasses,
    #[error("has {bytes} bytes, more than a vocabulary needs")]
    TooLarge { bytes: u64 },
}

/// See the module documentation.
pub(super) struct Vocabulary {
    words: HashMap<String, i32>,
    is_lower_case: bool,
    unknown: i32,
    pub special: SpecialTokens,
    /// Numbers of the classes of tokens, by name.
    pub classes: HashMap<String, i32>,
    pub entries: u32,
    /// Digest of the file and of how it is used.
    pub digest: [u8; 32],
}

impl VocabularyProblem {
    /// Returns what the user can do about it.
    pub(crate) fn hint(&self) -> String {
        let words = match self {
            Self::NotClasses => return r#"write a JSON object, such as {"O": 0, "B-PER": 1}"#.to_owned(),
            Self::MissingToken { .. } => "<unk>, </s>, and <s> or <pad>",
            Self::MissingWord { .. } | Self::TooLarge { .. } => "[PAD], [UNK], [CLS], [SEP] and [MASK]",
        };
        format!("a vocabulary has one word in a line, among them {words}")
    }
}

impl Vocabulary {
    pub fn open(path: &Path, is_lower_case: bool) -> Result<Self, DataError> {
        let problem = |problem| DataError::Vocabulary { path: path.into(), problem };
        let text = read_vocabulary(path)?;
        let digest = *blake3::Hasher::new_derive_key("millrace vocabulary of words, version 1")
            .update(&[u8::from(is_lower_case)])
            .update(text.as_bytes())
            .finalize()
            .as_bytes();
        let (mut words, mut entries) = (HashMap::new(), 0_u32);
        for line in text.lines() {
            let word = line.trim();
            let word = if is_lower_case { word.to_lowercase() } else { word.to_owned() };
            // The zoo uses the last of several equal words.
            words.insert(word, entries as i32);
            entries += 1;
        }
        let special = |word: &'static str| {
            let found = words.get(word).or_else(|| words.get(&word.to_lowercase()));
            found.copied().ok_or_else(|| problem(VocabularyProblem::MissingWord { word }))
        };
        let unknown = special("[UNK]")?;
        let special = SpecialTokens {
            mask: special("[MASK]")?,
            begin: special("[CLS]")?,
            end: special("[SEP]")?,
            padding: special("[PAD]")?,
        };
        Ok(Self { words, is_lower_case, unknown, special, classes: HashMap::new(), entries, digest })
    }

    /// Adds the classes of a JSON file that maps names to numbers.
    pub fn with_classes(mut self, path: &Path) -> Result<Self, DataError> {
        let text = read_small(path)?;
        self.classes = parse_classes(path, &text)?;
        let mut hasher = blake3::Hasher::new_derive_key("millrace vocabulary with classes, version 1");
        self.digest = *hasher.update(&self.digest).update(&text).finalize().as_bytes();
        Ok(self)
    }

    /// Returns all words, as text is compared with them, and their numbers.
    pub fn words(&self) -> impl Iterator<Item = (&str, i32)> {
        self.words.iter().map(|(word, number)| (word.as_str(), *number))
    }

    /// Returns the number of a word.
    pub fn number(&self, word: &str) -> i32 {
        let found = if self.is_lower_case { self.words.get(&word.to_lowercase()) } else { self.words.get(word) };
        found.copied().unwrap_or(self.unknown)
    }

    /// Returns the numbers of the words of a text.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        let mut numbers = Vec::new();
        let clean = text.chars().filter(|c| !matches!(c, '\0' | '\u{fffd}') && (!c.is_control() || c.is_whitespace()));
        let clean: String = match self.is_lower_case {
            true => clean.flat_map(char::to_lowercase).nfd().filter(|c| !is_combining_mark(*c)).collect(),
            false => clean.collect(),
        };
        let mut word = String::new();
        for character in clean.chars() {
            if character.is_whitespace() {
                self.divide(&std::mem::take(&mut word), &mut numbers);
            } else if is_punctuation(character) || is_ideograph(character) {
                self.divide(&std::mem::take(&mut word), &mut numbers);
                self.divide(character.encode_utf8(&mut [0; 4]), &mut numbers);
            } else {
                word.push(character);
            }
        }
        self.divide(&word, &mut numbers);
        numbers
    }

    /// Adds the longest words of the vocabulary that a word consists of, or the unknown word.
    fn divide(&self, word: &str, numbers: &mut Vec<i32>) {
        if word.is_empty() {
            return;
        }
        if word.chars().count() > MAX_WORD_CHARACTERS {
            numbers.push(self.unknown);
            return;
        }
        let (mut rest, first) = (word, numbers.len());
        while !rest.is_empty() {
            let prefix = if numbers.len() == first { "" } else { "##" };
            let ends = rest.char_indices().map(|(index, c)| index + c.len_utf8()).rev();
            let longest_word = ends.into_iter().find_map(|end| {
                let number = self.words.get(&format!("{prefix}{}", &rest[..end]))?;
                Some((*number, end))
            });
            let Some((number, end)) = longest_word else {
                numbers.truncate(first);
                numbers.push(self.unknown);
                return;
            };
            numbers.push(number);
            rest = &rest[end..];
        }
    }
}

/// Reads a JSON file that maps the names of classes to their numbers.
pub(super) fn read_classes(path: &Path) -> Result<HashMap<String, i32>, DataError> {
    parse_classes(path, &read_small(path)?)
}

fn parse_classes(path: &Path, text: &[u8]) -> Result<HashMap<String, i32>, DataError> {
    let problem = |_| DataError::Vocabulary { path: path.into(), problem: VocabularyProblem::NotClasses };
    serde_json::from_slice(text).map_err(problem)
}

/// Reads the text of a vocabulary.
pub(crate) fn read_vocabulary(path: &Path) -> Result<String, DataError> {
    String::from_utf8(read_small(path)?)
        .map_err(|error| DataError::InvalidUtf8 { path: path.into(), offset: error.utf8_error().valid_up_to() as u64 })
}

/// Reads a file that is not larger than any vocabulary.
fn read_small(path: &Path) -> Result<Vec<u8>, DataError> {
    let problem = |bytes| DataError::Vocabulary { path: path.into(), problem: VocabularyProblem::TooLarge { bytes } };
    read_whole(path, MAX_VOCABULARY_BYTES, problem)
}

/// Returns whether a character separates words and is one. All symbols of ASCII do, as for Google.
fn is_punctuation(character: char) -> bool {
    character.is_ascii_punctuation()
        || matches!(u32::from(character), 0xa1 | 0xa7 | 0xab | 0xb6 | 0xb7 | 0xbb | 0xbf | 0x2010..=0x2027
            | 0x2030..=0x205e | 0x3001..=0x3003 | 0x3008..=0x3011 | 0x3014..=0x301f | 0xff01..=0xff0f | 0xff1a..=0xff20)
}

/// Returns whether a character is an ideograph, which is a word of its own.
fn is_ideograph(character: char) -> bool {
    matches!(u32::from(character), 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x2_0000..=0x2_a6df
        | 0x2_a700..=0x2_ceaf | 0x2_f800..=0x2_fa1f)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Words with their numbers: those of a tiny vocabulary.
    pub const WORDS: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nun\n##aff\n##able\n,\ncafe\nRunning\n##s\n中\n";

    fn encode(text: &str, is_lower_case: bool) -> Vec<i32> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vocab.txt");
        std::fs::write(&path, WORDS).unwrap();
        Vocabulary::open(&path, is_lower_case).unwrap().encode(text)
    }

    #[test]
    fn text_is_divided_into_the_longest_words() {
        assert_eq!(encode("The unaffable, café中 running", true), [5, 6, 7, 8, 9, 10, 13, 11]);
        assert_eq!(encode("the unaffablex Running the\u{7}s", false), [5, 1, 11, 5, 12]);
        assert_eq!(encode("", true), [0; 0]);
    }

    #[test]
    fn vocabulary_without_special_words_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vocab.txt");
        std::fs::write(&path, WORDS.replace("[MASK]", "mask")).unwrap();
        let error = Vocabulary::open(&path, false).err().unwrap().to_string();
        assert!(error.contains("has no word [MASK]"), "{error}");
        assert!(matches!(Vocabulary::open(&dir.path().join("none"), false), Err(DataError::NotFound { .. })));
    }
}
