//! Approximations of transcendental functions that vectorise: straight-line f32 arithmetic, no table, no branch.
//!
//! All functions are inlined into the kernels' loops. NaN propagates. Polynomials are minimax fits computed in f64 and
//! rounded to f32; the tests compare each function with f64 over its whole range.

/// 1.5 * 2^23: adding it to a small number leaves the nearest integer in the low bits of the mantissa.
const ROUNDING_BIAS: f32 = 12_582_912.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the product of the first with an integer below 2^9 is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below this, e^x is not a normal number and is replaced by 0.
const EXP_MIN_INPUT: f32 = -87.336_54;
/// Above this, e^x is clamped to e^88, 1.65e38, which exceeds any meaningful value.
const EXP_MAX_INPUT: f32 = 88.0;

/// x = n ln 2 + r: returns (2^n, (e^r - 1)), for x between the two bounds.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, f32) {
    let shifted = x.mul_add(LOG2_E, ROUNDING_BIAS);
    let n = shifted - ROUNDING_BIAS;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let power = f32::from_bits((shifted.to_bits().wrapping_add(127)) << 23);
    // (e^r - 1 - r) / r^2 within 7.5e-9 of e^r.
    let mut q = 1.394_112_4e-3f32;
    q = q.mul_add(r, 8.363_181e-3);
    q = q.mul_add(r, 4.166_637_5e-2);
    q = q.mul_add(r, 1.666_657_7e-1);
    q = q.mul_add(r, 0.5);
    (power, (r * r).mul_add(q, r))
}

/// e^x within 2 ulp; 0 below -87.34, e^88 above 88.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons are written so that NaN propagates.
    let clamped = if x > EXP_MAX_INPUT { EXP_MAX_INPUT } else { x };
    let (power, minus_one) = exp_parts(clamped);
    let value = minus_one.mul_add(power, power);
    if x < EXP_MIN_INPUT { 0.0 } else { value }
}

/// tanh x within 4 ulp.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // tanh x = m / (m + 2) with m = e^2x - 1, computed without cancellation; 1 beyond 9.1.
    let doubled = 2.0 * x.abs();
    let clamped = if doubled > 18.4 { 18.4 } else { doubled };
    let (power, r) = exp_parts(clamped);
    let m = r.mul_add(power, power - 1.0);
    (m / (m + 2.0)).copysign(x)
}

/// The standard normal distribution at x: (probability of a lower value, density), both within 1e-6 relative
/// down to 1e-35.
#[inline(always)]
pub(crate) fn normal(x: f32) -> (f32, f32) {
    const INV_SQRT_TAU: f32 = 0.398_942_3;
    // Beyond 14 the density is not a normal number; clamped there, so that infinity does not become NaN.
    let y = if x.abs() > 14.0 { 14.0 } else { x.abs() };
    // e^(-x²/2); the exponential would magnify the rounding error of the square, so the error is added back.
    let square = y * y;
    let error = y.mul_add(y, -square);
    let gauss = exp(-0.5 * square) * error.mul_add(-0.5, 1.0);
    // Upper tail / e^(-x²/2), a polynomial in t = 1 / (1 + 0.35 y/√2), within 8e-9.
    let t = 1.0 / y.mul_add(0.247_487_37, 1.0);
    let mut p = 3.868_589_6e-2f32 * 0.5;
    p = p.mul_add(t, -0.160_522_1 * 0.5);
    p = p.mul_add(t, 0.185_334_18 * 0.5);
    p = p.mul_add(t, -0.033_060_69 * 0.5);
    p = p.mul_add(t, 0.091_653_5 * 0.5);
    p = p.mul_add(t, 0.143_442_95 * 0.5);
    p = p.mul_add(t, 0.152_129_07 * 0.5);
    p = p.mul_add(t, 0.187_689_41 * 0.5);
    p = p.mul_add(t, 0.197_165_5 * 0.5);
    p = p.mul_add(t, 0.197_482_3 * 0.5);
    let tail = p * t * gauss;
    let below = if x > 0.0 { 1.0 - tail } else { tail };
    (below, gauss * INV_SQRT_TAU)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest error of `f` relative to `exact` over `low..high`, where the exact value is at least `least`.
    fn worst(low: f64, high: f64, least: f64, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
        const STEPS: usize = 200_000;
        let mut max_error = 0.0f64;
        for i in 0..=STEPS {
            let x = (low + (high - low) * i as f64 / STEPS as f64) as f32;
            let value = exact(f64::from(x));
            if value.abs() >= least {
                max_error = max_error.max((f64::from(f(x)) / value - 1.0).abs());
            }
        }
        max_error
    }

    const ULP: f64 = 1.2e-7;

    #[test]
    fn exp_is_within_two_ulp() {
        assert!(worst(-87.33, 88.0, 0.0, exp, libm::exp) < 2.0 * ULP);
        assert!(worst(-1.0, 1.0, 0.0, exp, libm::exp) < 1.5 * ULP);
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(-88.0)), (1.0, 0.0, 0.0));
        assert!(exp(f32::INFINITY) > 1.6e38 && exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_four_ulp() {
        for range in [1e-6, 1e-3, 0.1, 1.0, 12.0] {
            let error = worst(-range, range, 1e-30, tanh, libm::tanh);
            assert!(error < 4.0 * ULP, "{range}: {error}");
        }
        assert_eq!((tanh(0.0), tanh(f32::INFINITY), tanh(-100.0)), (0.0, 1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn normal_is_within_1e_6() {
        let cdf = |x: f64| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        let pdf = |x: f64| libm::exp(-0.5 * x * x) / std::f64::consts::TAU.sqrt();
        for (low, high) in [(-13.0, 6.0), (-1.0, 1.0), (-1e-3, 1e-3)] {
            let (below, density) =
                (worst(low, high, 1e-35, |x| normal(x).0, cdf), worst(low, high, 1e-35, |x| normal(x).1, pdf));
            assert!(below < 1e-6 && density < 1e-6, "{low}: {below} {density}");
        }
        assert_eq!(normal(f32::INFINITY), (1.0, 0.0));
        assert_eq!(normal(f32::NEG_INFINITY), (0.0, 0.0));
        assert!(normal(f32::NAN).0.is_nan() && normal(f32::NAN).1.is_nan());
    }
}
