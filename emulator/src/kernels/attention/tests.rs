//! Compares attention with f64, and instruction sets and thread counts with each other.

use super::*;
use crate::kernels::testing::{assert_close, every_simd, gradient, uniform};
use crate::kernels::{ComputeThreads, Context, Simd};
use crate::numerics::random::key;
use crate::numerics::{Precision, bf16};

/// Attention in f64, rows of `heads * head_dim`, from packed rows of queries, keys and values.
fn reference(a: &AttentionParams<'_>, qkv: &[f64]) -> Vec<f64> {
    let (hidden, t, d) = (a.hidden(), a.tokens, a.head_dim);
    let mut out = vec![0.0; a.rows() * hidden];
    for pair in 0..a.samples * a.heads {
        let (sample, head) = (pair / a.heads, pair % a.heads);
        let at = |token: usize, part: usize, e: usize| qkv[((sample * t + token) * 3 + part) * hidden + head * d + e];
        for i in 0..t {
            let score = |j: usize| f64::from(a.scale) * (0..d).map(|e| at(i, 0, e) * at(j, 1, e)).sum::<f64>();
            let scores: Vec<f64> = (0..=i).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            for (j, s) in scores.iter().enumerate() {
                let factor = a
                    .head_dropout(pair)
                    .map_or(1.0, |(dropout, key)| f64::from(dropout.factor(subkey(key, i as u64), j as u32)));
                for e in 0..d {
                    out[(sample * t + i) * hidden + head * d + e] += (s - max).exp() / sum * factor * at(j, 2, e);
                }
            }
        }
    }
    out
}

/// Forward and backward: output, saved logarithms, gradient of packed rows.
fn run(
    simd: Simd,
    threads: usize,
    precision: Precision,
    a: &AttentionParams<'_>,
    qkv: &[f32],
    dout: &[f32],
) -> [Vec<f32>; 3] {
    let pool = ComputeThreads::new(threads).unwrap();
    let cx = Context { simd, pool: &pool, precision };
    let layout = QkvLayout::packed(a.hidden());
    let [mut out, mut lse, mut dqkv] =
        [vec![f32::NAN; dout.len()], vec![f32::NAN; a.saved_len()], vec![f32::NAN; qkv.len()]];
    let mut workspace = AttentionWorkspace::new();
    forward(cx, a, qkv, layout, &mut out, &mut lse, &mut workspace);
    backward(cx, a, qkv, layout, &out, &lse, dout, &mut dqkv, &mut workspace);
    [out, lse, dqkv]
}

fn shape(samples: usize, tokens: usize, heads: usize, head_dim: usize) -> AttentionParams<'static> {
    const KEYS: [u64; 2] = [key(1, 5, 3), key(1, 6, 3)];
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionParams { samples, tokens, heads, head_dim, scale, dropout: None, sample_keys: &KEYS[..samples] }
}

#[test]
fn gradients_agree_with_differences_of_f64() {
    for (mut a, rate) in [(shape(2, 7, 2, 5), 0.0), (shape(1, 18, 1, 16), 0.3)] {
        a.dropout = DropoutMask::new(rate);
        let qkv = uniform(a.rows() * 3 * a.hidden(), -1.5, 1.5, 1);
        let dout = uniform(a.rows() * a.hidden(), -1.0, 1.0, 2);
        let [out, _, dqkv] = every_simd(|simd| run(simd, 1, Precision::F32, &a, &qkv, &dout));
        let wide: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
        assert_close(&out, &reference(&a, &wide), 1e-6);
        let total = |x: &[f64]| reference(&a, x).iter().zip(&dout).map(|(o, d)| o * f64::from(*d)).sum();
        assert_close(&dqkv, &gradient(total, &qkv), 2e-6);
    }
}

