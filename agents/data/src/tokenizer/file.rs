//! The tokenizer of a file, with its path.

use std::path::{Path, PathBuf};

use millrace_text::{EncoderTokens, FileTokenizer, TokenizerProblem};

use crate::DataError;
use crate::encoder::SpecialTokens;
use crate::files::read_whole;

/// Maximum size of a file. That of the largest public vocabularies, 256,000 tokens, is 33 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The tokenizer of a file. Its errors name the file.
pub struct TokenizerFile {
    path: PathBuf,
    pub(super) tokenizer: FileTokenizer,
}

impl TokenizerFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The file can't be read, or is no tokenizer that gives the same tokens for the same text.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let tokenizer = FileTokenizer::parse(&read(path)?).map_err(|problem| error(path, problem))?;
        Ok(Self { path: path.to_owned(), tokenizer })
    }

    /// Reads the content of the file again.
    pub(super) fn content(&self) -> Result<Vec<u8>, DataError> {
        let content = read(&self.path)?;
        match blake3::hash(&content).as_bytes() == self.tokenizer.digest() {
            true => Ok(content),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }

    /// Returns the special tokens of an encoder, if the vocabulary has all of them.
    pub(super) fn special_tokens(&self) -> Option<SpecialTokens> {
        let EncoderTokens { mask, begin, end, padding } = self.tokenizer.encoder_tokens()?;
        let [mask, begin, end, padding] = [mask, begin, end, padding].map(|token| token as i32);
        Some(SpecialTokens { mask, begin, end, padding })
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.tokenizer.encode(text).map_err(|problem| error(&self.path, problem))
    }
}

impl std::fmt::Debug for TokenizerFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TokenizerFile").field(&self.path).finish()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let too_large = |bytes| error(path, TokenizerProblem::TooLarge { bytes, max_bytes: MAX_FILE_BYTES });
    read_whole(path, MAX_FILE_BYTES, too_large)
}

fn error(path: &Path, problem: TokenizerProblem) -> DataError {
    DataError::Tokenizer { path: path.to_owned(), problem }
}
