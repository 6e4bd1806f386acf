//! The order in which an input reads the windows of its source.

use std::ops::Range;

use crate::permute::{Permutation, key};

/// Maps sample numbers to windows. A pass has as many samples as there are windows, unless another number is given.
#[derive(Debug, Clone)]
pub(crate) struct SampleOrder {
    /// The windows that are read, ascending; at least one in total.
    ranges: Vec<Range<u64>>,
    windows: u64,
    samples_per_pass: u64,
    /// The seed, if each pass has its own random order.
    shuffle: Option<u64>,
}

impl SampleOrder {
    /// Creates the order over the shares `subset` of `windows`, or over all if it is empty. `num_samples` is the number
    /// of samples in a pass. Returns `None` if there is no window.
    pub(crate) fn new(
        windows: Range<u64>,
        subset: &[[f64; 2]],
        num_samples: Option<u64>,
        shuffle: Option<u64>,
    ) -> Option<Self> {
        let total = windows.end - windows.start;
        // Rounded down, and limited to the total, which the f64 may exceed after rounding.
        let position = |share: f64| windows.start + ((total as f64 * share) as u64).min(total);
        let mut ranges: Vec<Range<u64>> = subset.iter().map(|[begin, end]| position(*begin)..position(*end)).collect();
        if subset.is_empty() {
            ranges.push(windows.clone());
        }
        ranges.retain(|range| !range.is_empty());
        let windows = ranges.iter().map(|range| range.end - range.start).sum();
        let samples_per_pass = num_samples.unwrap_or(windows);
        (windows > 0 && samples_per_pass > 0).then_some(Self { ranges, windows, samples_per_pass, shuffle })
    }

    /// Returns the number of samples in a pass, at least 1.
    pub(crate) fn samples_per_pass(&self) -> u64 {
        self.samples_per_pass
    }

    /// Returns the first window that is read without shuffling.
    pub(crate) fn first_window(&self) -> u64 {
        self.ranges.first().map_or(0, |range| range.start)
    }

    /// Returns the window of sample `n`.
    ///
    /// With shuffling, the order of a pass is the [`Permutation`] keyed by (seed, pass): of the windows, or of the
    /// samples of the pass if these are more. In that case a pass has every window equally often, up to one.
    pub(crate) fn window(&self, n: u64) -> u64 {
        let (pass, index) = (n / self.samples_per_pass, n % self.samples_per_pass);
        let index = match self.shuffle {
            Some(seed) => {
                Permutation::new(self.windows.max(self.samples_per_pass), key(seed, pass)).apply(index) % self.windows
            }
            None => index % self.windows,
        };
        let mut rest = index;
        for range in &self.ranges {
            let count = range.end - range.start;
            if rest < count {
                return range.start + rest;
            }
            rest -= count;
        }
        // Not reached, because `index` is below the sum of the ranges.
        self.ranges.last().map_or(0, |range| range.start)
    }

    /// Adds everything that the order depends on to `hasher`.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        let shuffle = self.shuffle.map_or([0, 0], |seed| [1, seed]);
        let ranges = self.ranges.iter().flat_map(|range| [range.start, range.end]);
        for number in ranges.chain([self.samples_per_pass]).chain(shuffle) {
            hasher.update(&number.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(order: &SampleOrder, pass: u64) -> Vec<u64> {
        let count = order.samples_per_pass();
        (pass * count..(pass + 1) * count).map(|n| order.window(n)).collect()
    }

    fn sorted(mut windows: Vec<u64>) -> Vec<u64> {
        windows.sort_unstable();
        windows
    }

    #[test]
    fn subset_selects_windows_by_share() {
        for shuffle in [None, Some(3)] {
            let order = SampleOrder::new(10..30, &[[0.0, 0.1], [0.5, 0.75]], None, shuffle).unwrap();
            let expected: Vec<u64> = (10..12).chain(20..25).collect();
            for number in 0..3 {
                assert_eq!(sorted(pass(&order, number)), expected);
            }
        }
        assert!(SampleOrder::new(0..10, &[[0.5, 0.55]], None, None).is_none());
        assert!(SampleOrder::new(0..0, &[], None, None).is_none());
    }

    #[test]
    fn pass_may_have_fewer_or_more_samples_than_windows() {
        let order = |samples, shuffle| SampleOrder::new(0..4, &[], Some(samples), shuffle).unwrap();
        assert_eq!(pass(&order(3, None), 1), [0, 1, 2]);
        assert_eq!(pass(&order(6, None), 1), [0, 1, 2, 3, 0, 1]);
        let fewer = order(3, Some(5));
        let passes: Vec<_> = (0..20).map(|number| sorted(pass(&fewer, number))).collect();
        assert!(passes.iter().all(|windows| windows.windows(2).all(|pair| pair[0] < pair[1])), "no window twice");
        assert!((0..4).all(|window| passes.iter().any(|windows| windows.contains(&window))), "no window is left out");
        assert_eq!(sorted(pass(&order(9, Some(5)), 0)), [0, 0, 0, 1, 1, 2, 2, 3, 3]);
        assert_ne!(pass(&order(9, Some(5)), 0), pass(&order(9, Some(5)), 1));
    }
}
