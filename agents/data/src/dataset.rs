//! Reads samples by number.

use std::ops::Range;

use crate::cache::{self, CacheDir, CacheOutcome};
use crate::files::expand;
use crate::inspect::inspect_files;
use crate::permute::{Permutation, key};
use crate::synthetic::{self, Synthetic};
use crate::text::Corpus;
use crate::token_store::TokenStore;
use crate::{DataError, SourceKind, SourceSpec, SplitPart, Tokenizer};

/// An open data source: a pure function from sample number to tokens.
///
/// Reading takes `&self`, keeps no state and is thread-safe.
pub struct Dataset {
    source: TokenSource,
    /// Tokens per sample (T).
    seq_len: usize,
    /// The windows of the split, numbered over the whole source if it is synthetic, otherwise from 0.
    windows: Range<u64>,
    /// Index of the first token of the split.
    first_token: u64,
    shuffle: Option<u64>,
    fingerprint: [u8; 32],
    cache: CacheOutcome,
}

enum TokenSource {
    Stored(TokenStore),
    Synthetic(Synthetic),
}

impl Dataset {
    /// Opens the source and tokenizes text that is not cached.
    ///
    /// `progress` receives (bytes done, total bytes), starting with zero bytes done and ending with all, while text is
    /// tokenized or token files are read. It is not called for cached text.
    pub fn open(spec: &SourceSpec, mut progress: impl FnMut(u64, u64)) -> Result<Self, DataError> {
        spec.check()?;
        let (source, cache) = match &spec.kind {
            SourceKind::Text { paths, tokenizer } => {
                let (store, cache) = open_text(spec, paths, *tokenizer, &mut progress)?;
                (TokenSource::Stored(store), cache)
            }
            SourceKind::Tokens { paths } => {
                let files = expand(paths, "bin")?;
                inspect_files(&spec.kind, &files)?;
                let store = TokenStore::open_files(&files, &mut progress)?;
                (TokenSource::Stored(store), CacheOutcome::NotNeeded)
            }
            SourceKind::Synthetic { vocab_size, seed } => {
                (TokenSource::Synthetic(Synthetic::new(*vocab_size, *seed)), CacheOutcome::NotNeeded)
            }
        };
        let (first_token, windows) = split_windows(spec, &source)?;
        let shuffle = (spec.shuffle && spec.split == SplitPart::Train).then_some(spec.shuffle_seed);
        let fingerprint = fingerprint(spec.seq_len, &source, first_token, &windows, shuffle);
        Ok(Self { source, seq_len: spec.seq_len, windows, first_token, shuffle, fingerprint, cache })
    }

    /// Returns the tokens of `input_ids` and of `labels` in one sample (T).
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Returns the number of windows in the split, at least 1. This many samples are one pass.
    pub fn windows(&self) -> u64 {
        self.windows.end - self.windows.start
    }

    /// Returns the largest token of the source, both splits together.
    pub fn max_token(&self) -> u32 {
        match &self.source {
            TokenSource::Stored(store) => store.max_token.into(),
            TokenSource::Synthetic(synthetic) => synthetic.max_token(),
        }
    }

    /// Returns an error if the model's vocabulary does not contain every token of the source.
    pub fn check_vocab(&self, vocab_size: u64) -> Result<(), DataError> {
        let max_token = self.max_token();
        if u64::from(max_token) < vocab_size {
            Ok(())
        } else {
            Err(DataError::VocabularyTooSmall { vocab_size, max_token })
        }
    }

    /// Returns a digest of everything the samples depend on. Two data sets with the same fingerprint have the same
    /// samples, independent of the paths of their files.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns what the token cache did when this was opened.
    pub fn cache(&self) -> &CacheOutcome {
        &self.cache
    }