/// The gradient in f64, by the formulas, for shapes where differences would take too long.
fn reference_gradient(a: &AttentionParams<'_>, qkv: &[f64], dout: &[f32]) -> Vec<f64> {
    let (hidden, t, d, scale) = (a.hidden(), a.tokens, a.head_dim, f64::from(a.scale));
    let mut dqkv = vec![0.0; qkv.len()];
    for pair in 0..a.samples * a.heads {
        let (sample, head) = (pair / a.heads, pair % a.heads);
        let at = |token: usize, part: usize, e: usize| ((sample * t + token) * 3 + part) * hidden + head * d + e;
        let dot = |i: usize, part: usize, j: usize, other: usize| {
            (0..d).map(|e| qkv[at(i, part, e)] * qkv[at(j, other, e)]).sum::<f64>()
        };
        for i in 0..t {
            let weights: Vec<f64> = (0..=i).map(|j| (scale * dot(i, 0, j, 1)).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let grad = |e: usize| f64::from(dout[(sample * t + i) * hidden + head * d + e]);
            let factor = |j: usize| {
                a.head_dropout(pair)
                    .map_or(1.0, |(dropout, key)| f64::from(dropout.factor(subkey(key, i as u64), j as u32)))
            };
            let dp: Vec<f64> =
                (0..=i).map(|j| factor(j) * (0..d).map(|e| grad(e) * qkv[at(j, 2, e)]).sum::<f64>()).collect();
            let mean: f64 = dp.iter().zip(&weights).map(|(dp, w)| dp * w / sum).sum();
            for j in 0..=i {
                let (p, ds) = (weights[j] / sum, weights[j] / sum * (dp[j] - mean) * scale);
                for e in 0..d {
                    dqkv[at(i, 0, e)] += ds * qkv[at(j, 1, e)];
                    dqkv[at(j, 1, e)] += ds * qkv[at(i, 0, e)];
                    dqkv[at(j, 2, e)] += p * factor(j) * grad(e);
                }
            }
        }
    }
    dqkv
}

#[test]
fn blocks_fit_together_and_bits_do_not_depend_on_the_machine() {
    // Around the edges of query blocks (96) and key blocks (384), and odd heads.
    for (a, rate) in
        [(shape(2, 97, 1, 64), 0.1), (shape(1, 500, 2, 24), 0.0), (shape(1, 385, 1, 80), 0.2), (shape(2, 1, 2, 3), 0.0)]
    {
        let a = AttentionParams { dropout: DropoutMask::new(rate), ..a };
        let qkv = uniform(a.rows() * 3 * a.hidden(), -1.5, 1.5, 1);
        let dout = uniform(a.rows() * a.hidden(), -1.0, 1.0, 2);
        let results = every_simd(|simd| run(simd, 1, Precision::F32, &a, &qkv, &dout));
        assert!(run(Simd::detect(), 2, Precision::F32, &a, &qkv, &dout) == results, "two threads");
        let wide: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
        assert_close(&results[0], &reference(&a, &wide), 1e-6);
        assert_close(&results[2], &reference_gradient(&a, &wide, &dout), 3e-6);
    }
}

#[test]
fn bf16_rounds_the_operands() {
    let a = shape(1, 40, 1, 32);
    let mut qkv = uniform(a.rows() * 3 * a.hidden(), -1.5, 1.5, 1);
    let dout = uniform(a.rows() * a.hidden(), -1.0, 1.0, 2);
    let rounded: Vec<f64> = qkv.iter().map(|x| f64::from(bf16::round(*x))).collect();
    let [out, lse, dqkv] = every_simd(|simd| run(simd, 1, Precision::Bf16, &a, &qkv, &dout));
    // The remaining error is the rounding of the probabilities: half an ulp of bf16 each.
    assert_close(&out, &reference(&a, &rounded), 4e-3);
    assert_close(&dqkv, &reference_gradient(&a, &rounded, &dout), 8e-3);
    // Rounding the operands before the call changes nothing: the logarithms depend on rounded operands only.
    qkv.iter_mut().for_each(|x| *x = bf16::round(*x));
    assert_eq!(lse, run(Simd::detect(), 1, Precision::F32, &a, &qkv, &dout)[1]);
}

#[test]
fn separate_matrices_are_a_layout_too() {
    let a = shape(2, 50, 2, 16);
    let (rows, hidden) = (a.rows(), a.hidden());
    let packed = uniform(rows * 3 * hidden, -1.5, 1.5, 1);
    let dout = uniform(rows * hidden, -1.0, 1.0, 2);
    let [out, lse, dqkv] = run(Simd::detect(), 1, Precision::F32, &a, &packed, &dout);
    let apart = |packed: &[f32]| -> Vec<f32> {
        (0..3).flat_map(|part| packed.chunks(hidden).skip(part).step_by(3).flatten().copied()).collect()
    };
    let layout = QkvLayout { row_stride: hidden, q: 0, k: rows * hidden, v: 2 * rows * hidden };
    let pool = ComputeThreads::inline();
    let cx = Context { simd: Simd::detect(), pool: &pool, precision: Precision::F32 };
    let (mut out2, mut lse2, mut dqkv2) = (out.clone(), lse.clone(), vec![0.0; packed.len()]);
    let mut workspace = AttentionWorkspace::new();
    forward(cx, &a, &apart(&packed), layout, &mut out2, &mut lse2, &mut workspace);
    backward(cx, &a, &apart(&packed), layout, &out2, &lse2, &dout, &mut dqkv2, &mut workspace);
    assert!(out2 == out && lse2 == lse && dqkv2 == apart(&dqkv));
}
