//! Pointwise non-linear functions and gates made of them, forward and backward.
//!
//! A gate multiplies values by a function of other values: `f(gate) * value`. Every function `f` is one inlined pair of
//! value and derivative, from which [`pointwise`](self) generates four kernels, listed in a [`PointwiseKernels`].

use super::isa::{Simd, simd_fn};
use super::math::{exp, normal, tanh};

/// √(2/π).
const TANH_SCALE: f32 = 0.797_884_6;
const TANH_CUBIC: f32 = 0.044_715;

/// Value and derivative of x·Φ(x).
#[inline(always)]
fn gelu(x: f32) -> (f32, f32) {
    let (below, density) = normal(x);
    (x * below, x.mul_add(density, below))
}

/// Value and derivative of x/2·(1 + tanh(√(2/π)(x + 0.044715 x³))).
#[inline(always)]
fn gelu_tanh(x: f32) -> (f32, f32) {
    let square = x * x;
    let inner = TANH_SCALE * x * square.mul_add(TANH_CUBIC, 1.0);
    let inner_slope = TANH_SCALE * square.mul_add(3.0 * TANH_CUBIC, 1.0);
    let t = tanh(inner);
    let half = 0.5f32.mul_add(t, 0.5);
    (x * half, (0.5 * x * t.mul_add(-t, 1.0)).mul_add(inner_slope, half))
}

/// Value and derivative of x·σ(slope·x).
#[inline(always)]
fn sigmoid_weighted(x: f32, slope: f32) -> (f32, f32) {
    let s = logistic(slope * x);
    (x * s, (slope * x * s).mul_add(1.0 - s, s))
}

/// σ(x) = 1 / (1 + e^-x).
#[inline(always)]
fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn silu(x: f32) -> (f32, f32) {
    sigmoid_weighted(x, 1.0)
}

/// The approximation of GELU by x·σ(1.702 x).
#[inline(always)]
fn quick_gelu(x: f32) -> (f32, f32) {
    sigmoid_weighted(x, 1.702)
}

#[inline(always)]
fn sigmoid(x: f32) -> (f32, f32) {
    let s = logistic(x);
    (s, s * (1.0 - s))
}

#[inline(always)]
fn hyperbolic_tangent(x: f32) -> (f32, f32) {
    let t = tanh(x);
    (t, t.mul_add(-t, 1.0))
}

/// NaN propagates; the derivative at 0 is 0, as in PyTorch.
#[inline(always)]
fn relu(x: f32) -> (f32, f32) {
    if x <= 0.0 { (0.0, 0.0) } else { (x, 1.0) }
}

#[inline(always)]
fn squared_relu(x: f32) -> (f32, f32) {
    let (y, _) = relu(x);
    (y * y, 2.0 * y)
}

#[inline(always)]
fn squared_gelu(x: f32) -> (f32, f32) {
    let (y, slope) = gelu(x);
    (y * y, 2.0 * y * slope)
}

#[inline(always)]
fn identity(x: f32) -> (f32, f32) {
    (x, 1.0)
}

/// `(gate, value, dy, dgate)`, see [`PointwiseKernels::gate_backward`].
type GateBackward = fn(Simd, &[f32], &[f32], &mut [f32], &mut [f32]);

/// The kernels of one function `f`. All panic if lengths differ.
#[derive(Clone, Copy, Debug)]
pub struct PointwiseKernels {
    /// `(x, y)`: y = f(x).
    pub forward: fn(Simd, &[f32], &mut [f32]),
    /// `(x, dy)`: dy = dy·f'(x).
    pub backward: fn(Simd, &[f32], &mut [f32]),
    /// `(gate, value, y)`: y = f(gate)·value.
    pub gate_forward: fn(Simd, &[f32], &[f32], &mut [f32]),
    /// `(gate, value, dy, dgate)`: dgate = dy·value·f'(gate), and dy becomes the gradient of the value, dy·f(gate).
    pub gate_backward: GateBackward,
}

