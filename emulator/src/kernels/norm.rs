//! Layer normalization over the last dimension.
//!
//! y = (x - mean) · rstd · gamma + beta with rstd = 1/√(variance + epsilon), where the variance of a row is divided by
//! its length. The forward pass saves mean and rstd of each row; the backward pass recomputes the rest.

use super::isa::{REDUCTION_LANES, simd_fn, sum_lanes};

/// Sum of `f` over the indices below `len`, in sixteen lanes.
#[inline(always)]
pub(super) fn lane_sum<const N: usize>(inputs: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let len = inputs[0].len();
    let mut lanes = [0.0f32; REDUCTION_LANES];
    let blocks = len / REDUCTION_LANES;
    let chunked = inputs.map(|x| &x.as_chunks::<REDUCTION_LANES>().0[..blocks]);
    for b in 0..blocks {
        for l in 0..REDUCTION_LANES {
            lanes[l] += f(chunked.map(|x| x[b][l]));
        }
    }
    for (lane, i) in lanes.iter_mut().zip(blocks * REDUCTION_LANES..len) {
        *lane += f(inputs.map(|x| x[i]));
    }
    sum_lanes(lanes)
}

simd_fn! {
    /// Normalizes rows of `gamma.len()` elements. `mean` and `rstd` receive one value per row. Without `beta` nothing
    /// is added.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn layer_norm_forward(
        x: &[f32],
        gamma: &[f32],
        beta: Option<&[f32]>,
        epsilon: f32,
        y: &mut [f32],
        mean: &mut [f32],
        rstd: &mut [f32],
    ) {
        let width = gamma.len();
        assert!(x.len() == y.len() && x.len() == mean.len() * width && rstd.len() == mean.len());
        assert!(beta.is_none_or(|beta| beta.len() == width));
        if width == 0 {
            return;
        }
        let per_element = 1.0 / width as f32;
        for (((x, y), mean), rstd) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(mean).zip(rstd) {
            let centre = lane_sum([x], |[x]| x) * per_element;
            let variance = lane_sum([x], |[x]| (x - centre) * (x - centre)) * per_element;
            let factor = 1.0 / (variance + epsilon).sqrt();
            (*mean, *rstd) = (centre, factor);
            match beta {
                Some(beta) => {
                    for (((y, x), gamma), beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                        *y = ((x - centre) * factor).mul_add(*gamma, *beta);
                    }
                }
                None => {
                    for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
                        *y = (x - centre) * factor * gamma;
                    }
                }
            }
        }
    }
}

simd_fn! {
    /// Gradient of the input. `dx` is stored, or added to if `accumulate` (the residual path's gradient).
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn layer_norm_backward_input(
        x: &[f32],
        gamma: &[f32],
        mean: &[f32],
        rstd: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        accumulate: bool,
    ) {
        let width = gamma.len();
        assert!(x.len() == dy.len() && x.len() == dx.len() && x.len() == mean.len() * width);
        assert_eq!(rstd.len(), mean.len());
        if width == 0 {
            return;
        }
        let per_element = 1.0 / width as f32;
        let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
        for (((x, dy), dx), (&mean, &rstd)) in rows.zip(mean.iter().zip(rstd)) {
            let average = lane_sum([dy, gamma], |[dy, gamma]| dy * gamma) * per_element;
            let slope = lane_sum([dy, gamma, x], |[dy, gamma, x]| dy * gamma * ((x - mean) * rstd)) * per_element;
            for (((dx, dy), gamma), x) in dx.iter_mut().zip(dy).zip(gamma).zip(x) {
                let normal = (x - mean) * rstd;
                let value = rstd * normal.mul_add(-slope, dy.mul_add(*gamma, -average));
                *dx = if accumulate { *dx + value } else { value };
            }
        }
    }
}

