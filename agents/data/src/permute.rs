//! A keyed permutation of `0..n` that is computed, not stored.
//!
//! Shuffles by number: the order of an epoch over billions of windows costs no memory and no pass over it, and sample n
//! is found without computing the samples before it. A balanced Feistel network permutes the smallest square power of
//! two that is at least `n`; results outside of `0..n` are fed back until one is inside (cycle walking). This keeps it
//! a bijection and takes fewer than four iterations on average, because the square is smaller than `4 * n`.
//!
//! The arithmetic is part of the meaning of a checkpoint: changing it changes the samples of a resumed run.

/// Enough to mix even domains of two or three bits well; a round costs a few nanoseconds.
const FEISTEL_ROUNDS: usize = 12;

/// A pseudo-random permutation of `0..n`, a pure function of (n, key).
#[derive(Debug, Clone)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; FEISTEL_ROUNDS],
}

impl Permutation {
    /// Creates the permutation of `0..n` for `key`; `n` is at least 1.
    pub fn new(n: u64, key: u64) -> Self {
        let n = n.max(1);
        let bits = u64::BITS - (n - 1).leading_zeros();
        let keys = std::array::from_fn(|round| {
            splitmix64(key.wrapping_add((round as u64 + 1).wrapping_mul(SPLITMIX64_INCREMENT)))
        });
        Self { n, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// Returns the image of `index`.
    ///
    /// # Panics
    /// If `index` is not below `n`.
    pub fn apply(&self, index: u64) -> u64 {
        assert!(index < self.n, "index {index} is not below {}", self.n);
        let mut x = self.feistel(index);
        while x >= self.n {
            x = self.feistel(x);
        }
        x
    }

    fn feistel(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for key in self.keys {
            let round = splitmix64(right ^ key) >> 32;
            (left, right) = (right, (left ^ round) & mask);
        }
        (left << self.half_bits) | right
    }
}

/// 2^64 divided by the golden ratio: the increment of SplitMix64.
pub(crate) const SPLITMIX64_INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64 bits that avalanches.
pub(crate) fn splitmix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A key from two numbers, neither of which can cancel the other.
pub(crate) fn key(a: u64, b: u64) -> u64 {
    splitmix64(
        splitmix64(a.wrapping_add(SPLITMIX64_INCREMENT))
            ^ b.wrapping_mul(SPLITMIX64_INCREMENT).wrapping_add(SPLITMIX64_INCREMENT),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_and_key_gives_a_bijection() {
        let sizes = (1..=70).chain([127, 128, 129, 1000, 4095, 4096, 4097, 70_001]);
        for n in sizes {
            for seed in [0, 1, 42, u64::MAX] {
                let permutation = Permutation::new(n, seed);
                let mut is_reached = vec![false; n as usize];
                for i in 0..n {
                    let to = permutation.apply(i) as usize;
                    assert!(!std::mem::replace(&mut is_reached[to], true), "n {n} seed {seed}: {to} twice");
                }
            }
        }
        // Sizes too large for an exhaustive test: in range, and no two indices with the same image.
        for n in [u64::from(u32::MAX), (1 << 40) + 7, u64::MAX] {
            let permutation = Permutation::new(n, 9);
            let to: std::collections::HashSet<u64> = (0..1000).map(|i| permutation.apply(n - 1 - i)).collect();
            assert!(to.len() == 1000 && to.iter().all(|&x| x < n));
        }
    }

    #[test]
    fn orders_are_spread_evenly() {
        // Every element has every image: counts of (from, to) over 4,000 keys are near their mean. The bound is six
        // standard deviations of a binomial count.
        for n in [2u64, 3, 5, 8, 13] {
            let trials = 4000;
            let mut counts = vec![0f64; (n * n) as usize];
            for seed in 0..trials {
                let permutation = Permutation::new(n, key(seed, 0));
                (0..n).for_each(|i| counts[(i * n + permutation.apply(i)) as usize] += 1.0);
            }
            let p = 1.0 / n as f64;
            let (mean, deviation) = (trials as f64 * p, (trials as f64 * p * (1.0 - p)).sqrt());
            for count in counts {
                assert!((count - mean).abs() < 6.0 * deviation, "n {n}: {count} against {mean}");
            }
        }
    }

    #[test]
    fn order_is_unchanged() {
        // A change here changes the samples with which every existing checkpoint continues.
        let order: Vec<u64> = (0..10).map(|i| Permutation::new(10, key(1, 0)).apply(i)).collect();
        assert_eq!(order, [5, 4, 1, 2, 6, 8, 0, 7, 9, 3]);
    }
}
