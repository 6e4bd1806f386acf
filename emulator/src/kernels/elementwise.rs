//! Sums, scales, column sums and norms of slices.

use super::isa::{REDUCTION_LANES, Simd, simd_fn};
use super::strip_sums::{STRIP, StripSums};
use crate::tree::{MAX_BLOCK_LEAVES, Node};

simd_fn! {
    /// y = y + x: joining two partial sums, or a residual.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_assign(y: &mut [f32], x: &[f32]) {
        assert_eq!(y.len(), x.len());
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

simd_fn! {
    /// out = a + b.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
        assert!(a.len() == out.len() && b.len() == out.len());
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a + b;
        }
    }
}

simd_fn! {
    /// y = y + factor·x, rounded once.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn axpy(factor: f32, x: &[f32], y: &mut [f32]) {
        assert_eq!(y.len(), x.len());
        for (y, x) in y.iter_mut().zip(x) {
            *y = factor.mul_add(*x, *y);
        }
    }
}

simd_fn! {
    /// y = factor·y.
    pub fn scale(factor: f32, y: &mut [f32]) {
        for y in y {
            *y *= factor;
        }
    }
}

simd_fn! {
    /// out = factor·x.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn scaled_copy(factor: f32, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        for (out, x) in out.iter_mut().zip(x) {
            *out = factor * x;
        }
    }
}

/// Adds to `sums` (or stores, if not `accumulate`) the sums over all rows of columns `first .. first + sums.len()` of
/// `x`, whose rows have `width` elements. The rows of each of `leaves` leaves are added in ascending order to zero, the
/// sums of leaves along their tree, and the total to the previous content. Used for the gradient of a bias; columns may
/// be distributed over threads.
///
/// # Panics
/// If `x` has not the same number of rows for each leaf, or the columns are out of range.
pub fn column_sums(
    simd: Simd,
    x: &[f32],
    width: usize,
    leaves: usize,
    first: usize,
    sums: &mut [f32],
    accumulate: bool,
) {
    let tree = Node::new(0, leaves as u32);
    let mut joins = [0; MAX_BLOCK_LEAVES];
    joins.iter_mut().zip(tree.range()).for_each(|(joins, leaf)| *joins = tree.joins_after(leaf));
    sum_columns(simd, x, width, &joins[..leaves], first, sums, accumulate);
}

simd_fn! {
    /// See [`column_sums`]. `joins` holds, for each leaf, the number of joins that follow it.
    fn sum_columns(x: &[f32], width: usize, joins: &[u32], first: usize, sums: &mut [f32], accumulate: bool) {
        let leaf = x.len() / joins.len().max(1);
        assert!(first + sums.len() <= width && leaf.is_multiple_of(width.max(1)) && leaf * joins.len() == x.len());
        for (strip, sums) in sums.chunks_mut(STRIP).enumerate() {
            let begin = first + strip * STRIP;
            let mut of_leaves = StripSums::new();
            for (leaf, joins) in x.chunks_exact(leaf.max(1)).zip(joins) {
                of_leaves.push(sum_strip(leaf, width, begin, sums.len()), *joins);
            }
            for (sum, total) in sums.iter_mut().zip(of_leaves.total()) {
                *sum = if accumulate { *sum + total } else { total };
            }
        }
    }
}

/// Returns the sums over all rows of `columns` columns from `begin` on.
#[inline(always)]
fn sum_strip(x: &[f32], width: usize, begin: usize, columns: usize) -> [f32; STRIP] {
    let mut totals = [0.0f32; STRIP];
    if columns == STRIP {
        for row in x.chunks_exact(width) {
            for (total, x) in totals.iter_mut().zip(&row[begin..begin + STRIP]) {
                *total += x;
            }
        }
    } else {
        for row in x.chunks_exact(width) {
            for (total, x) in totals.iter_mut().zip(&row[begin..begin + columns]) {
                *total += x;
            }
        }
    }
    totals
}

simd_fn! {
    /// Returns the sum of squares in f64: sixteen lanes, each adding every sixteenth element in ascending order, then
    /// summed by halves. NaN if any element is NaN.
    pub fn squared_norm(x: &[f32]) -> f64 {
        let mut lanes = [0.0f64; REDUCTION_LANES];
        let (blocks, rest) = x.as_chunks::<REDUCTION_LANES>();
        for block in blocks {
            for (lane, x) in lanes.iter_mut().zip(block) {
                let x = f64::from(*x);
                *lane += x * x; // the square of an f32 is exact in f64
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            let x = f64::from(*x);
            *lane += x * x;
        }
        let mut half = REDUCTION_LANES / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
            half /= 2;
        }
        lanes[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::pool::{ComputeThreads, rows_mut};
    use crate::kernels::testing::{every_simd, sum_along_tree, uniform};

    #[test]
    fn sums_and_scales() {
        for len in [0, 1, 15, 16, 100] {
            let (a, b) = (uniform(len, -1.0, 1.0, 1), uniform(len, -1.0, 1.0, 2));
            let results = every_simd(|simd| {
                let mut results = vec![a.clone(), vec![0.0; len], a.clone(), a.clone(), vec![0.0; len]];
                add_assign(simd, &mut results[0], &b);
                add(simd, &a, &b, &mut results[1]);
                axpy(simd, 0.3, &b, &mut results[2]);
                scale(simd, 0.3, &mut results[3]);
                scaled_copy(simd, 0.3, &a, &mut results[4]);
                results
            });
            for i in 0..len {
                assert_eq!(results[0][i], a[i] + b[i]);
                assert_eq!(results[1][i], a[i] + b[i]);
                assert_eq!(results[2][i], 0.3f32.mul_add(b[i], a[i]));
                assert_eq!((results[3][i], results[4][i]), (0.3 * a[i], 0.3 * a[i]));
            }
        }
    }

    #[test]
    fn column_sums_are_those_of_leaves_for_any_cut() {
        let (rows, width) = (36, 150);
        let x = uniform(rows * width, -1.0, 1.0, 1);
        let former = uniform(width, -1.0, 1.0, 2);
        for (leaves, accumulate) in [(1, false), (1, true), (3, false), (4, true), (36, true)] {
            let rows_of_leaf = rows / leaves;
            let expected: Vec<f32> = (0..width)
                .map(|c| {
                    let of_leaf = |leaf: u32| {
                        let first = leaf as usize * rows_of_leaf;
                        (first..first + rows_of_leaf).fold(0.0, |sum, r| sum + x[r * width + c])
                    };
                    let total = sum_along_tree(Node::new(0, leaves as u32), &of_leaf);
                    if accumulate { former[c] + total } else { total }
                })
                .collect();
            let full = every_simd(|simd| {
                let mut sums = former.clone();
                column_sums(simd, &x, width, leaves, 0, &mut sums, accumulate);
                sums
            });
            assert_eq!(full, expected);
            let mut parts = former.clone();
            ComputeThreads::new(2).unwrap().for_each_rows(width, 40, rows_mut(&mut parts, 1), |first, sums| {
                column_sums(crate::kernels::Simd::detect(), &x, width, leaves, first, sums.data, accumulate);
            });
            assert_eq!(parts, expected);
        }
    }

    #[test]
    fn squared_norm_is_that_of_f64() {
        let x = uniform(1001, -1e3, 1e3, 1);
        let norm = every_simd(|simd| squared_norm(simd, &x));
        let exact: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((norm / exact - 1.0).abs() < 1e-14);
        let mut bad = x;
        bad[77] = f32::NAN;
        assert!(every_simd(|simd| squared_norm(simd, &bad).is_nan()));
    }
}