/// Generates the kernels of a function that returns its value and its derivative.
macro_rules! pointwise {
    ($($(#[$meta:meta])* $NAME:ident = $function:ident;)*) => {
        $(
            $(#[$meta])*
            pub const $NAME: PointwiseKernels = {
                simd_fn! {
                    fn forward(x: &[f32], y: &mut [f32]) {
                        assert_eq!(x.len(), y.len());
                        for (y, x) in y.iter_mut().zip(x) {
                            *y = $function(*x).0;
                        }
                    }
                }
                simd_fn! {
                    fn backward(x: &[f32], dy: &mut [f32]) {
                        assert_eq!(x.len(), dy.len());
                        for (dy, x) in dy.iter_mut().zip(x) {
                            *dy *= $function(*x).1;
                        }
                    }
                }
                simd_fn! {
                    fn gate_forward(gate: &[f32], value: &[f32], y: &mut [f32]) {
                        assert!(gate.len() == y.len() && value.len() == y.len());
                        for ((y, gate), value) in y.iter_mut().zip(gate).zip(value) {
                            *y = $function(*gate).0 * value;
                        }
                    }
                }
                simd_fn! {
                    fn gate_backward(gate: &[f32], value: &[f32], dy: &mut [f32], dgate: &mut [f32]) {
                        assert!(gate.len() == dy.len() && value.len() == dy.len() && dgate.len() == dy.len());
                        for (((dy, dgate), gate), value) in dy.iter_mut().zip(dgate).zip(gate).zip(value) {
                            let (f, slope) = $function(*gate);
                            *dgate = *dy * value * slope;
                            *dy *= f;
                        }
                    }
                }
                PointwiseKernels { forward, backward, gate_forward, gate_backward }
            };
        )*
    };
}

pointwise! {
    /// GELU, exact: x·Φ(x).
    GELU = gelu;
    /// GELU by the tanh approximation.
    GELU_TANH = gelu_tanh;
    /// GELU by the approximation x·σ(1.702 x).
    QUICK_GELU = quick_gelu;
    /// The square of the exact GELU.
    SQUARED_GELU = squared_gelu;
    /// max(x, 0).
    RELU = relu;
    /// The square of max(x, 0).
    SQUARED_RELU = squared_relu;
    /// x·σ(x).
    SILU = silu;
    /// σ(x) = 1 / (1 + e^-x).
    SIGMOID = sigmoid;
    /// tanh x.
    TANH = hyperbolic_tangent;
    /// x itself, for gates without a function.
    IDENTITY = identity;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{central_difference, every_simd, uniform};

    fn gelu64(x: f64) -> f64 {
        0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
    }

    fn gelu_tanh64(x: f64) -> f64 {
        0.5 * x * (1.0 + libm::tanh((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)))
    }

    fn logistic64(x: f64) -> f64 {
        1.0 / (1.0 + libm::exp(-x))
    }

    type Case = (PointwiseKernels, fn(f64) -> f64);

    const CASES: [Case; 10] = [
        (GELU, gelu64),
        (GELU_TANH, gelu_tanh64),
        (QUICK_GELU, |x| x * logistic64(1.702 * x)),
        (SQUARED_GELU, |x| gelu64(x).powi(2)),
        (RELU, |x| x.max(0.0)),
        (SQUARED_RELU, |x| x.max(0.0).powi(2)),
        (SILU, |x| x * logistic64(x)),
        (SIGMOID, logistic64),
        (TANH, libm::tanh),
        (IDENTITY, |x| x),
    ];

    #[test]
    fn values_and_slopes_agree_with_f64() {
        let x: Vec<f32> = uniform(1003, -6.0, 6.0, 1).into_iter().filter(|x| x.abs() > 1e-3).collect();
        let (value, dy) = (uniform(x.len(), -2.0, 2.0, 3), uniform(x.len(), -1.0, 1.0, 2));
        for (kernels, reference) in CASES {
            let results = every_simd(|simd| {
                let [mut y, mut gated, mut dgate] = [(); 3].map(|()| vec![f32::NAN; x.len()]);
                let (mut dx, mut dvalue) = (dy.clone(), dy.clone());
                (kernels.forward)(simd, &x, &mut y);
                (kernels.backward)(simd, &x, &mut dx);
                (kernels.gate_forward)(simd, &x, &value, &mut gated);
                (kernels.gate_backward)(simd, &x, &value, &mut dvalue, &mut dgate);
                [y, dx, gated, dgate, dvalue]
            });
            for i in 0..x.len() {
                let [x64, value, dy] = [x[i], value[i], dy[i]].map(f64::from);
                let (f, slope) = (reference(x64), central_difference(reference, x64));
                let expected = [f, dy * slope, f * value, dy * value * slope, dy * f];
                for (found, expected) in results.iter().zip(expected) {
                    let difference = (f64::from(found[i]) - expected).abs();
                    assert!(difference < 2e-6 + 2e-6 * expected.abs(), "{x64}: {} for {expected}", found[i]);
                }
            }
        }
    }

    #[test]
    fn extreme_numbers_do_not_become_nan_and_nan_propagates() {
        for (kernels, _) in CASES {
            let mut y = [0.0f32; 3];
            (kernels.forward)(Simd::detect(), &[-1e4, 1e4, f32::NAN], &mut y);
            assert!(y[0].is_finite() && y[1].is_finite() && y[2].is_nan(), "{y:?}");
        }
    }
}
