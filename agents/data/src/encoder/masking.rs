//! Chooses the tokens that an encoder has to predict, and masks them.
//!
//! The choice is a pure function of (seed, number of the sample). Of the chosen tokens, 80% are replaced by the mask,
//! 10% by a random token, and 10% stay.

use std::ops::Range;

use super::SPECIAL_TOKENS;
use crate::DataError;
use crate::permute::{key, splitmix64};

/// Separates these random numbers from those of the order of samples, which has the same seed.
const MASKING_KEY: u64 = 0x6d61_736b;
/// Draws of a random token before the token stays, so that a vocabulary of special tokens only does not take forever.
const MAX_DRAWS: usize = 64;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Masking {
    /// Share of the tokens that are predicted, in (0, 1).
    pub probability: f64,
    /// Whether all tokens of a word are chosen together.
    pub whole_words: bool,
}

/// Numbers of special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Stands for a token that is predicted.
    pub mask: i32,
    /// Beginning of a sample.
    pub begin: i32,
    /// End of a segment.
    pub end: i32,
    /// Fills a sample.
    pub padding: i32,
}

impl SpecialTokens {
    /// Those of a source without a vocabulary, whose samples are masked already: only padding is used.
    pub(crate) const NONE: Self = Self { mask: 0, begin: 0, end: 0, padding: 0 };

    /// Returns the special tokens of a vocabulary in which they begin at `first`: mask, beginning, end and padding.
    ///
    /// # Errors
    /// The mask is not one of them.
    pub fn following(first: u32, mask: Option<u32>) -> Result<Self, DataError> {
        let tokens = first..first.saturating_add(SPECIAL_TOKENS);
        let mask = mask.unwrap_or(first);
        if !tokens.contains(&mask) {
            return Err(DataError::WrongMaskToken { token: mask, expected: first });
        }
        let mut others = tokens.filter(|&token| token != mask).map(|token| token as i32);
        let mut next = || others.next().unwrap_or_default();
        Ok(Self { mask: mask as i32, begin: next(), end: next(), padding: next() })
    }

    pub(crate) fn contains(self, token: i32) -> bool {
        [self.mask, self.begin, self.end, self.padding].contains(&token)
    }
}

/// Random numbers of a sample.
pub(crate) struct SampleRandom(u64);

impl SampleRandom {
    pub fn new(seed: u64, sample: u64) -> Self {
        Self(key(splitmix64(seed ^ MASKING_KEY), sample))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        splitmix64(self.0)
    }

    /// Returns a number below `count`, which is at least 1.
    pub fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }
}

/// Masks tokens, of which `continues` says whether each belongs to the word of the one before it; it may be shorter.
/// Returns the masked positions, ascending, with the tokens that were there.
pub(super) fn mask(
    masking: Masking,
    max_predictions: usize,
    special: SpecialTokens,
    vocab_size: u32,
    random: &mut SampleRandom,
    tokens: &mut [i32],
    continues: &[bool],
) -> Vec<(usize, i32)> {
    let count = (tokens.len() as f64 * masking.probability).round_ties_even() as usize;
    let count = count.clamp(1, max_predictions.max(1));
    let mut words: Vec<Range<usize>> = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        if special.contains(token) {
            continue;
        }
        let is_part = masking.whole_words && continues.get(position) == Some(&true);
        match words.last_mut().filter(|word| is_part && word.end == position) {
            Some(word) => word.end = position + 1,
            None => words.push(position..position + 1),
        }
    }
    let mut chosen = Vec::with_capacity(count);
    for first in 0..words.len() {
        if chosen.len() >= count {
            break;
        }
        let other = first + random.below((words.len() - first) as u64) as usize;
        words.swap(first, other);
        // A word that has more tokens than may still be predicted is skipped.
        if chosen.len() + words[first].len() <= max_predictions {
            chosen.extend(words[first].clone());
        }
    }
    chosen.sort_unstable();
    let mut predictions = Vec::with_capacity(chosen.len());
    for position in chosen {
        predictions.push((position, tokens[position]));
        match random.below(10) {
            0..8 => tokens[position] = special.mask,
            8 => tokens[position] = random_token(special, vocab_size, random).unwrap_or(tokens[position]),
            _ => {}
        }
    }
    predictions
}

fn random_token(special: SpecialTokens, vocab_size: u32, random: &mut SampleRandom) -> Option<i32> {
    let mut draws = (0..MAX_DRAWS).map(|_| random.below(u64::from(vocab_size.max(1))) as i32);
    draws.find(|token| !special.contains(*token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECIAL: SpecialTokens = SpecialTokens { mask: 100, begin: 101, end: 102, padding: 103 };

    fn masked(sample: u64, whole_words: bool) -> (Vec<i32>, Vec<(usize, i32)>) {
        let mut tokens: Vec<i32> = (0..200).map(|i| i % 100).collect();
        (tokens[0], tokens[199]) = (SPECIAL.begin, SPECIAL.end);
        let continues: Vec<bool> = (0..200).map(|i| i % 4 >= 2).collect();
        let masking = Masking { probability: 0.15, whole_words };
        let mut random = SampleRandom::new(7, sample);
        let found = mask(masking, 30, SPECIAL, 104, &mut random, &mut tokens, &continues);
        (tokens, found)
    }

    #[test]
    fn masks_are_a_function_of_the_sample_with_the_shares_of_bert() {
        assert_eq!(masked(3, false), masked(3, false));
        assert_ne!(masked(3, false).1, masked(4, false).1);
        let mut counts = [0; 3];
        for sample in 0..400 {
            let (tokens, found) = masked(sample, false);
            assert_eq!(found.len(), 30);
            assert!(found.is_sorted() && found.windows(2).all(|two| two[0].0 < two[1].0));
            for (position, token) in found {
                assert!(!SPECIAL.contains(token) && token == position as i32 % 100);
                counts
                    [if tokens[position] == SPECIAL.mask { 0 } else { 1 + usize::from(tokens[position] == token) }] +=
                    1;
            }
        }
        // Of 12,000, with a standard deviation of at most 44.
        for (count, expected) in counts.into_iter().zip([9600, 1188, 1212]) {
            assert!(i32::abs(count - expected) < 200, "{counts:?}");
        }
    }

    #[test]
    fn whole_words_are_masked_together_within_the_limit() {
        for sample in 0..100 {
            let (_, found) = masked(sample, true);
            assert!((28..=30).contains(&found.len()), "{}", found.len());
            for &(position, _) in &found {
                let word = if position % 4 == 0 {
                    position..position + 1
                } else {
                    position - (position - 1) % 4..(position - (position - 1) % 4 + 3).min(199)
                };
                assert!(
                    word.clone().all(|position| found.iter().any(|(other, _)| *other == position)),
                    "{word:?} of {found:?}"
                );
            }
        }
        let mut one = [SPECIAL.begin];
        let masking = Masking { probability: 0.5, whole_words: false };
        assert!(mask(masking, 5, SPECIAL, 104, &mut SampleRandom::new(1, 1), &mut one, &[]).is_empty());
    }
}