    /// Writes sample `n`: T tokens to `input_ids` and, for each, the following token to `labels`.
    ///
    /// Sample `n` is window `n mod N` of pass `n / N` over the N windows of the split. With shuffling, the order of a
    /// pass is the [`Permutation`] keyed by (shuffle seed, pass).
    ///
    /// # Panics
    /// If one of the slices is not T long.
    pub fn sample(&self, n: u64, input_ids: &mut [i32], labels: &mut [i32]) {
        assert_eq!(
            (input_ids.len(), labels.len()),
            (self.seq_len, self.seq_len),
            "a sample has {} tokens",
            self.seq_len
        );
        let count = self.windows();
        let (pass, index) = (n / count, n % count);
        let index = match self.shuffle {
            Some(seed) => Permutation::new(count, key(seed, pass)).apply(index),
            None => index,
        };
        let window = self.windows.start + index;
        match &self.source {
            TokenSource::Stored(store) => {
                let at = self.first_token + window * self.seq_len as u64;
                store.copy(at, input_ids);
                store.copy(at + 1, labels);
            }
            TokenSource::Synthetic(synthetic) => {
                let mut tokens = synthetic.window(window);
                let mut last = tokens.next().unwrap_or(0);
                for ((input, label), next) in input_ids.iter_mut().zip(labels).zip(tokens) {
                    *input = std::mem::replace(&mut last, next);
                    *label = next;
                }
            }
        }
    }
}

fn open_text(
    spec: &SourceSpec,
    paths: &[String],
    tokenizer: Tokenizer,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(TokenStore, CacheOutcome), DataError> {
    let files = expand(paths, "txt")?;
    inspect_files(&spec.kind, &files)?;
    let corpus = Corpus::open(&files, tokenizer)?;
    let dir = CacheDir::from_environment(spec.cache_dir.as_deref());
    cache::open(&dir, corpus.key(), &mut |sink| corpus.tokenise(progress, sink))
}

/// Returns the range of `total` tokens, or windows, that belongs to the split.
fn split_range(spec: &SourceSpec, total: u64) -> Range<u64> {
    // Rounded down, and limited to the total, which the f64 may exceed after rounding.
    let kept = ((total as f64 * spec.validation_fraction) as u64).min(total);
    match spec.split {
        SplitPart::Train => 0..total - kept,
        SplitPart::Validation => total - kept..total,
    }
}

/// Returns the first token of the split and its number of windows, in a source of `tokens` tokens.
pub(crate) fn windows_of_split(spec: &SourceSpec, tokens: u64) -> Result<(u64, u64), DataError> {
    let (part, seq_len) = (split_range(spec, tokens), spec.seq_len as u64);
    let tokens = part.end - part.start;
    match tokens.saturating_sub(1) / seq_len {
        0 => Err(DataError::TooShort { split: spec.split, tokens, needed: seq_len + 1 }),
        windows => Ok((part.start, windows)),
    }
}

/// Returns the first token and the windows of the split.
fn split_windows(spec: &SourceSpec, source: &TokenSource) -> Result<(u64, Range<u64>), DataError> {
    match source {
        TokenSource::Stored(store) => {
            let (first_token, windows) = windows_of_split(spec, store.len())?;
            Ok((first_token, 0..windows))
        }
        TokenSource::Synthetic(_) => {
            let windows = split_range(spec, synthetic::SYNTHETIC_WINDOWS);
            if windows.is_empty() {
                return Err(DataError::TooShort { split: spec.split, tokens: 0, needed: spec.seq_len as u64 + 1 });
            }
            Ok((0, windows))
        }
    }
}

fn fingerprint(
    seq_len: usize,
    source: &TokenSource,
    first_token: u64,
    windows: &Range<u64>,
    shuffle: Option<u64>,
) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("millrace samples, version 1");
    hasher.update(&match source {
        TokenSource::Stored(store) => store.digest,
        TokenSource::Synthetic(synthetic) => synthetic.digest(),
    });
    let order = shuffle.map_or([0, 0], |seed| [1, seed]);
    for number in [seq_len as u64, first_token, windows.start, windows.end, order[0], order[1]] {
        hasher.update(&number.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}
