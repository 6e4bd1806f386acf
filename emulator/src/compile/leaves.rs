//! Cuts a batch into leaves.

use super::CompileError;
use crate::plan::LeafLayout;

/// Maximum samples of a batch. Keeps the search for divisors short.
const MAX_SAMPLES: usize = 1 << 24;

/// A batch and the bound on the size of its leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSpec {
    /// Samples of the global batch.
    pub samples: usize,
    /// Maximum samples of a leaf.
    pub leaf_bound: usize,
}

impl BatchSpec {
    pub(super) fn check(self, input: &'static str) -> Result<(), CompileError> {
        let limit = 1..=MAX_SAMPLES;
        if limit.contains(&self.samples) && limit.contains(&self.leaf_bound) {
            return Ok(());
        }
        Err(CompileError::Batch { input, samples: self.samples, bound: self.leaf_bound })
    }

    /// Returns the ways to cut the batch into equal leaves within the bound, largest leaf first. The last one has
    /// leaves of one sample.
    pub(super) fn possible_leaves(self) -> impl Iterator<Item = LeafLayout> {
        let batch = self.samples as u32;
        let divisors = (1..=self.leaf_bound.min(self.samples) as u32).rev().filter(move |&d| batch.is_multiple_of(d));
        divisors.map(move |samples| LeafLayout { count: batch / samples, samples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaf_is_largest_divisor_within_bound() {
        let first = |samples, leaf_bound| {
            let LeafLayout { count, samples } = BatchSpec { samples, leaf_bound }.possible_leaves().next().unwrap();
            (count, samples)
        };
        for (batch, bound, expected) in [
            (528, 264, (2, 264)),
            (528, 263, (3, 176)),
            (112, 1, (112, 1)),
            (7, 4, (7, 1)),
            (6, 100, (1, 6)),
            (1, 1, (1, 1)),
        ] {
            assert_eq!(first(batch, bound), expected, "batch {batch}, bound {bound}");
        }
        let all: Vec<u32> =
            BatchSpec { samples: 12, leaf_bound: 6 }.possible_leaves().map(|leaves| leaves.samples).collect();
        assert_eq!(all, [6, 4, 3, 2, 1]);
    }
}
