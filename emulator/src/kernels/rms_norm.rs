//! Root-mean-square normalization over the last dimension, without a mean.
//!
//! y = x · rstd · gamma with rstd = 1/√(mean of squares + epsilon). The forward pass saves rstd of each row; the
//! backward pass recomputes the rest. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

use super::isa::{REDUCTION_LANES, simd_fn};
use super::norm::lane_sum;

simd_fn! {
    /// Normalizes rows of `gamma.len()` elements. `rstd` receives one value per row.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn rms_norm_forward(x: &[f32], gamma: &[f32], epsilon: f32, y: &mut [f32], rstd: &mut [f32]) {
        let width = gamma.len();
        assert!(x.len() == y.len() && x.len() == rstd.len() * width);
        if width == 0 {
            return;
        }
        let per_element = 1.0 / width as f32;
        for ((x, y), rstd) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(rstd) {
            let mean_square = lane_sum([x], |[x]| x * x) * per_element;
            let factor = 1.0 / (mean_square + epsilon).sqrt();
            *rstd = factor;
            for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = x * factor * gamma;
            }
        }
    }
}

simd_fn! {
    /// Gradient of the input. `dx` is stored, or added to if `accumulate` (the residual path's gradient).
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn rms_norm_backward_input(
        x: &[f32],
        gamma: &[f32],
        rstd: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        accumulate: bool,
    ) {
        let width = gamma.len();
        assert!(x.len() == dy.len() && x.len() == dx.len() && x.len() == rstd.len() * width);
        if width == 0 {
            return;
        }
        let per_element = 1.0 / width as f32;
        let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
        for (((x, dy), dx), &rstd) in rows.zip(rstd) {
            let slope = lane_sum([dy, gamma, x], |[dy, gamma, x]| dy * gamma * (x * rstd)) * per_element;
            for (((dx, dy), gamma), x) in dx.iter_mut().zip(dy).zip(gamma).zip(x) {
                let value = rstd * (x * rstd).mul_add(-slope, dy * gamma);
                *dx = if accumulate { *dx + value } else { value };
            }
        }
    }
}

simd_fn! {
    /// Computes the gradient of gamma for columns `first .. first + dgamma.len()`: sums over rows in ascending order
    /// from zero, then stored or added. Columns may be distributed over threads.
    ///
    /// # Panics
    /// If lengths do not match or the columns lie outside.
    pub fn rms_norm_backward_gamma(
        x: &[f32],
        width: usize,
        rstd: &[f32],
        dy: &[f32],
        first: usize,
        dgamma: &mut [f32],
        accumulate: bool,
    ) {
        assert!(x.len() == dy.len() && x.len() == rstd.len() * width && first + dgamma.len() <= width);
        /// Columns summed at once, in registers.
        const STRIP: usize = 4 * REDUCTION_LANES;
        for (strip, dgamma) in dgamma.chunks_mut(STRIP).enumerate() {
            let mut sums = [0.0f32; STRIP];
            for (row, &rstd) in rstd.iter().enumerate() {
                let start = row * width + first + strip * STRIP;
                let (x, dy) = (&x[start..start + dgamma.len()], &dy[start..start + dgamma.len()]);
                for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                    *sum = dy.mul_add(x * rstd, *sum);
                }
            }
            for (dgamma, sum) in dgamma.iter_mut().zip(sums) {
                *dgamma = if accumulate { *dgamma + sum } else { sum };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_close, every_simd, gradient, uniform};

    const EPSILON: f64 = 1e-5;

    /// Σ weight · RMS norm(x), in f64.
    fn reference(x: &[f64], gamma: &[f64], weight: &[f32]) -> f64 {
        let width = gamma.len();
        let row = |(x, weight): (&[f64], &[f32])| {
            let rstd = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / width as f64 + EPSILON).sqrt();
            (0..width).map(|i| x[i] * rstd * gamma[i] * f64::from(weight[i])).sum::<f64>()
        };
        x.chunks(width).zip(weight.chunks(width)).map(row).sum()
    }

    #[test]
    fn forward_and_backward_agree_with_f64() {
        for (rows, width) in [(3, 2), (4, 37), (3, 64), (2, 100)] {
            let (x, gamma) = (uniform(rows * width, -2.0, 3.0, 1), uniform(width, 0.5, 1.5, 2));
            let dy = uniform(rows * width, -1.0, 1.0, 4);
            let former = uniform(rows * width, -1.0, 1.0, 5);
            let [y, dx, added, dgamma] = every_simd(|simd| {
                let (mut y, mut rstd) = (vec![0.0; x.len()], vec![0.0; rows]);
                let (mut dx, mut added, mut dgamma) = (vec![f32::NAN; x.len()], former.clone(), vec![f32::NAN; width]);
                rms_norm_forward(simd, &x, &gamma, EPSILON as f32, &mut y, &mut rstd);
                rms_norm_backward_input(simd, &x, &gamma, &rstd, &dy, &mut dx, false);
                rms_norm_backward_input(simd, &x, &gamma, &rstd, &dy, &mut added, true);
                for (part, dgamma) in dgamma.chunks_mut(33).enumerate() {
                    rms_norm_backward_gamma(simd, &x, width, &rstd, &dy, part * 33, dgamma, false);
                }
                [y, dx, added, dgamma]
            });
            let to_f64 = |x: &[f32]| -> Vec<f64> { x.iter().map(|x| f64::from(*x)).collect() };
            let value: f64 = y.iter().zip(&dy).map(|(y, dy)| f64::from(*y) * f64::from(*dy)).sum();
            assert!((value - reference(&to_f64(&x), &to_f64(&gamma), &dy)).abs() < 1e-5 * (1.0 + value.abs()));
            let expected = gradient(|x| reference(x, &to_f64(&gamma), &dy), &x);
            assert_close(&dx, &expected, 3e-6);
            let sum: Vec<f64> = expected.iter().zip(&former).map(|(dx, former)| dx + f64::from(*former)).collect();
            assert_close(&added, &sum, 3e-6);
            assert_close(&dgamma, &gradient(|gamma| reference(&to_f64(&x), gamma, &dy), &gamma), 3e-6);
        }
    }
}
