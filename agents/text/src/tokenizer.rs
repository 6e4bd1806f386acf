//! Tokenizers of files `tokenizer.json`, as the Hugging Face library `tokenizers` writes them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use tokenizers::{ModelWrapper, Tokenizer};

/// Maximum number of elements of lists and objects. The largest public tokenizers have 1.3 million; each takes up to
/// 100 bytes of memory while the file is read.
const MAX_ELEMENTS: usize = 4 << 20;

/// Tokens that end a document in the vocabularies of public models. Of several, the first in this list is used.
const END_TOKENS: [&str; 8] =
    ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<｜end▁of▁sentence｜>", "[EOS]", "[SEP]"];

/// Names of the special tokens of encoders: mask, start, end and padding, as of BERT and of RoBERTa.
pub const ENCODER_TOKENS: [[&str; 4]; 2] = [["[MASK]", "[CLS]", "[SEP]", "[PAD]"], ["<mask>", "<s>", "</s>", "<pad>"]];

/// Why a file is no tokenizer, or can't encode a text, as the end of a sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerProblem {
    #[error("has {bytes} bytes, more than the {max_bytes} that are allowed")]
    TooLarge { bytes: u64, max_bytes: u64 },
    #[error("has more than {MAX_ELEMENTS} elements")]
    TooManyElements,
    #[error("is not a tokenizer.json: {0}")]
    Invalid(Box<dyn std::error::Error + Send + Sync>),
    #[error("has no tokens")]
    NoTokens,
    #[error("has a token with the number {0}, which is out of range")]
    TokenOutOfRange(u32),
    #[error("drops merges at random (dropout), so that a text has no fixed tokens")]
    Dropout,
    #[error("has no token that ends a document, such as <|endoftext|>, </s> or [SEP]")]
    NoEndToken,
    #[error("can't encode a text: {0}")]
    Encode(Box<dyn std::error::Error + Send + Sync>),
    /// The library panicked, which it does for some files that pass its own checks.
    #[error("is inconsistent")]
    Inconsistent,
}

impl TokenizerProblem {
    /// Returns what the user can do about the problem.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } | Self::TooManyElements | Self::Invalid(_) | Self::NoTokens => {
                "name the file tokenizer.json of a model, as tokenizer.save_pretrained of transformers writes it"
            }
            Self::Dropout => "set dropout to null in the file",
            Self::NoEndToken => "add the special token </s> to the file",
            Self::Encode(_) => "use a tokenizer that has a token for unknown text",
            Self::TokenOutOfRange(_) | Self::Inconsistent => {
                "write the file again with a current version of tokenizers"
            }
        }
    }
}

/// The special tokens of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderTokens {
    pub mask: u32,
    /// Start of a sample.
    pub begin: u32,
    /// End of a segment.
    pub end: u32,
    pub padding: u32,
}

/// The tokenizer of a file.
pub struct FileTokenizer {
    tokenizer: Tokenizer,
    vocab_size: u32,
    /// Number and name of the token between documents.
    separator: (u32, &'static str),
    digest: [u8; 32],
}

impl FileTokenizer {
    /// Reads the content of a file.
    ///
    /// # Errors
    /// It is no tokenizer that gives the same tokens for the same text.
    pub fn parse(content: &[u8]) -> Result<Self, TokenizerProblem> {
        // Those in strings count, too; there are few.
        if content.iter().filter(|byte| **byte == b',').count() > MAX_ELEMENTS {
            return Err(TokenizerProblem::TooManyElements);
        }
        let mut tokenizer = guarded(|| {
            let text = std::str::from_utf8(content).map_err(|error| TokenizerProblem::Invalid(error.into()))?;
            Tokenizer::from_str(text).map_err(TokenizerProblem::Invalid)
        })?;
        if let ModelWrapper::BPE(model) = tokenizer.get_model()
            && model.dropout.is_some_and(|probability| probability != 0.0)
        {
            return Err(TokenizerProblem::Dropout);
        }
        // They are for batches of requests; a document is encoded as a whole.
        tokenizer.with_truncation(None).map_err(TokenizerProblem::Invalid)?;
        tokenizer.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max().ok_or(TokenizerProblem::NoTokens)?;
        if i32::try_from(largest).is_err() {
            return Err(TokenizerProblem::TokenOutOfRange(largest));
        }
        let separator = END_TOKENS.iter().find_map(|name| Some((tokenizer.token_to_id(name)?, *name)));
        Ok(Self {
            vocab_size: largest + 1,
            separator: separator.ok_or(TokenizerProblem::NoEndToken)?,
            digest: *blake3::hash(content).as_bytes(),
            tokenizer,
        })
    }

    /// Returns the largest token plus 1.
    pub const fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Returns the token between two documents.
    pub const fn separator(&self) -> u32 {
        self.separator.0
    }

    /// Returns the name of the token between two documents.
    pub const fn separator_name(&self) -> &'static str {
        self.separator.1
    }

    /// Returns the digest of the content.
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Returns the token with this name, if the vocabulary has it.
    pub fn token(&self, name: &str) -> Option<u32> {
        self.tokenizer.token_to_id(name)
    }

    /// Returns the special tokens of an encoder, if the vocabulary has all of them.
    pub fn encoder_tokens(&self) -> Option<EncoderTokens> {
        let token = |name: &str| self.tokenizer.token_to_id(name);
        ENCODER_TOKENS.iter().find_map(|[mask, begin, end, padding]| {
            let (mask, begin, end, padding) = (token(mask)?, token(begin)?, token(end)?, token(padding)?);
            Some(EncoderTokens { mask, begin, end, padding })
        })
    }

    /// Returns the tokens of `text`, without those that the file adds at the start and the end of a text.
    ///
    /// # Errors
    /// The file has no token for a part of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerProblem> {
        guarded(|| {
            let encoding = self.tokenizer.encode_fast(text, false).map_err(TokenizerProblem::Encode)?;
            Ok(encoding.get_ids().to_vec())
        })
    }

    /// Returns the text of `tokens`. Tokens outside of the vocabulary have none.
    pub fn decode(&self, tokens: &[u32]) -> String {
        // A decoder that fails has no text; the tokens are correct all the same.
        guarded(|| self.tokenizer.decode(tokens, false).map_err(TokenizerProblem::Encode)).unwrap_or_default()
    }
}

/// Calls the library, and converts a panic to a problem: the file is input.
fn guarded<T>(call: impl FnOnce() -> Result<T, TokenizerProblem>) -> Result<T, TokenizerProblem> {
    // The library keeps no state between calls but a cache, which it abandons if a thread panicked.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(TokenizerProblem::Inconsistent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_reading_a_file_is_bounded() {
        let elements = format!("{{\"model\": {{\"merges\": [{}[]]}}}}", "[],".repeat(MAX_ELEMENTS + 1));
        assert!(matches!(FileTokenizer::parse(elements.as_bytes()), Err(TokenizerProblem::TooManyElements)));
        assert!(matches!(FileTokenizer::parse("[".repeat(1 << 20).as_bytes()), Err(TokenizerProblem::Invalid(_))));
    }
}
