//! Initial values of weights: a pure function of (key, element index).
//!
//! A tensor's key comes from the seed and the tensor's id ([`tensor_key`]); any range of a tensor is produced
//! without the rest. Values are computed in f64 with `libm` and rounded once to f32, so that platforms agree.

use serde::{Deserialize, Serialize};

use super::random::{hash64, key, to_open_unit};

/// Operator number for drawing initial values, so that no dropout key equals a tensor's key.
const INIT_OPERATOR_ID: u64 = u64::MAX;

/// The key of tensor `tensor` (its number in the plan) under `seed`.
pub const fn tensor_key(seed: u64, tensor: u64) -> u64 {
    key(seed, tensor, INIT_OPERATOR_ID)
}

/// The distribution of a tensor's initial values, as in the plan and the layout of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Initializer {
    /// One value everywhere.
    Constant {
        /// The value.
        value: f64,
    },
    /// Uniform on the interval from `low` to `high`.
    Uniform {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// Normal.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Normal, conditioned on lying between `low` and `high` (absolute values, not multiples of `std`).
    TruncatedNormal {
        /// Mean before truncation.
        mean: f64,
        /// Standard deviation before truncation.
        std: f64,
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
}

impl Initializer {
    /// Writes elements `first .. first + out.len()` of the tensor with key `key`.
    pub fn fill(&self, key: u64, first: u64, out: &mut [f32]) {
        match *self {
            Initializer::Constant { value } => out.fill(value as f32),
            Initializer::Uniform { low, high } => draw(key, first, out, |u| low + (high - low) * u),
            Initializer::Normal { mean, std } => draw(key, first, out, |u| mean + std * normal_quantile(u)),
            Initializer::TruncatedNormal { mean, std, low, high } => {
                let (below, above) = (normal_cdf((low - mean) / std), normal_cdf((high - mean) / std));
                draw(key, first, out, |u| {
                    let value = mean + std * normal_quantile(below + (above - below) * u);
                    // Rounding of the two functions may exceed a bound by an ulp.
                    value.max(low).min(high)
                });
            }
        }
    }
}

/// Fills `out` with `quantile` of uniform numbers.
fn draw(key: u64, first: u64, out: &mut [f32], quantile: impl Fn(f64) -> f64) {
    for (element, value) in (first..).zip(out) {
        *value = quantile(to_open_unit(hash64(key, element))) as f32;
    }
}

/// Probability that a standard normal value is below `x`.
fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

/// The value below which a standard normal variable lies with probability `p`, relative error about 1e-16.
///
/// Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", 1988 (PPND16).
fn normal_quantile(p: f64) -> f64 {
    let centred = p - 0.5;
    if centred.abs() <= 0.425 {
        return centred * ratio(&QUANTILE_CENTRE, 0.180625 - centred * centred);
    }
    let tail = if centred < 0.0 { p } else { 1.0 - p };
    if tail <= 0.0 {
        return centred.signum() * f64::INFINITY;
    }
    let r = libm::sqrt(-libm::log(tail));
    let magnitude = if r <= 5.0 { ratio(&QUANTILE_MIDDLE, r - 1.6) } else { ratio(&QUANTILE_TAIL, r - 5.0) };
    magnitude.copysign(centred)
}

/// Numerator and denominator coefficients, constant term first.
type Rational = ([f64; 8], [f64; 8]);

fn ratio((numerator, denominator): &Rational, x: f64) -> f64 {
    let horner = |c: &[f64; 8]| c.iter().rev().fold(0.0, |sum, c| sum * x + c);
    horner(numerator) / horner(denominator)
}

const QUANTILE_CENTRE: Rational = (
    [
        3.387_132_872_796_366_5,
        133.141_667_891_784_38,
        1_971.590_950_306_551_3,
        13_731.693_765_509_46,
        45_921.953_931_549_87,
        67_265.770_927_008_7,
        33_430.575_583_588_13,
        2_509.080_928_730_122_7,
    ],
    [
        1.0,
        42.313_330_701_600_91,
        687.187_007_492_057_9,
        5_394.196_021_424_751,
        21_213.794_301_586_597,
        39_307.895_800_092_71,
        28_729.085_735_721_943,
        5_226.495_278_852_855,
    ],
);
const QUANTILE_MIDDLE: Rational = (
    [
        1.423_437_110_749_683_5,
        4.630_337_846_156_545,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        0.241_780_725_177_450_6,
        0.022_723_844_989_269_184,
        7.745_450_142_783_414e-4,
    ],
    [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        0.689_767_334_985_1,
        0.148_103_976_427_480_08,
        0.015_198_666_563_616_457,
        5.475_938_084_995_345e-4,
        1.050_750_071_644_416_9e-9,
    ],
);
const QUANTILE_TAIL: Rational = (
    [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        0.296_560_571_828_504_87,
        0.026_532_189_526_576_124,
        0.001_242_660_947_388_078_4,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ],
    [
        1.0,
        0.599_832_206_555_888,
        0.136_929_880_922_735_8,
        0.014_875_361_290_850_615,
        7.868_691_311_456_133e-4,
        1.846_318_317_510_054_8e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_inverts_the_distribution() {
        for exponent in -300..0 {
            let p = 10f64.powi(exponent) * 0.7;
            let back = normal_cdf(normal_quantile(p));
            assert!((back / p - 1.0).abs() < 1e-11, "{p:e}: {back:e}");
        }
        for i in 1..1000 {
            let p = f64::from(i) / 1000.0;
            assert!((normal_cdf(normal_quantile(p)) / p - 1.0).abs() < 1e-14, "{p}");
        }
    }

    #[test]
    fn any_range_alone_has_the_bits_of_the_whole() {
        let all = [
            Initializer::Constant { value: 0.5 },
            Initializer::Uniform { low: -0.1, high: 0.3 },
            Initializer::Normal { mean: 0.1, std: 0.02 },
            Initializer::TruncatedNormal { mean: 0.0, std: 0.02, low: -0.04, high: 0.04 },
        ];
        let key = tensor_key(3, 9);
        for init in all {
            let mut full = vec![0.0; 1000];
            init.fill(key, 1 << 33, &mut full);
            let mut part = vec![0.0; 123];
            init.fill(key, (1 << 33) + 456, &mut part);
            assert_eq!(part, full[456..579]);
        }
    }

    #[test]
    fn moments_are_right() {
        let n = 200_000;
        // Variance of a standard normal cut at two: 1 - 2·2·φ(2)/(2Φ(2)-1).
        let cut = 1.0 - 4.0 * 0.053_990_966_513 / 0.954_499_736_1;
        let table = [
            (Initializer::Uniform { low: -1.0, high: 3.0 }, 1.0, 16.0 / 12.0),
            (Initializer::Normal { mean: -2.0, std: 3.0 }, -2.0, 9.0),
            (Initializer::TruncatedNormal { mean: 0.0, std: 1.0, low: -2.0, high: 2.0 }, 0.0, cut),
        ];
        for (init, mean, variance) in table {
            let mut values = vec![0.0; n];
            init.fill(tensor_key(1, 1), 0, &mut values);
            let m = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n as f64;
            let v = values.iter().map(|v| (f64::from(*v) - m).powi(2)).sum::<f64>() / n as f64;
            assert!((m - mean).abs() < 4.0 * (variance / n as f64).sqrt(), "{init:?}: mean {m}");
            assert!((v / variance - 1.0).abs() < 0.02, "{init:?}: variance {v}");
        }
        let mut cut_values = vec![0.0; n];
        Initializer::TruncatedNormal { mean: 0.0, std: 1.0, low: -2.0, high: 2.0 }.fill(7, 0, &mut cut_values);
        assert!(cut_values.iter().all(|v| v.abs() <= 2.0));
    }
}
