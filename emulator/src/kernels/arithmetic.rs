//! Functions of one and of two numbers on contiguous elements, forward and backward.
//!
//! Every function is one inlined piece of code that returns its value and its derivatives, from which kernels are
//! generated. Logarithms, sines, error functions and powers are those of `libm`, which are not vectorized but have the
//! same bits on every platform.

use super::isa::{Simd, simd_fn};
use super::math::exp;

/// ln 4.
const LN_4: f32 = 2.0 * std::f32::consts::LN_2;

/// The kernels of a function `f` of one number. All panic if lengths differ.
#[derive(Clone, Copy, Debug)]
pub struct UnaryKernels {
    /// `(x, y)`: y = f(x).
    pub forward: fn(Simd, &[f32], &mut [f32]),
    /// `(x, dy)`: dy = dy·f'(x).
    pub backward: fn(Simd, &[f32], &mut [f32]),
}

/// `([dy, a, b], d)`, see [`BinaryKernels::backward`].
type BinaryBackward = fn(Simd, [&[f32]; 3], &mut [f32]);

/// The kernels of a function `f` of two numbers. All panic if lengths differ.
#[derive(Clone, Copy, Debug)]
pub struct BinaryKernels {
    /// `([a, b], y)`: y = f(a, b).
    pub forward: fn(Simd, [&[f32]; 2], &mut [f32]),
    /// For each operand, `([dy, a, b], d)`: d = dy·∂f/∂operand.
    pub backward: [BinaryBackward; 2],
}

