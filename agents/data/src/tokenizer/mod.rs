//! Converts text to tokens and back.
//!
//! With the embedded tokenizers, text is data, never control: `<|endoftext|>` inside a file is encoded as its
//! characters; only the end of a document produces the separator. A tokenizer of a file recognizes its special tokens
//! in text, as the library that wrote it does.

mod decode;
mod file;
mod hugging_face;
mod special_tokens;

use std::path::Path;

use millrace_params::TokenizerName;
use tiktoken::CoreBpe;

pub use decode::TextDecoder;
pub use file::TokenizerFile;
pub(crate) use special_tokens::special_token;
pub use special_tokens::{SampleTemplate, with_special_tokens};

use crate::DataError;
use crate::encoder::SpecialTokens;

/// Name of the file with the tokenizer of a trained model, in the directory of its checkpoints.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// Bytes that a thread encodes at once with an embedded tokenizer: enough pieces in a block to balance several threads.
const PIECE_BYTES: usize = 32 << 10;
/// Bytes that a thread encodes at once with the tokenizer of a file. Longer texts are cut where it may matter, so there
/// are few cuts; a document that is not longer has exactly the tokens of the library.
const FILE_PIECE_BYTES: usize = 256 << 10;

/// A tokenizer that can be used.
#[derive(Debug)]
pub enum Tokenizer {
    /// GPT-2's byte-pair encoding (`r50k_base`), 50,257 tokens; documents are separated by `<|endoftext|>`, 50256.
    Gpt2,
    /// The bytes of UTF-8, 256 tokens; documents are separated by a zero byte, which does not occur in text.
    Bytes,
    /// That of a file `tokenizer.json`; documents are separated by its token for the end of a text.
    File(Box<TokenizerFile>),
}

impl Tokenizer {
    /// Returns the tokenizer of this name, which `file` contains if it has none.
    ///
    /// # Errors
    /// The file can't be read, is not a tokenizer, or has no token between documents.
    pub fn open(name: TokenizerName, file: Option<&Path>) -> Result<Self, DataError> {
        match name {
            TokenizerName::Gpt2 => Ok(Tokenizer::Gpt2),
            TokenizerName::Bytes => Ok(Tokenizer::Bytes),
            TokenizerName::File => {
                let file = TokenizerFile::open(file.ok_or(DataError::NoPaths)?)?;
                Ok(Tokenizer::File(Box::new(file)))
            }
        }
    }

    /// Returns the number of different tokens: the smallest `vocab_size` that suits every text.
    pub fn vocab_size(&self) -> u32 {
        match self {
            Tokenizer::Gpt2 => 50_257,
            Tokenizer::Bytes => 256,
            Tokenizer::File(file) => file.tokenizer.vocab_size(),
        }
    }

    /// Returns the token between two documents.
    pub fn separator(&self) -> u32 {
        match self {
            Tokenizer::Gpt2 => 50_256,
            Tokenizer::Bytes => 0,
            Tokenizer::File(file) => file.tokenizer.separator(),
        }
    }

    /// Returns the token of a file with this name, if it has it.
    pub fn token(&self, name: &str) -> Option<u32> {
        match self {
            Tokenizer::Gpt2 | Tokenizer::Bytes => None,
            Tokenizer::File(file) => file.tokenizer.token(name),
        }
    }

    /// Returns the special tokens of an encoder, if the vocabulary has all of them.
    pub(crate) fn special_tokens(&self) -> Option<SpecialTokens> {
        match self {
            Tokenizer::Gpt2 | Tokenizer::Bytes => None,
            Tokenizer::File(file) => file.special_tokens(),
        }
    }

    /// Adds everything that the tokens of a text depend on to a cache key. The number of a name must be increased if
    /// the same text ever gives other tokens.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        match self {
            Tokenizer::Gpt2 => hasher.update(b"gpt2/1"),
            Tokenizer::Bytes => hasher.update(b"bytes/1"),
            Tokenizer::File(file) => hasher.update(b"file/1").update(file.tokenizer.digest()),
        };
    }

    /// Returns the tokens of `text`.
    ///
    /// # Errors
    /// The tokenizer of a file has no token for a part of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match self {
            Tokenizer::Gpt2 => Ok(gpt2().encode(text)),
            Tokenizer::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Tokenizer::File(file) => file.encode(text),
        }
    }

    /// Returns the text of `tokens`, with U+FFFD for bytes that are not UTF-8. Numbers outside of the vocabulary are
    /// ignored.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes = match self {
            Tokenizer::Gpt2 => gpt2().decode(tokens),
            Tokenizer::Bytes => tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect(),
            Tokenizer::File(file) => return file.tokenizer.decode(tokens),
        };
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns how many bytes of text a thread encodes at once.
    pub(crate) fn piece_bytes(&self) -> usize {
        match self {
            Tokenizer::Gpt2 | Tokenizer::Bytes => PIECE_BYTES,
            Tokenizer::File(_) => FILE_PIECE_BYTES,
        }
    }

    /// Returns the last position strictly inside `text` where it can be cut so that the two parts encode to the same
    /// tokens as the whole. With the tokenizer of a file, for which no such positions are known, it is the start of
    /// the last line; the part after it may then start with another token than in the whole.
    pub(crate) fn last_cut(&self, text: &str) -> Option<usize> {
        let mut before_space = false;
        for (index, c) in text.char_indices().rev() {
            if index + c.len_utf8() < text.len() && self.cuts_after(c, before_space) {
                return Some(index + c.len_utf8());
            }
            before_space = c.is_whitespace();
        }
        match self {
            Tokenizer::Gpt2 | Tokenizer::Bytes => None,
            Tokenizer::File(_) => last_character(text),
        }
    }

    /// Returns the first such position at or after byte `from`.
    pub(crate) fn first_cut(&self, text: &str, from: usize) -> Option<usize> {
        let from = text.floor_char_boundary(from);
        let mut chars = text[from..].char_indices().peekable();
        while let Some((index, c)) = chars.next() {
            let (next, following) = *chars.peek()?;
            let is_long = matches!(self, Tokenizer::File(_)) && index >= FILE_PIECE_BYTES;
            if is_long || self.cuts_after(c, following.is_whitespace()) {
                debug_assert_eq!(next, index + c.len_utf8());
                return Some(from + next);
            }
        }
        None
    }

    /// GPT-2 splits text into words before it merges bytes, and no word extends from a visible character into white
    /// space: white space only begins words. The lookahead stops at the same position, because it tests the character
    /// after white space. So text may be cut between a visible character and white space.
    ///
    /// Most other tokenizers have a cut between lines, if the next one does not begin with white space.
    fn cuts_after(&self, c: char, before_space: bool) -> bool {
        match self {
            Tokenizer::Gpt2 => before_space && !c.is_whitespace(),
            Tokenizer::Bytes => true,
            Tokenizer::File(_) => c == '\n' && !before_space,
        }
    }
}

