//! A seeded random number generator (SplitMix64).

/// The next number of a stream is a pure function of the previous one.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// One scrambling round of SplitMix64.
pub const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// In `[0, bound)`; 0 for an empty range.
    pub const fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }

    /// In `[low, high]`.
    pub const fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Returns true in `percent` of 100 cases.
    pub const fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        choices.get(self.below(choices.len())).copied()
    }
}
