//! Converts text to tokens and back.
//!
//! Tokens are `u16`; both vocabularies fit. Text is data, never control: `<|endoftext|>` inside a file is encoded as
//! its characters; only the end of a file produces the separator.

use tiktoken::CoreBpe;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokenizer {
    /// GPT-2's byte-pair encoding (`r50k_base`), 50,257 tokens; documents are separated by `<|endoftext|>`, 50256.
    Gpt2,
    /// The bytes of UTF-8, 256 tokens; documents are separated by a zero byte, which does not occur in text.
    Bytes,
}

impl Tokenizer {
    /// Returns the number of different tokens: the smallest `vocab_size` that suits every text.
    pub fn vocab_size(self) -> u32 {
        match self {
            Tokenizer::Gpt2 => 50_257,
            Tokenizer::Bytes => 256,
        }
    }

    /// Returns the token between two documents.
    pub fn separator(self) -> u16 {
        match self {
            Tokenizer::Gpt2 => 50_256,
            Tokenizer::Bytes => 0,
        }
    }

    /// Returns the name of the encoding in cache keys. The number must be increased if the same text ever gives other
    /// tokens.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Tokenizer::Gpt2 => "gpt2/1",
            Tokenizer::Bytes => "bytes/1",
        }
    }

    /// Returns the tokens of `text`.
    pub fn encode(self, text: &str) -> Vec<u16> {
        match self {
            // Ordinary tokens are below 50,256, so the cast keeps them; the vocabulary is embedded, not input.
            Tokenizer::Gpt2 => gpt2().encode(text).into_iter().map(|t| t as u16).collect(),
            Tokenizer::Bytes => text.bytes().map(u16::from).collect(),
        }
    }

    /// Returns the bytes of `tokens`: UTF-8 if they are the tokens of a whole text, though a cut may split a character.
    /// Numbers outside of the vocabulary are ignored.
    pub fn decode(self, tokens: &[u16]) -> Vec<u8> {
        match self {
            Tokenizer::Gpt2 => gpt2().decode(&tokens.iter().map(|&t| u32::from(t)).collect::<Vec<_>>()),
            Tokenizer::Bytes => tokens.iter().filter_map(|&t| u8::try_from(t).ok()).collect(),
        }
    }

    /// Returns the last position strictly inside `text` where it can be cut so that the two parts encode to the same
    /// tokens as the whole.
    pub(crate) fn last_cut(self, text: &str) -> Option<usize> {
        let mut before_space = false;
        for (at, c) in text.char_indices().rev() {
            if at + c.len_utf8() < text.len() && self.cuts_after(c, before_space) {
                return Some(at + c.len_utf8());
            }
            before_space = c.is_whitespace();
        }
        None
    }

    /// Returns the first such position at or after byte `from`.
    pub(crate) fn first_cut(self, text: &str, from: usize) -> Option<usize> {
        let from = text.floor_char_boundary(from);
        let mut chars = text[from..].char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let (next, following) = *chars.peek()?;
            if self.cuts_after(c, following.is_whitespace()) {
                debug_assert_eq!(next, at + c.len_utf8());
                return Some(from + next);
            }
        }
        None
    }

    /// GPT-2 splits text into words before it merges bytes, and no word extends from a visible character into white
    /// space: white space only begins words. The lookahead stops at the same position, because it tests the character
    /// after white space. So text may be cut between a visible character and white space.
    fn cuts_after(self, c: char, before_space: bool) -> bool {
        match self {
            Tokenizer::Gpt2 => before_space && !c.is_whitespace(),
            Tokenizer::Bytes => true,
        }
    }
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
        let known: [(&str, &[u16]); 7] = [
            ("", &[]),
            ("Hello world", &[15496, 995]),
            (" the", &[262]),
            ("Hello, world!", &[15496, 11, 995, 0]),
            ("The quick brown fox jumps over the lazy dog", &[464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290]),
            ("\n\n", &[628]),
            ("a<|endoftext|>b", &[64, 27, 91, 437, 1659, 5239, 91, 29, 65]),
        ];
        for (text, tokens) in known {
            assert_eq!(Tokenizer::Gpt2.encode(text), tokens, "{text:?}");
        }
        assert_eq!(Tokenizer::Gpt2.decode(&[50256, 262]), b"<|endoftext|> the");
    }

    #[test]
    fn gpt2_agrees_with_the_reference_on_mixed_text() {
        // The digest was computed with tiktoken-rs 0.12.1, which follows the reference implementation.
        let mut hasher = blake3::Hasher::new();
        for text in texts() {
            for token in Tokenizer::Gpt2.encode(&text) {
                hasher.update(&token.to_le_bytes());
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
                let tokens = tokenizer.encode(&text);
                assert_eq!(tokenizer.decode(&tokens), text.as_bytes());
                assert!(tokens.iter().all(|&t| u32::from(t) < tokenizer.vocab_size()));
            }
            assert_eq!(u32::from(tokenizer.separator()).max(255), tokenizer.vocab_size() - 1);
        }
        assert_eq!(Tokenizer::Bytes.encode("aé"), [0x61, 0xc3, 0xa9]);
    }

    #[test]
    fn cuts_do_not_change_tokens() {
        let mut cuts = 0;
        for tokenizer in [Tokenizer::Gpt2, Tokenizer::Bytes] {
            for text in texts() {
                let whole = tokenizer.encode(&text);
                let places = (0..text.len()).filter_map(|from| tokenizer.first_cut(&text, from));
                for cut in places.chain(tokenizer.last_cut(&text)) {
                    assert!(0 < cut && cut < text.len());
                    let (left, right) = text.split_at(cut);
                    assert_eq!([tokenizer.encode(left), tokenizer.encode(right)].concat(), whole, "{text:?} at {cut}");
                    cuts += 1;
                }
            }
        }
        assert!(cuts > 10_000, "the texts offer too few places: {cuts}");
    }
}