/// Returns the position of the last character, unless it is the only one.
fn last_character(text: &str) -> Option<usize> {
    let (index, _) = text.char_indices().next_back()?;
    (index > 0).then_some(index)
}

#[allow(clippy::expect_used, reason = "a constant of the binary, which a test looks up")]
fn gpt2() -> &'static CoreBpe {
    // The name is known and its vocabulary compiled in (a feature in Cargo.toml); a test calls this.
    tiktoken::get_encoding("gpt2").expect("the GPT-2 vocabulary is part of the binary")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permute::splitmix64;

    /// Texts that mix every class that the word splitter distinguishes, with the white space and contractions that it
    /// treats specially.
    fn texts() -> impl Iterator<Item = String> {
        let alphabet: Vec<char> =
            "a bZé  \n\t\r'sltrevdm019٣½ⅷ中文!?.-_\u{a0}\u{3000}\u{200b}\u{85}😀e\u{301}ǅª\0<|>".chars().collect();
        let mut seed = 7u64;
        let mut next = move || {
            seed += 1;
            splitmix64(seed) as usize
        };
        (0..2000).map(move |_| (0..next() % 40).map(|_| alphabet[next() % alphabet.len()]).collect())
    }

    #[test]
    fn gpt2_gives_the_known_tokens() {
        let cases: [(&str, &[u32]); 7] = [
            ("", &[]),
            ("Hello world", &[15496, 995]),
            (" the", &[262]),
            ("Hello, world!", &[15496, 11, 995, 0]),
            ("The quick brown fox jumps over the lazy dog", &[464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290]),
            ("\n\n", &[628]),
            ("a<|endoftext|>b", &[64, 27, 91, 437, 1659, 5239, 91, 29, 65]),
        ];
        for (text, tokens) in cases {
            assert_eq!(Tokenizer::Gpt2.encode(text).unwrap(), tokens, "{text:?}");
        }
        assert_eq!(Tokenizer::Gpt2.decode(&[50256, 262]), "<|endoftext|> the");
    }

    #[test]
    fn gpt2_agrees_with_the_reference_on_mixed_text() {
        // The digest was computed with tiktoken-rs 0.12.1, which follows the reference implementation.
        let mut hasher = blake3::Hasher::new();
        for text in texts() {
            for token in Tokenizer::Gpt2.encode(&text).unwrap() {
                hasher.update(&(token as u16).to_le_bytes());
            }
        }
        assert_eq!(
            hasher.finalize().to_hex().as_str(),
            "3f9de84db28e7cf46374d1db0ce363d64ee15abcf2903d202e0d388146c45d45"
        );
    }

    #[test]
    fn decoding_gives_the_text_back_and_tokens_fit_the_vocabulary() {
        for tokenizer in [Tokenizer::Gpt2, Tokenizer::Bytes] {
            for text in texts() {
                let tokens = tokenizer.encode(&text).unwrap();
                assert_eq!(tokenizer.decode(&tokens), text);
                assert!(tokens.iter().all(|&token| token < tokenizer.vocab_size()));
            }
            assert_eq!(tokenizer.separator().max(255), tokenizer.vocab_size() - 1);
        }
        assert_eq!(Tokenizer::Bytes.encode("aé").unwrap(), [0x61, 0xc3, 0xa9]);
    }

    #[test]
    fn cuts_do_not_change_tokens() {
        let mut cuts = 0;
        for tokenizer in [Tokenizer::Gpt2, Tokenizer::Bytes] {
            for text in texts() {
                let expected = tokenizer.encode(&text).unwrap();
                let positions = (0..text.len()).filter_map(|from| tokenizer.first_cut(&text, from));
                for cut in positions.chain(tokenizer.last_cut(&text)) {
                    assert!(0 < cut && cut < text.len());
                    let (left, right) = text.split_at(cut);
                    let parts = [left, right].map(|part| tokenizer.encode(part).unwrap());
                    assert_eq!(parts.concat(), expected, "{text:?} at {cut}");
                    cuts += 1;
                }
            }
        }
        assert!(cuts > 10_000, "the texts offer too few places: {cuts}");
    }
}
