//! Broadcasting: operands of different shapes are used as if they had one shape, as in NumPy and PyTorch.
//!
//! ```text
//! [4, 1, 7] and [5, 1]  ->  [4, 5, 7]      aligned at the last dimension; sizes of 1, and missing ones, are repeated
//! ```
//!
//! The gradient of an operand is summed over the dimensions along which it is repeated.

use super::OpError;
use crate::graph::{Dimensions, MAX_DIMENSIONS, Shape};

/// Returns the dimensions that both operands are broadcast to; `None` if a size of one differs from that of the other,
/// and neither is 1.
pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Option<Dimensions> {
    let rank = a.len().max(b.len());
    let size = |dimensions: &[usize], axis: usize| {
        (axis + dimensions.len()).checked_sub(rank).map_or(1, |axis| dimensions[axis])
    };
    let mut sizes = [0; MAX_DIMENSIONS];
    for (axis, joint) in sizes.get_mut(..rank)?.iter_mut().enumerate() {
        *joint = match (size(a, axis), size(b, axis)) {
            (a, b) if a == b || b == 1 => a,
            (1, b) => b,
            _ => return None,
        };
    }
    Dimensions::new(&sizes[..rank])
}

/// Like [`broadcast`], for a shape rule.
pub(super) fn broadcast_operands(a: &Shape, b: &[usize]) -> Result<Dimensions, OpError> {
    let error = || OpError::NotBroadcast { first: a.dimensions().to_vec(), second: b.to_vec() };
    broadcast(a.dimensions(), b).ok_or_else(error)
}

#[cfg(feature = "kernels")]
pub(super) mod run {
    use super::broadcast;
    use crate::graph::Dimensions;
    use crate::kernels::strided::{self, Fold, MAX_VIEW_RANK, View};
    use crate::kernels::{Accumulate, Context};

    /// Returns the views of the values of `samples` samples with these dimensions, all broadcast to the joint ones.
    pub(in crate::ops) fn views<const N: usize>(samples: usize, operands: [&[usize]; N]) -> [View; N] {
        let join = |joint: Dimensions, operand: &&[usize]| broadcast(&joint, operand).unwrap_or_default();
        let (sizes, rank) = leaf_sizes(samples, operands.iter().fold(Dimensions::default(), join));
        operands.map(|operand| View::of_samples(samples, operand).broadcast(&sizes[..rank]))
    }

    /// Returns the sizes of a leaf of `samples` samples of these dimensions.
    pub(in crate::ops) fn leaf_sizes(samples: usize, dimensions: Dimensions) -> ([usize; MAX_VIEW_RANK], usize) {
        let mut sizes = [samples; MAX_VIEW_RANK];
        sizes[1..=dimensions.len()].copy_from_slice(&dimensions);
        (sizes, dimensions.len() + 1)
    }

    /// Computes the gradient of an operand that `operand` describes, a view of the size of the result: the sum of what
    /// `kernel` computes, over the dimensions along which the operand is repeated. The gradient is dense.
    pub(in crate::ops) fn gradient<const N: usize>(
        cx: Context<'_>,
        operand: View,
        (views, data): ([View; N], [&[f32]; N]),
        (target, accumulate): (&mut [f32], Accumulate),
        kernel: impl Fn([&[f32]; N], &mut [f32]) + Sync,
    ) {
        let is_repeated = |axis: usize| operand.is_repeated(axis) && operand.sizes()[axis] > 1;
        if accumulate == Accumulate::Store && !(0..operand.sizes().len()).any(is_repeated) {
            return strided::map(cx, views, data, target, kernel);
        }
        strided::fold(cx, Fold::Sum, views, |axis| !is_repeated(axis), data, target, accumulate, kernel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_aligned_at_the_end() {
        let check = |a: &[usize], b: &[usize], expected: Option<&[usize]>| {
            assert_eq!(broadcast(a, b).as_deref(), expected, "{a:?} {b:?}");
            assert_eq!(broadcast(b, a).as_deref(), expected, "{b:?} {a:?}");
        };
        check(&[4, 1, 7], &[5, 1], Some(&[4, 5, 7]));
        check(&[3], &[2, 3], Some(&[2, 3]));
        check(&[], &[2, 3], Some(&[2, 3]));
        check(&[2, 3], &[2], None);
        check(&[1; 6], &[1; 7], None);
    }
}
