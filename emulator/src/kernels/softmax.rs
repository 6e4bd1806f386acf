//! Softmax of rows and its logarithm, forward and backward.
//!
//! Sums are of sixteen lanes, each adding every sixteenth element, then summed by halves.

use super::isa::{REDUCTION_LANES, max_lanes, simd_fn, sum_lanes};
use super::math::exp;

/// Returns the largest element, and the sum of the exponentials of all elements without it.
#[inline(always)]
fn largest_and_sum(x: &[f32]) -> (f32, f32) {
    let (blocks, rest) = x.as_chunks::<REDUCTION_LANES>();
    let mut lanes = [f32::NEG_INFINITY; REDUCTION_LANES];
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = if *x > *lane { *x } else { *lane };
    }
    let largest = max_lanes(lanes);
    let mut lanes = [0.0; REDUCTION_LANES];
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane += exp(x - largest);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += exp(x - largest);
    }
    (largest, sum_lanes(lanes))
}

/// Returns the sum of `f(a, b)`.
#[inline(always)]
fn sum(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; REDUCTION_LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<REDUCTION_LANES>(), b.as_chunks::<REDUCTION_LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f(*a, *b);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += f(*a, *b);
    }
    sum_lanes(lanes)
}

simd_fn! {
    /// y = softmax of each row of `width` elements of x. A row that contains NaN, or only negative infinity, becomes
    /// NaN.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn forward(width: usize, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len());
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let (largest, sum) = largest_and_sum(x);
            for (y, x) in y.iter_mut().zip(x) {
                *y = exp(x - largest) / sum;
            }
        }
    }
}

simd_fn! {
    /// dx = the gradient of x, from the softmax y of each row and its gradient: y (dy - Σ y dy).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn backward(width: usize, y: &[f32], dy: &[f32], dx: &mut [f32]) {
        assert!(y.len() == dx.len() && dy.len() == dx.len());
        for ((y, dy), dx) in y.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
            let total = sum(y, dy, |y, dy| y * dy);
            for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                *dx = y * (dy - total);
            }
        }
    }
}

simd_fn! {
    /// y = logarithm of the softmax of each row of `width` elements of x.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn log_forward(width: usize, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len());
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let (largest, sum) = largest_and_sum(x);
            let log = libm::logf(sum);
            for (y, x) in y.iter_mut().zip(x) {
                *y = x - largest - log;
            }
        }
    }
}

simd_fn! {
    /// dx = the gradient of x, from the logarithm y of the softmax of each row and its gradient: dy - e^y Σ dy.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn log_backward(width: usize, y: &[f32], dy: &[f32], dx: &mut [f32]) {
        assert!(y.len() == dx.len() && dy.len() == dx.len());
        for ((y, dy), dx) in y.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
            let total = sum(dy, dy, |dy, _| dy);
            for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                *dx = dy - exp(*y) * total;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_close, every_simd, gradient, uniform};

    const WIDTH: usize = 37;

    fn softmax(x: &[f64], is_log: bool) -> Vec<f64> {
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        x.iter().map(|x| if is_log { x - sum.ln() } else { x.exp() / sum }).collect()
    }

    #[test]
    fn rows_agree_with_f64() {
        let (x, dy) = (uniform(2 * WIDTH, -5.0, 5.0, 1), uniform(2 * WIDTH, -1.0, 1.0, 2));
        for is_log in [false, true] {
            let [y, dx] = every_simd(|simd| {
                let (mut y, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                if is_log {
                    log_forward(simd, WIDTH, &x, &mut y);
                    log_backward(simd, WIDTH, &y, &dy, &mut dx);
                } else {
                    forward(simd, WIDTH, &x, &mut y);
                    backward(simd, WIDTH, &y, &dy, &mut dx);
                }
                [y, dx]
            });
            for row in 0..2 {
                let part = row * WIDTH..(row + 1) * WIDTH;
                let x64: Vec<f64> = x[part.clone()].iter().map(|&x| f64::from(x)).collect();
                assert_close(&y[part.clone()], &softmax(&x64, is_log), 1e-6);
                let loss = |x: &[f64]| -> f64 {
                    softmax(x, is_log).iter().zip(&dy[part.clone()]).map(|(y, &dy)| y * f64::from(dy)).sum()
                };
                assert_close(&dx[part.clone()], &gradient(loss, &x[part.clone()]), 2e-6);
            }
        }
    }

    #[test]
    fn masked_elements_have_no_probability() {
        let (x, mut y) = ([1.0, f32::NEG_INFINITY, 1.0], [0.0; 3]);
        forward(crate::kernels::Simd::detect(), 3, &x, &mut y);
        assert_eq!(y, [0.5, 0.0, 0.5]);
        forward(crate::kernels::Simd::detect(), 3, &[f32::NEG_INFINITY; 3], &mut y);
        assert!(y.iter().all(|y| y.is_nan()));
    }
}
