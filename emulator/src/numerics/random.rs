//! Counter-based random numbers: a hash of (key, element), no state.
//!
//! A *key* identifies one use of randomness (this seed, this sample, this operator), an *element* the position in it.
//! [`hash`] uses 32-bit lanes only, so that vector instructions hash sixteen elements at once; it is meant for masks.
//! [`hash64`] is for the few values that need more bits.

/// Finaliser of SplitMix64: a bijection of 64 bits whose every input bit flips about half of the output bits.
#[inline(always)]
const fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 2^64 divided by the golden ratio, odd.
const SPLITMIX64_INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The key of operator `op` on sample `sample` (its number since the start of the job) under `seed`.
#[inline]
pub const fn key(seed: u64, sample: u64, op: u64) -> u64 {
    subkey(subkey(mix64(seed.wrapping_add(SPLITMIX64_INCREMENT)), sample), op)
}

/// Returns the key of part `part` (an attention head, a row) of the use `key`.
#[inline(always)]
pub const fn subkey(key: u64, part: u64) -> u64 {
    // The two rounds keep subkey(subkey(k, a), b) from depending on a and b only through their combination.
    mix64(mix64(key ^ SPLITMIX64_INCREMENT).wrapping_add(part.wrapping_mul(SPLITMIX64_INCREMENT)))
}

/// 32 random bits of `element` under `key`. Uses 32-bit operations only, so that it vectorises.
#[inline(always)]
pub const fn hash(key: u64, element: u32) -> u32 {
    // Two rounds of the 32-bit finaliser found by Wellons' search for low bias; each half of the key enters before one.
    let mut x = element.wrapping_add(key as u32);
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x = (x ^ (x >> 16)).wrapping_add((key >> 32) as u32);
    x = (x ^ (x >> 16)).wrapping_mul(0x21f0_aaad);
    x = (x ^ (x >> 15)).wrapping_mul(0xd35a_2d97);
    x ^ (x >> 15)
}

/// 64 random bits of `element` under `key`.
#[inline]
pub const fn hash64(key: u64, element: u64) -> u64 {
    mix64(mix64(key.wrapping_add(element.wrapping_mul(SPLITMIX64_INCREMENT))) ^ key.rotate_left(32))
}

/// A number in the open interval (0, 1), from the upper 52 bits of `bits`.
#[inline]
pub const fn to_open_unit(bits: u64) -> f64 {
    ((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// Dropout at a given rate: the elements it keeps and their factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutMask {
    /// An element is kept if its hash is at least this.
    threshold: u32,
    /// 1 / (1 - rate).
    scale: f32,
}

impl DropoutMask {
    /// Dropout that zeroes a share `rate` of the elements; `None` unless 0 <= rate < 1.
    pub fn new(rate: f64) -> Option<Self> {
        // The comparison also rejects NaN.
        if !(0.0..1.0).contains(&rate) {
            return None;
        }
        let threshold = (rate * 4_294_967_296.0) as u32; // saturates just below one, where one element in 2^32 is kept
        Some(DropoutMask { threshold, scale: (1.0 / (1.0 - rate)) as f32 })
    }

    /// Returns whether nothing is dropped.
    pub const fn is_off(self) -> bool {
        self.threshold == 0
    }

    /// The factor of `element` under `key`: 0, or 1 / (1 - rate).
    #[inline(always)]
    pub const fn factor(self, key: u64, element: u32) -> f32 {
        if hash(key, element) >= self.threshold { self.scale } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Correlation of the top bits of two streams of hashes, in standard deviations.
    fn z_correlation(pairs: impl Iterator<Item = (u32, u32)>) -> f64 {
        let (mut sum, mut n) = (0.0, 0.0f64);
        for (a, b) in pairs {
            let centred = |h: u32| f64::from(h) / 4_294_967_296.0 - 0.5;
            sum += centred(a) * centred(b);
            n += 1.0;
        }
        sum * 12.0 / n.sqrt() // each factor has variance 1/12
    }

    #[test]
    fn hash_is_uniform_and_uncorrelated() {
        const N: u32 = 1 << 18;
        for seed in 0..4 {
            let k = key(seed, 7, 3);
            let values = || (0..N).map(|i| f64::from(hash(k, i)) / 4_294_967_296.0);
            let n = f64::from(N);
            let mean = values().sum::<f64>() / n;
            assert!(((mean - 0.5) * (12.0 * n).sqrt()).abs() < 4.0, "mean {mean}");
            let variance = values().map(|v| (v - 0.5).powi(2)).sum::<f64>() / n;
            // The variance of (u - 1/2)^2 is 1/180.
            assert!(((variance - 1.0 / 12.0) * (180.0 * n).sqrt()).abs() < 4.0, "variance {variance}");
            for lag in [1, 2, 3, 16, 64, 4096] {
                let z = z_correlation((0..N).map(|i| (hash(k, i), hash(k, i + lag))));
                assert!(z.abs() < 4.5, "lag {lag}: {z}");
            }
            let neighbours = [key(seed + 1, 7, 3), key(seed, 8, 3), key(seed, 7, 4), k ^ 1, k ^ (1 << 63), k + 1];
            for other in neighbours {
                let z = z_correlation((0..N).map(|i| (hash(k, i), hash(other, i))));
                assert!(z.abs() < 4.5, "key {other:x}: {z}");
            }
        }
    }

    #[test]
    fn every_output_bit_depends_on_every_input_bit() {
        let base = key(1, 2, 3);
        for flip in 0..96 {
            let mut ones = [0u32; 32];
            const N: u32 = 4096;
            for i in 0..N {
                let element = i.wrapping_mul(0x9e37_79b9);
                let (k, e) =
                    if flip < 64 { (base ^ (1 << flip), element) } else { (base, element ^ (1 << (flip - 64))) };
                let changed = hash(base, element) ^ hash(k, e);
                for (bit, count) in ones.iter_mut().enumerate() {
                    *count += (changed >> bit) & 1;
                }
            }
            for count in ones {
                let share = f64::from(count) / f64::from(N);
                assert!((share - 0.5).abs() < 0.05, "flip {flip}: {share}");
            }
        }
    }

    #[test]
    fn keys_differ_and_parts_do_not_commute() {
        let mut keys: Vec<u64> =
            (0..8).flat_map(|s| (0..32).flat_map(move |n| (0..32).map(move |op| key(s, n, op)))).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 8 * 32 * 32);
        assert_ne!(key(1, 2, 3), key(1, 3, 2));
    }

    #[test]
    fn dropout_keeps_its_share() {
        let k = key(5, 0, 0);
        for rate in [0.0, 0.1, 0.5, 0.9] {
            let dropout = DropoutMask::new(rate).unwrap();
            let n = 100_000;
            let kept_share = (0..n).filter(|i| dropout.factor(k, *i) != 0.0).count() as f64 / f64::from(n);
            assert!((kept_share - (1.0 - rate)).abs() < 0.005, "{rate}: {kept_share}");
            assert_eq!(dropout.is_off(), rate == 0.0);
        }
        for bad in [-0.1, 1.0, f64::NAN] {
            assert_eq!(DropoutMask::new(bad), None);
        }
    }

    #[test]
    fn random_functions_are_unchanged() {
        assert_eq!((hash(0, 0), hash(key(1, 2, 3), 4)), (FROZEN.0, FROZEN.1));
        assert_eq!((key(1, 2, 3), hash64(key(1, 2, 3), 4)), (FROZEN.2, FROZEN.3));
    }

    const FROZEN: (u32, u32, u64, u64) = (0, 1_379_940_543, 17_869_936_233_417_857_447, 11_176_328_311_033_907_024);
}
