//! Converts tokens to text one by one, as they are generated.

use super::Tokenizer;

/// Maximum tokens of the prompt that are decoded again with those that follow it. The text of a token depends only on
/// its neighbors.
const MAX_CONTEXT_TOKENS: usize = 16;

/// Maximum tokens of one character: its bytes.
const MAX_PENDING_TOKENS: usize = 4;

/// The text of tokens that follow each other, each written as soon as its characters are complete.
///
/// The text of a token may depend on the tokens before it: one token has a part of a character, and some tokenizers
/// omit the space of the first word.
pub struct TextDecoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The last tokens. The text of those before `written` was returned.
    tokens: Vec<u32>,
    written: usize,
}

impl<'a> TextDecoder<'a> {
    /// Decodes the tokens that follow `prompt`.
    pub fn new(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Self {
        let tokens = prompt[prompt.len().saturating_sub(MAX_CONTEXT_TOKENS)..].to_vec();
        Self { tokenizer, written: tokens.len(), tokens }
    }

    /// Returns the text that is complete with `token`; it may be empty.
    pub fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let text = self.pending();
        // The last character may be incomplete; so may U+FFFD itself, which is rare, and written with the next token.
        if text.ends_with(char::REPLACEMENT_CHARACTER) && self.tokens.len() - self.written < MAX_PENDING_TOKENS {
            return String::new();
        }
        self.tokens.drain(..self.written);
        self.written = self.tokens.len();
        text
    }

    /// Returns the rest of the text, with U+FFFD for a character that is not complete.
    pub fn finish(self) -> String {
        self.pending()
    }

    /// Returns the text of the tokens whose text was not returned.
    fn pending(&self) -> String {
        let before = self.tokenizer.decode(&self.tokens[..self.written]);
        let mut text = self.tokenizer.decode(&self.tokens);
        // What was returned does not change: only complete characters are.
        let shared = before.bytes().zip(text.bytes()).take_while(|(before, now)| before == now).count();
        text.split_off(text.floor_char_boundary(shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_written_when_they_are_complete() {
        let mut text = TextDecoder::new(&Tokenizer::Bytes, &[0x61]);
        let written: Vec<String> = b"\xc3\xa9b\xe4\xb8\xadc".iter().map(|byte| text.push(u32::from(*byte))).collect();
        assert_eq!(written, ["", "é", "b", "", "", "中", "c"]);
        // Bytes that no character begins with, a token beyond the vocabulary, and half a character at the end.
        let rest: String = [0xff, 0xff, 0x64, 70_000, 0xc3].into_iter().map(|token| text.push(token)).collect();
        assert_eq!((rest.as_str(), text.finish().as_str()), ("\u{fffd}\u{fffd}d", "\u{fffd}"));
    }
}