/// Generates the kernels of functions that return their value and their derivative.
macro_rules! unary {
    ($($(#[$meta:meta])* $NAME:ident = $function:expr;)*) => {
        $(
            $(#[$meta])*
            pub const $NAME: UnaryKernels = {
                simd_fn! {
                    fn forward(x: &[f32], y: &mut [f32]) {
                        assert_eq!(x.len(), y.len());
                        for (y, x) in y.iter_mut().zip(x) {
                            *y = inline($function, *x).0;
                        }
                    }
                }
                simd_fn! {
                    fn backward(x: &[f32], dy: &mut [f32]) {
                        assert_eq!(x.len(), dy.len());
                        for (dy, x) in dy.iter_mut().zip(x) {
                            *dy *= inline($function, *x).1;
                        }
                    }
                }
                UnaryKernels { forward, backward }
            };
        )*
    };
}

/// Generates the kernels of functions that return their value and both derivatives.
macro_rules! binary {
    ($($(#[$meta:meta])* $NAME:ident = $function:expr;)*) => {
        $(
            $(#[$meta])*
            pub const $NAME: BinaryKernels = {
                simd_fn! {
                    fn forward(operands: [&[f32]; 2], y: &mut [f32]) {
                        let [a, b] = operands;
                        assert!(a.len() == y.len() && b.len() == y.len());
                        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                            *y = inline2($function, *a, *b).0;
                        }
                    }
                }
                simd_fn! {
                    fn first(operands: [&[f32]; 3], d: &mut [f32]) {
                        let [dy, a, b] = operands;
                        assert!(dy.len() == d.len() && a.len() == d.len() && b.len() == d.len());
                        for (((d, dy), a), b) in d.iter_mut().zip(dy).zip(a).zip(b) {
                            *d = dy * inline2($function, *a, *b).1;
                        }
                    }
                }
                simd_fn! {
                    fn second(operands: [&[f32]; 3], d: &mut [f32]) {
                        let [dy, a, b] = operands;
                        assert!(dy.len() == d.len() && a.len() == d.len() && b.len() == d.len());
                        for (((d, dy), a), b) in d.iter_mut().zip(dy).zip(a).zip(b) {
                            *d = dy * inline2($function, *a, *b).2;
                        }
                    }
                }
                BinaryKernels { forward, backward: [first, second] }
            };
        )*
    };
}

#[inline(always)]
fn inline(f: impl Fn(f32) -> (f32, f32), x: f32) -> (f32, f32) {
    f(x)
}

#[inline(always)]
fn inline2(f: impl Fn(f32, f32) -> (f32, f32, f32), a: f32, b: f32) -> (f32, f32, f32) {
    f(a, b)
}

unary! {
    /// -x.
    NEG = |x: f32| (-x, -1.0);
    /// |x|; the derivative at 0 is 0.
    ABS = |x: f32| (x.abs(), sign(x));
    /// -1, 0 or 1; the derivative is 0.
    SIGN = |x: f32| (sign(x), 0.0);
    /// The largest integer that is at most x; the derivative is 0.
    FLOOR = |x: f32| (x.floor(), 0.0);
    /// e^x, within 2 ulp up to 88, within 1e-5 relative above.
    EXP = exponential;
    /// ln x.
    LOG = |x: f32| (libm::logf(x), 1.0 / x);
    /// √x.
    SQRT = |x: f32| { let y = x.sqrt(); (y, 0.5 / y) };
    /// 1/√x.
    RSQRT = |x: f32| { let y = 1.0 / x.sqrt(); (y, -0.5 * y / x) };
    /// 1/x.
    RECIPROCAL = |x: f32| { let y = 1.0 / x; (y, -y * y) };
    /// x².
    SQUARE = |x: f32| (x * x, 2.0 * x);
    /// sin x.
    SIN = |x: f32| (libm::sinf(x), libm::cosf(x));
    /// cos x.
    COS = |x: f32| (libm::cosf(x), -libm::sinf(x));
    /// The error function.
    ERF = |x: f32| (libm::erff(x), std::f32::consts::FRAC_2_SQRT_PI * exp(-x * x));
}

binary! {
    /// a + b.
    ADD = |a: f32, b: f32| (a + b, 1.0, 1.0);
    /// a - b.
    SUB = |a: f32, b: f32| (a - b, 1.0, -1.0);
    /// a·b.
    MUL = |a: f32, b: f32| (a * b, b, a);
    /// a/b.
    DIV = |a: f32, b: f32| { let y = a / b; (y, 1.0 / b, -y / b) };
    /// The larger of both; NaN if one is. Of equal operands, each has half of the gradient, as in PyTorch.
    MAX = |a: f32, b: f32| (if a > b || a.is_nan() { a } else { b }, share(a, b), share(b, a));
    /// The smaller of both; see [`MAX`].
    MIN = |a: f32, b: f32| (if a < b || a.is_nan() { a } else { b }, share(b, a), share(a, b));
    /// a^b. Derivatives as in PyTorch: 0 by a where b is 0, and 0 by b where a is 0 and b is not negative.
    POW = power;
}

#[inline(always)]
fn sign(x: f32) -> f32 {
    if x == 0.0 || x.is_nan() { x } else { 1.0f32.copysign(x) }
}

/// The share of the gradient of the larger of both that belongs to `a`.
#[inline(always)]
fn share(a: f32, b: f32) -> f32 {
    match () {
        () if a > b => 1.0,
        () if a == b => 0.5,
        () => 0.0,
    }
}

#[inline(always)]
fn exponential(x: f32) -> (f32, f32) {
    // `exp` ends at 88; the largest f32 is e^88.7.
    let y = if x > 88.0 { 4.0 * exp(x - LN_4) } else { exp(x) };
    (y, y)
}

#[inline(always)]
fn power(a: f32, b: f32) -> (f32, f32, f32) {
    let y = libm::powf(a, b);
    let by_base = if b == 0.0 { 0.0 } else { b * libm::powf(a, b - 1.0) };
    let by_exponent = if a == 0.0 && b >= 0.0 { 0.0 } else { y * libm::logf(a) };
    (y, by_base, by_exponent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_close, central_difference, every_simd, uniform};

    #[test]
    fn unary_functions_agree_with_f64() {
        type Reference = fn(f64) -> f64;
        let cases: [(UnaryKernels, Reference, f64, f64); 11] = [
            (NEG, |x| -x, -3.0, 3.0),
            (ABS, f64::abs, 0.1, 3.0),
            (EXP, f64::exp, -20.0, 88.7),
            (LOG, f64::ln, 0.1, 50.0),
            (SQRT, f64::sqrt, 0.1, 50.0),
            (RSQRT, |x| 1.0 / x.sqrt(), 0.1, 50.0),
            (RECIPROCAL, |x| 1.0 / x, 0.1, 50.0),
            (SQUARE, |x| x * x, -3.0, 3.0),
            (SIN, f64::sin, -9.0, 9.0),
            (COS, f64::cos, -9.0, 9.0),
            (ERF, libm::erf, -3.0, 3.0),
        ];
        for (index, (kernels, reference, low, high)) in cases.into_iter().enumerate() {
            let x = uniform(100, low, high, index as u64);
            let [y, slope] = every_simd(|simd| {
                let (mut y, mut slope) = (vec![0.0; x.len()], vec![1.0; x.len()]);
                (kernels.forward)(simd, &x, &mut y);
                (kernels.backward)(simd, &x, &mut slope);
                [y, slope]
            });
            for (found, expected) in y.iter().zip(x.iter().map(|&x| reference(f64::from(x)))) {
                assert!((f64::from(*found) - expected).abs() <= 1e-5 * expected.abs(), "function {index}: {expected}");
            }
            let slopes: Vec<f64> = x.iter().map(|&x| central_difference(reference, f64::from(x))).collect();
            assert_close(&slope, &slopes, 1e-5);
        }
        let apply = |kernels: UnaryKernels, x: f32| {
            let mut y = [0.0];
            (kernels.forward)(Simd::detect(), &[x], &mut y);
            y[0]
        };
        assert_eq!([apply(SIGN, -2.0), apply(SIGN, 0.0), apply(FLOOR, -0.5)], [-1.0, 0.0, -1.0]);
        assert_eq!(
            [apply(EXP, 89.0), apply(EXP, f32::INFINITY), apply(EXP, -100.0)],
            [f32::INFINITY, f32::INFINITY, 0.0]
        );
        assert!(apply(EXP, f32::NAN).is_nan() && apply(SIGN, f32::NAN).is_nan());
    }

    #[test]
    fn binary_functions_agree_with_f64() {
        type Reference = fn(f64, f64) -> f64;
        let cases: [(BinaryKernels, Reference); 7] = [
            (ADD, |a, b| a + b),
            (SUB, |a, b| a - b),
            (MUL, |a, b| a * b),
            (DIV, |a, b| a / b),
            (MAX, f64::max),
            (MIN, f64::min),
            (POW, f64::powf),
        ];
        let (a, b) = (uniform(100, 0.2, 3.0, 1), uniform(100, 0.2, 3.0, 2));
        for (index, (kernels, reference)) in cases.into_iter().enumerate() {
            let [y, da, db] = every_simd(|simd| {
                let mut results = [(); 3].map(|()| vec![0.0; a.len()]);
                (kernels.forward)(simd, [&a, &b], &mut results[0]);
                let dy = vec![1.0; a.len()];
                for (backward, d) in kernels.backward.iter().zip(&mut results[1..]) {
                    backward(simd, [&dy, &a, &b], d);
                }
                results
            });
            let map = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
                a.iter().zip(&b).map(|(&a, &b)| f(f64::from(a), f64::from(b))).collect()
            };
            assert_close(&y, &map(&reference), 1e-6);
            assert_close(&da, &map(&|a, b| central_difference(|a| reference(a, b), a)), 1e-5);
            assert_close(&db, &map(&|a, b| central_difference(|b| reference(a, b), b)), 1e-5);
            println!("function {index}");
        }
    }

    #[test]
    fn edges_are_those_of_pytorch() {
        let apply = |kernels: BinaryKernels, a: f32, b: f32| {
            let mut results = [[0.0]; 3];
            (kernels.forward)(Simd::detect(), [&[a], &[b]], &mut results[0]);
            for (backward, d) in kernels.backward.iter().zip(&mut results[1..]) {
                backward(Simd::detect(), [&[1.0], &[a], &[b]], d);
            }
            results.map(|[x]| x)
        };
        assert_eq!(apply(MAX, 2.0, 2.0), [2.0, 0.5, 0.5]);
        assert_eq!(apply(MIN, 1.0, 2.0), [1.0, 1.0, 0.0]);
        assert!(apply(MAX, f32::NAN, 1.0)[0].is_nan() && apply(MIN, 1.0, f32::NAN)[0].is_nan());
        assert_eq!(apply(POW, 0.0, 0.0), [1.0, 0.0, 0.0]);
        assert_eq!(apply(POW, -2.0, 3.0)[..2], [-8.0, 12.0]);
    }
}
