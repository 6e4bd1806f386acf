//! Trained biases of attention scores by relative position, an attribute of operators.

use serde::{Deserialize, Serialize};

use super::{OpError, Signature};

/// The buckets of a table of biases, `[buckets, heads]`. Near distances have buckets of their own, farther ones share
/// buckets that grow in proportion to the distance (T5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RelativePositions {
    /// Number of buckets; even, at least 4.
    pub buckets: usize,
    /// Distance from which on all distances share a bucket; more than `buckets`.
    pub max_distance: usize,
}

/// More buckets than any model has; bounds the scratch memory of each head.
const MAX_BUCKETS: usize = 1 << 16;
/// Distances are computed in f32, which is exact up to this one.
const MAX_DISTANCE: usize = 1 << 24;

impl RelativePositions {
    /// Checks the attributes, and that the only tensor of the operator is the table.
    pub(super) fn check(positions: Option<Self>, heads: usize, io: &Signature<'_>) -> Result<(), OpError> {
        let Some(Self { buckets, max_distance }) = positions else { return io.params(&[], 0) };
        if !(4..=MAX_BUCKETS).contains(&buckets) || !buckets.is_multiple_of(2) {
            let (value, range) = (buckets as f32, "an even number from 4 to 65536");
            return Err(OpError::Attribute { name: "buckets", value, range });
        }
        if !(buckets + 1..=MAX_DISTANCE).contains(&max_distance) {
            let (value, range) = (max_distance as f32, "more than the number of buckets and at most 2^24");
            return Err(OpError::Attribute { name: "max_distance", value, range });
        }
        io.params(&[&[buckets, heads]], 1)
    }

    /// Returns the numbers per sample that the gradients of the table need before samples are summed.
    pub(super) fn scratch(positions: Option<Self>, heads: usize) -> u64 {
        positions.map_or(0, |positions| positions.buckets as u64 * heads as u64)
    }

    /// Returns the table as the kernels take it.
    #[cfg(feature = "kernels")]
    pub(super) fn bias(self, table: &[f32], bidirectional: bool) -> crate::kernels::attention::RelativeBias<'_> {
        let Self { buckets, max_distance } = self;
        crate::kernels::attention::RelativeBias { table, buckets, max_distance, bidirectional }
    }

    /// Returns the bucket of a key that is `distance` after the query, by the formula of the published code in f64.
    #[cfg(all(test, feature = "kernels"))]
    pub(super) fn reference_bucket(self, distance: f64, bidirectional: bool) -> usize {
        let buckets = if bidirectional { self.buckets / 2 } else { self.buckets };
        let first = if bidirectional && distance > 0.0 { buckets } else { 0 };
        let size = if bidirectional { distance.abs() } else { (-distance).max(0.0) };
        let exact = (buckets / 2) as f64;
        let rest = buckets as f64 - exact;
        let log_bucket = || exact + ((size / exact).ln() / (self.max_distance as f64 / exact).ln() * rest).floor();
        first + if size < exact { size } else { log_bucket().min(buckets as f64 - 1.0) } as usize
    }
}
