//! Shared functions of the kernels' tests.

use super::isa::Simd;
use crate::numerics::init::Initializer;
use crate::tree::Node;

/// Seeded values between `low` and `high`.
pub(crate) fn uniform(len: usize, low: f64, high: f64, key: u64) -> Vec<f32> {
    let mut values = vec![0.0; len];
    Initializer::Uniform { low, high }.fill(key, 0, &mut values);
    values
}

/// Returns the result of `f`, after checking that every instruction set of this CPU gives the same bits.
pub(crate) fn every_simd<R: PartialEq + std::fmt::Debug>(f: impl Fn(Simd) -> R) -> R {
    let expected = f(Simd::detect());
    for simd in Simd::all() {
        assert!(f(simd) == expected, "{} differs from {}", simd.isa(), Simd::detect().isa());
    }
    expected
}

/// The slope of `f` at `x`, with an error of the order of 1e-10.
pub(crate) fn central_difference(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    const H: f64 = 1e-4;
    // Two widths extrapolated: the error is of fourth order.
    let wide_difference = (f(x + 2.0 * H) - f(x - 2.0 * H)) / (4.0 * H);
    let narrow = (f(x + H) - f(x - H)) / (2.0 * H);
    (4.0 * narrow - wide_difference) / 3.0
}

/// Asserts that each value is within `tolerance` (relative to the largest expected magnitude) of the expected value.
#[track_caller]
pub(crate) fn assert_close(values: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(values.len(), expected.len());
    let largest = expected.iter().fold(1e-30f64, |m, e| m.max(e.abs()));
    for (i, (v, e)) in values.iter().zip(expected).enumerate() {
        assert!((f64::from(*v) - e).abs() <= tolerance * largest, "element {i}: {v} instead of {e}");
    }
}

/// Gradient of the scalar function `f` at `x` by central differences.
pub(crate) fn gradient(f: impl Fn(&[f64]) -> f64, x: &[f32]) -> Vec<f64> {
    let base: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    (0..base.len())
        .map(|i| {
            central_difference(
                |value| {
                    let mut moved = base.clone();
                    moved[i] = value;
                    f(&moved)
                },
                base[i],
            )
        })
        .collect()
}

/// Returns the sum of `of_leaf` over the leaves below `node`, along the leaf tree.
pub(crate) fn sum_along_tree(node: Node, of_leaf: &impl Fn(u32) -> f32) -> f32 {
    let Some((left, right)) = node.children() else { return of_leaf(node.start) };
    sum_along_tree(left, of_leaf) + sum_along_tree(right, of_leaf)
}
