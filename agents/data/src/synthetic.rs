//! A synthetic stream that a model can learn: a seeded Markov chain over up to 64 tokens.
//!
//! Each state has two preferred successors, determined by the seed; with probability 7/8 the chain follows one of them,
//! otherwise it jumps to any state. A model that knows the chain reaches a loss of about 1.5 nats with 64 states; one
//! that only knows which tokens occur reaches ln 64 = 4.16. The states are spread evenly over the vocabulary, so that
//! every block of a large vocabulary is used.
//!
//! Window `w` is a pure function of (seed, vocabulary, w): windows share no state.

use crate::permute::{SPLITMIX64_INCREMENT, key, splitmix64};

const MAX_STATES: u32 = 64;

/// Windows of one pass, training and validation together. A synthetic source has no end; this number gives a pass, a
/// validation fraction and a shuffle the same meaning as for text.
pub(crate) const SYNTHETIC_WINDOWS: u64 = 1 << 16;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Synthetic {
    vocab_size: u32,
    seed: u64,
}

impl Synthetic {
    /// Creates a chain over `vocab_size` tokens, 2 to `i32::MAX`.
    pub(crate) fn new(vocab_size: u32, seed: u64) -> Self {
        Self { vocab_size, seed }
    }

    fn states(&self) -> u32 {
        self.vocab_size.min(MAX_STATES)
    }

    fn token(&self, state: u32) -> i32 {
        // Below the vocabulary size, which an i32 holds.
        (u64::from(state) * u64::from(self.vocab_size) / u64::from(self.states())) as i32
    }

    /// Returns the largest token of the stream.
    pub(crate) fn max_token(&self) -> u32 {
        self.token(self.states() - 1) as u32
    }

    /// Returns a digest of the parameters of the stream.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("millrace synthetic tokens, version 1");
        hasher.update(&self.vocab_size.to_le_bytes()).update(&self.seed.to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// Returns the tokens of window `w`, without end.
    pub(crate) fn window(self, w: u64) -> impl Iterator<Item = i32> {
        let start = key(self.seed, w);
        let mut state = self.below(splitmix64(start));
        (1u64..).map(move |i| {
            let token = self.token(state);
            let random = splitmix64(start.wrapping_add(i.wrapping_mul(SPLITMIX64_INCREMENT)));
            state = match random & 7 {
                0 => self.below(random),
                // Bit 3 selects one of the two preferred successors.
                _ => self.below(key(!self.seed, u64::from(state) * 2 + ((random >> 3) & 1))),
            };
            token
        })
    }

    /// Returns a state from the high bits of `random`, uniform except for one part in 2^26.
    fn below(&self, random: u64) -> u32 {
        (((random >> 32) * u64::from(self.states())) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_pure_and_stay_in_the_vocabulary() {
        for vocab_size in [2, 3, 64, 65, 257, 50_257, i32::MAX as u32] {
            let source = Synthetic::new(vocab_size, 5);
            let window = |w: u64| source.window(w).take(300).collect::<Vec<i32>>();
            let long = window(77);
            assert_eq!(long, window(77));
            assert_ne!(long, window(78));
            let max = long.iter().copied().max().unwrap();
            assert!(long.iter().all(|&t| t >= 0) && (max as u32) <= source.max_token());
            assert!(source.max_token() < vocab_size);
        }
    }

    #[test]
    fn bigram_model_learns_the_stream() {
        // Cross-entropy of held-out windows under the pair counts of other windows: the loss that a bigram model would
        // reach.
        let source = Synthetic::new(64, 3);
        let mut counts = vec![[0.05f64; 64]; 64];
        let window = |w| source.window(w).take(129).collect::<Vec<i32>>();
        for w in 0..400 {
            window(w).windows(2).for_each(|p| counts[p[0] as usize][p[1] as usize] += 1.0);
        }
        let (mut loss, mut pairs) = (0.0, 0.0);
        for w in 400..450 {
            for p in window(w).windows(2) {
                let row = &counts[p[0] as usize];
                loss -= (row[p[1] as usize] / row.iter().sum::<f64>()).ln();
                pairs += 1.0;
            }
        }
        let mean: f64 = loss / pairs;
        assert!((1.0..1.8).contains(&mean), "{mean}");
    }
}
