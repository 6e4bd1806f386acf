//! GELU, exact and by tanh, forward and backward.

use super::isa::simd_fn;
use super::math::{normal, tanh};

/// √(2/π).
const TANH_SCALE: f32 = 0.797_884_6;
const TANH_CUBIC: f32 = 0.044_715;

/// Value and derivative of x·Φ(x).
#[inline(always)]
fn exact(x: f32) -> (f32, f32) {
    let (below, density) = normal(x);
    (x * below, x.mul_add(density, below))
}

/// Value and derivative of x/2·(1 + tanh(√(2/π)(x + 0.044715 x³))).
#[inline(always)]
fn by_tanh(x: f32) -> (f32, f32) {
    let square = x * x;
    let inner = TANH_SCALE * x * square.mul_add(TANH_CUBIC, 1.0);
    let inner_slope = TANH_SCALE * square.mul_add(3.0 * TANH_CUBIC, 1.0);
    let t = tanh(inner);
    let half = 0.5f32.mul_add(t, 0.5);
    (x * half, (0.5 * x * t.mul_add(-t, 1.0)).mul_add(inner_slope, half))
}

simd_fn! {
    /// y = GELU(x), exact: x·Φ(x).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_forward(x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len());
        for (y, x) in y.iter_mut().zip(x) {
            *y = exact(*x).0;
        }
    }
}

simd_fn! {
    /// dx = dy·GELU'(x), exact, written over dy.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_backward(x: &[f32], dy: &mut [f32]) {
        assert_eq!(x.len(), dy.len());
        for (dy, x) in dy.iter_mut().zip(x) {
            *dy *= exact(*x).1;
        }
    }
}

simd_fn! {
    /// y = GELU(x) by the tanh approximation.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_tanh_forward(x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len());
        for (y, x) in y.iter_mut().zip(x) {
            *y = by_tanh(*x).0;
        }
    }
}

simd_fn! {
    /// dx = dy·GELU'(x) of the tanh approximation, written over dy.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_tanh_backward(x: &[f32], dy: &mut [f32]) {
        assert_eq!(x.len(), dy.len());
        for (dy, x) in dy.iter_mut().zip(x) {
            *dy *= by_tanh(*x).1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{central_difference, every_simd, uniform};

    fn exact64(x: f64) -> f64 {
        0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
    }

    fn tanh64(x: f64) -> f64 {
        0.5 * x * (1.0 + libm::tanh((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)))
    }

    #[test]
    fn values_and_slopes_agree_with_f64() {
        let x = uniform(1003, -6.0, 6.0, 1);
        let dy = uniform(1003, -1.0, 1.0, 2);
        type Case = (
            fn(crate::kernels::Simd, &[f32], &mut [f32]),
            fn(crate::kernels::Simd, &[f32], &mut [f32]),
            fn(f64) -> f64,
        );
        let cases: [Case; 2] =
            [(gelu_forward, gelu_backward, exact64), (gelu_tanh_forward, gelu_tanh_backward, tanh64)];
        for (forward, backward, reference) in cases {
            let (y, dx) = every_simd(|simd| {
                let (mut y, mut dx) = (vec![f32::NAN; x.len()], dy.clone());
                forward(simd, &x, &mut y);
                backward(simd, &x, &mut dx);
                (y, dx)
            });
            for i in 0..x.len() {
                let at = f64::from(x[i]);
                assert!((f64::from(y[i]) - reference(at)).abs() < 5e-7, "{at}");
                let slope = central_difference(reference, at);
                assert!((f64::from(dx[i]) - f64::from(dy[i]) * slope).abs() < 1e-6, "{at}");
            }
        }
    }
}