simd_fn! {
    /// Computes the gradients of gamma and beta for columns `first .. first + dgamma.len()`: sums over rows in
    /// ascending order from zero, then stored or added. `dbeta` may be empty. Columns may be distributed over threads.
    ///
    /// # Panics
    /// If lengths do not match or the columns lie outside.
    pub fn layer_norm_backward_params(
        x: &[f32],
        width: usize,
        mean: &[f32],
        rstd: &[f32],
        dy: &[f32],
        first: usize,
        dgamma: &mut [f32],
        dbeta: &mut [f32],
        accumulate: bool,
    ) {
        assert!(x.len() == dy.len() && x.len() == mean.len() * width && rstd.len() == mean.len());
        assert!(first + dgamma.len() <= width && (dbeta.is_empty() || dbeta.len() == dgamma.len()));
        const STRIP: usize = 4 * REDUCTION_LANES;
        let columns = dgamma.len();
        for begin in (0..columns).step_by(STRIP) {
            let count = STRIP.min(columns - begin);
            let (mut gammas, mut betas) = ([0.0f32; STRIP], [0.0f32; STRIP]);
            for (row, (&mean, &rstd)) in mean.iter().zip(rstd).enumerate() {
                let start = row * width + first + begin;
                let (x, dy) = (&x[start..start + count], &dy[start..start + count]);
                for (((dgamma, dbeta), x), dy) in gammas.iter_mut().zip(&mut betas).zip(x).zip(dy) {
                    *dgamma = dy.mul_add((x - mean) * rstd, *dgamma);
                    *dbeta += dy;
                }
            }
            for (out, sums) in [(&mut *dgamma, &gammas), (&mut *dbeta, &betas)] {
                for (out, sum) in out.iter_mut().skip(begin).zip(&sums[..count]) {
                    *out = if accumulate { *out + sum } else { *sum };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_close, every_simd, gradient, uniform};

    const EPSILON: f64 = 1e-5;

    /// Σ weight · layer norm(x), in f64.
    fn reference(x: &[f64], gamma: &[f64], beta: &[f64], weight: &[f32]) -> f64 {
        let width = gamma.len();
        x.chunks(width)
            .zip(weight.chunks(width))
            .map(|(x, weight)| {
                let mean = x.iter().sum::<f64>() / width as f64;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                let rstd = 1.0 / (variance + EPSILON).sqrt();
                let y = |i: usize| (x[i] - mean) * rstd * gamma[i] + beta[i];
                weight.iter().enumerate().map(|(i, w)| y(i) * f64::from(*w)).sum::<f64>()
            })
            .sum()
    }

    fn wide(x: &[f32]) -> Vec<f64> {
        x.iter().map(|x| f64::from(*x)).collect()
    }

    #[test]
    fn forward_and_backward_agree_with_f64() {
        for (rows, width) in [(3, 1), (4, 37), (3, 64), (2, 100)] {
            let x = uniform(rows * width, -2.0, 3.0, 1);
            let (gamma, beta) = (uniform(width, 0.5, 1.5, 2), uniform(width, -1.0, 1.0, 3));
            let dy = uniform(rows * width, -1.0, 1.0, 4);
            let [y, dx, dgamma, dbeta] = every_simd(|simd| {
                let (mut mean, mut rstd) = (vec![0.0; rows], vec![0.0; rows]);
                let [mut y, mut dx] = [vec![0.0; rows * width], vec![1.0; rows * width]];
                let [mut dgamma, mut dbeta] = [vec![9.0; width], vec![9.0; width]];
                layer_norm_forward(simd, &x, &gamma, Some(&beta), EPSILON as f32, &mut y, &mut mean, &mut rstd);
                layer_norm_backward_input(simd, &x, &gamma, &mean, &rstd, &dy, &mut dx, true);
                for first in (0..width).step_by(30) {
                    let end = (first + 30).min(width);
                    let (dgamma, dbeta) = (&mut dgamma[first..end], &mut dbeta[first..end]);
                    layer_norm_backward_params(simd, &x, width, &mean, &rstd, &dy, first, dgamma, dbeta, false);
                }
                [y, dx, dgamma, dbeta]
            });
            let (x64, g64, b64) = (wide(&x), wide(&gamma), wide(&beta));
            let total: f64 = y.iter().zip(&dy).map(|(y, dy)| f64::from(*y) * f64::from(*dy)).sum();
            assert!((total - reference(&x64, &g64, &b64, &dy)).abs() < 1e-4);
            let mut expected = gradient(|x| reference(x, &g64, &b64, &dy), &x);
            expected.iter_mut().for_each(|e| *e += 1.0); // what was there before
            assert_close(&dx, &expected, 2e-6);
            assert_close(&dgamma, &gradient(|g| reference(&x64, g, &b64, &dy), &gamma), 2e-6);
            assert_close(&dbeta, &gradient(|b| reference(&x64, &g64, b, &dy), &beta), 2e-6);
        }
    }
}
