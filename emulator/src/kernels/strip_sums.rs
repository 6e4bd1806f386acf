//! Sums of a strip of columns over leaves, added along the leaf tree from left to right.

use super::isa::REDUCTION_LANES;
use crate::tree::MAX_BLOCK_LEAVES;

/// Columns that are summed at once, in registers.
pub(super) const STRIP: usize = 4 * REDUCTION_LANES;
/// Maximum sums that are open at once: one for each level of the tree.
const MAX_OPEN_SUMS: usize = MAX_BLOCK_LEAVES.ilog2() as usize + 1;

/// The open sums of a strip, of nodes of the tree from left to right.
pub(super) struct StripSums {
    open: [[f32; STRIP]; MAX_OPEN_SUMS],
    count: usize,
}

impl StripSums {
    #[inline(always)]
    pub(super) fn new() -> Self {
        StripSums { open: [[0.0; STRIP]; MAX_OPEN_SUMS], count: 0 }
    }

    /// Appends the sum of the next leaf, and makes the [joins that follow it](crate::tree::Node::joins_after).
    #[inline(always)]
    pub(super) fn push(&mut self, sum: [f32; STRIP], joins: u32) {
        self.open[self.count] = sum;
        for _ in 0..joins {
            let [left, right] = [self.open[self.count - 1], self.open[self.count]];
            self.open[self.count - 1] = std::array::from_fn(|column| left[column] + right[column]);
            self.count -= 1;
        }
        self.count += 1;
    }

    /// Returns the sum over all leaves; zero if there are none.
    #[inline(always)]
    pub(super) fn total(self) -> [f32; STRIP] {
        self.open[0]
    }
}
