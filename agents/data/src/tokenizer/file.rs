//! Tokenizers of files `tokenizer.json`, as the Hugging Face library `tokenizers` writes them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use tokenizers::ModelWrapper;

use crate::DataError;
use crate::encoder::SpecialTokens;
use crate::files::read_whole;

/// Maximum size of a file. That of the largest public vocabularies, 256,000 tokens, is 33 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Tokens that end a document in the vocabularies of public models. Of several, the first in this list is used.
const END_TOKENS: [&str; 8] =
    ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<｜end▁of▁sentence｜>", "[EOS]", "[SEP]"];

/// Names of the special tokens of encoders: mask, begin, end and padding, as of BERT and of RoBERTa.
const ENCODER_TOKENS: [[&str; 4]; 2] = [["[MASK]", "[CLS]", "[SEP]", "[PAD]"], ["<mask>", "<s>", "</s>", "<pad>"]];

/// Why a file is no tokenizer, or can't encode a text.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerProblem {
    #[error("has {bytes} bytes, more than the {MAX_FILE_BYTES} that are allowed")]
    TooLarge { bytes: u64 },
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
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } | Self::Invalid(_) | Self::NoTokens => {
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

/// The tokenizer of a file.
pub struct FileTokenizer {
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
    vocab_size: u32,
    /// Number and name of the token between documents.
    separator: (u32, &'static str),
    digest: blake3::Hash,
}

impl FileTokenizer {
    /// Reads the file.
    ///
    /// # Errors
    /// The file can't be read, or is no tokenizer that gives the same tokens for the same text.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let content = read(path)?;
        Self::parse(path, &content).map_err(|problem| DataError::Tokenizer { path: path.to_owned(), problem })
    }

    fn parse(path: &Path, content: &[u8]) -> Result<Self, TokenizerProblem> {
        let mut tokenizer = guarded(|| tokenizers::Tokenizer::from_bytes(content).map_err(TokenizerProblem::Invalid))?;
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
            path: path.to_owned(),
            vocab_size: largest + 1,
            separator: separator.ok_or(TokenizerProblem::NoEndToken)?,
            digest: blake3::hash(content),
            tokenizer,
        })
    }

    /// Returns the largest token plus 1.
    pub(super) fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    pub(super) fn separator(&self) -> u32 {
        self.separator.0
    }

    pub(super) fn separator_name(&self) -> &'static str {
        self.separator.1
    }

    /// Reads the content of the file again.
    pub(super) fn content(&self) -> Result<Vec<u8>, DataError> {
        let content = read(&self.path)?;
        match blake3::hash(&content) == self.digest {
            true => Ok(content),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }

    /// Returns the special tokens of an encoder, if the vocabulary has all of them.
    pub(super) fn special_tokens(&self) -> Option<SpecialTokens> {
        let token = |name: &str| self.tokenizer.token_to_id(name).map(|token| token as i32);
        ENCODER_TOKENS.iter().find_map(|[mask, begin, end, padding]| {
            let (mask, begin, end, padding) = (token(mask)?, token(begin)?, token(end)?, token(padding)?);
            Some(SpecialTokens { mask, begin, end, padding })
        })
    }

    pub(super) fn digest(&self) -> &blake3::Hash {
        &self.digest
    }

    /// Returns the tokens of `text`, without those that the file adds to the begin and end of a text.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoded = guarded(|| {
            let encoding = self.tokenizer.encode_fast(text, false).map_err(TokenizerProblem::Encode)?;
            Ok(encoding.get_ids().to_vec())
        });
        encoded.map_err(|problem| DataError::Tokenizer { path: self.path.clone(), problem })
    }

    /// Returns the text of `tokens`. Tokens outside of the vocabulary have none.
    pub(super) fn decode(&self, tokens: &[u32]) -> String {
        // A decoder that fails has no text; the tokens are correct all the same.
        guarded(|| self.tokenizer.decode(tokens, false).map_err(TokenizerProblem::Encode)).unwrap_or_default()
    }
}

impl std::fmt::Debug for FileTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FileTokenizer").field(&self.path).finish()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    read_whole(path, MAX_FILE_BYTES, |bytes| {
        let problem = TokenizerProblem::TooLarge { bytes };
        DataError::Tokenizer { path: path.to_owned(), problem }
    })
}

/// Calls the library, and converts a panic to a problem: the file is input.
fn guarded<T>(call: impl FnOnce() -> Result<T, TokenizerProblem>) -> Result<T, TokenizerProblem> {
    // The library keeps no state between calls but a cache, which it abandons if a thread panicked.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(TokenizerProblem::Inconsistent))
}
