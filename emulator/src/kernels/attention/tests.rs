//! Compares attention with f64, and instruction sets and thread counts with each other.

use super::*;
use crate::kernels::testing::{assert_close, every_simd, gradient, uniform};
use crate::kernels::{ComputeThreads, Context, Simd};
use crate::numerics::random::key;
use crate::numerics::{Precision, bf16};

/// Where the element `e` of token `token` of a pair is in packed rows of queries (part 0), keys (1) and values (2).
fn element_index(a: &AttentionParams<'_>, pair: usize, token: usize, part: usize, e: usize) -> usize {
    let layout = QkvLayout::packed(a);
    let (sample, head) = (pair / a.heads, pair % a.heads);
    let first = [layout.q, layout.k, layout.v][part];
    let head = if part == 0 { head } else { head / a.group() };
    (sample * a.tokens + token) * layout.row_stride + first + head * a.head_dim + e
}

/// The score of query `i` and key `j` of a pair; `None` if the query does not attend to the key.
fn score(a: &AttentionParams<'_>, qkv: &[f64], pair: usize, i: usize, j: usize) -> Option<f64> {
    let is_masked = a.key_mask.is_some_and(|mask| mask[pair / a.heads * a.tokens + j] == 0);
    if is_masked || (a.causal && j > i) || a.window.is_some_and(|window| i - j >= window && j >= a.sinks) {
        return None;
    }
    let product: f64 =
        (0..a.head_dim).map(|e| qkv[element_index(a, pair, i, 0, e)] * qkv[element_index(a, pair, j, 1, e)]).sum();
    let slope = if a.alibi { f64::from(alibi_slope(a.heads, pair % a.heads)) } else { 0.0 };
    let product = f64::from(a.scale) * product;
    let capped = a.softcap.map_or(product, |cap| f64::from(cap) * (product / f64::from(cap)).tanh());
    Some(capped - slope * i.abs_diff(j) as f64)
}

/// The probabilities of query `i` of a pair; none if it attends to no key.
fn probabilities(a: &AttentionParams<'_>, qkv: &[f64], pair: usize, i: usize) -> Vec<f64> {
    let scores: Vec<Option<f64>> = (0..a.tokens).map(|j| score(a, qkv, pair, i, j)).collect();
    let max = scores.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| score.map_or(0.0, |score| (score - max).exp())).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| if sum == 0.0 { 0.0 } else { weight / sum }).collect()
}

/// The factor of dropout on a probability.
fn factor(a: &AttentionParams<'_>, pair: usize, i: usize, j: usize) -> f64 {
    a.head_dropout(pair).map_or(1.0, |(dropout, key)| f64::from(dropout.factor(subkey(key, i as u64), j as u32)))
}

/// Attention in f64, rows of `heads * head_dim`, from packed rows of queries, keys and values.
fn reference(a: &AttentionParams<'_>, qkv: &[f64]) -> Vec<f64> {
    let (hidden, t, d) = (a.hidden(), a.tokens, a.head_dim);
    let mut out = vec![0.0; a.rows() * hidden];
    for pair in 0..a.samples * a.heads {
        let (sample, head) = (pair / a.heads, pair % a.heads);
        for i in 0..t {
            for (j, probability) in probabilities(a, qkv, pair, i).into_iter().enumerate() {
                for e in 0..d {
                    out[(sample * t + i) * hidden + head * d + e] +=
                        probability * factor(a, pair, i, j) * qkv[element_index(a, pair, j, 2, e)];
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
    let packed = Qkv::packed(a, qkv);
    let [mut out, mut lse, mut dqkv, mut partial] =
        [dout.len(), a.saved_len(), qkv.len(), a.partial_len()].map(|len| vec![f32::NAN; len]);
    let mut workspace = AttentionWorkspace::new();
    forward(cx, a, packed, &mut out, &mut lse, &mut workspace);
    let gradient = QkvGradient::Together(&mut dqkv);
    backward(cx, a, packed, &out, &lse, dout, gradient, &mut partial, &mut workspace);
    [out, lse, dqkv]
}

fn shape(samples: usize, tokens: usize, heads: usize, head_dim: usize) -> AttentionParams<'static> {
    const KEYS: [u64; 2] = [key(1, 5, 3), key(1, 6, 3)];
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionParams {
        samples,
        tokens,
        key_tokens: tokens,
        heads,
        key_heads: heads,
        head_dim,
        scale,
        causal: true,
        window: None,
        sinks: 0,
        alibi: false,
        softcap: None,
        relative: None,
        key_mask: None,
        spans: None,
        earlier: None,
        dropout: None,
        sample_keys: &KEYS[..samples],
    }
}

/// Elements of packed rows of queries, keys and values.
fn packed_len(a: &AttentionParams<'_>) -> usize {
    a.rows() * QkvLayout::packed(a).row_stride
}

#[test]
fn gradients_agree_with_differences_of_f64() {
    let grouped = AttentionParams { key_heads: 2, alibi: true, window: Some(3), ..shape(1, 7, 6, 5) };
    let grouped_plain = AttentionParams { alibi: false, ..grouped };
    let bidirectional = AttentionParams { causal: false, ..shape(2, 7, 2, 5) };
    // The last sample has no key at all.
    let masked = AttentionParams { key_mask: Some(&[1, 0, 1, 1, 0, 0, 0, 0, 0, 0]), ..shape(2, 5, 2, 4) };
    let masked_bidirectional = AttentionParams { causal: false, ..masked };
    let capped = AttentionParams { softcap: Some(0.8), ..grouped_plain };
    for (mut a, rate) in [
        (capped, 0.2),
        (shape(2, 7, 2, 5), 0.0),
        (shape(1, 18, 1, 16), 0.3),
        (grouped, 0.2),
        (bidirectional, 0.3),
        (masked, 0.0),
        (masked_bidirectional, 0.2),
    ] {
        a.dropout = DropoutMask::new(rate);
        let qkv = uniform(packed_len(&a), -1.5, 1.5, 1);
        let dout = uniform(a.rows() * a.hidden(), -1.0, 1.0, 2);
        let [out, _, dqkv] = every_simd(|simd| run(simd, 1, Precision::F32, &a, &qkv, &dout));
        let qkv64: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
        assert_close(&out, &reference(&a, &qkv64), 1e-6);
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
        let index = |token: usize, part: usize, e: usize| element_index(a, pair, token, part, e);
        for i in 0..t {
            let probabilities = probabilities(a, qkv, pair, i);
            let grad = |e: usize| f64::from(dout[(sample * t + i) * hidden + head * d + e]);
            let factor = |j: usize| factor(a, pair, i, j);
            let dp: Vec<f64> =
                (0..t).map(|j| factor(j) * (0..d).map(|e| grad(e) * qkv[index(j, 2, e)]).sum::<f64>()).collect();
            let mean: f64 = dp.iter().zip(&probabilities).map(|(dp, p)| dp * p).sum();
            for j in 0..t {
                let (p, ds) = (probabilities[j], probabilities[j] * (dp[j] - mean) * scale);
                for e in 0..d {
                    dqkv[index(i, 0, e)] += ds * qkv[index(j, 1, e)];
                    dqkv[index(j, 1, e)] += ds * qkv[index(i, 0, e)];
                    dqkv[index(j, 2, e)] += p * factor(j) * grad(e);
                }
            }
        }
    }
    dqkv
}

#[test]
fn blocks_fit_together_and_bits_do_not_depend_on_the_machine() {
    let window = |window: usize, a| AttentionParams { window: Some(window), ..a };
    let grouped = |key_heads: usize, a| AttentionParams { key_heads, alibi: true, ..a };
    let mask: Vec<i32> = (0..500).map(|key| i32::from(key % 7 != 0 && key < 450)).collect();
    let both = |mask, a| AttentionParams { causal: false, key_mask: Some(mask), ..a };
    // Around the edges of query blocks (96) and key blocks (384), and odd heads. Windows that end inside of a block, at
    // its edge, and that leave whole blocks out; sinks inside of a block and beyond one.
    for (a, rate) in [
        (shape(2, 97, 1, 64), 0.1),
        (shape(1, 500, 2, 24), 0.0),
        (shape(1, 385, 1, 80), 0.2),
        (shape(2, 1, 2, 3), 0.0),
        (grouped(1, shape(2, 97, 3, 24)), 0.1),
        (grouped(2, shape(1, 400, 4, 8)), 0.0),
        (window(1, shape(1, 100, 1, 8)), 0.0),
        (window(50, shape(1, 500, 1, 8)), 0.1),
        (window(384, grouped(1, shape(1, 900, 2, 8))), 0.0),
        (AttentionParams { sinks: 5, ..window(50, shape(1, 500, 1, 8)) }, 0.1),
        (AttentionParams { sinks: 400, ..window(30, grouped(1, shape(1, 900, 2, 8))) }, 0.0),
        (both(&mask[..], shape(1, 500, 2, 24)), 0.1),
        (both(&mask[..97], shape(1, 97, 1, 64)), 0.0),
    ] {
        let a = AttentionParams { dropout: DropoutMask::new(rate), ..a };
        let qkv = uniform(packed_len(&a), -1.5, 1.5, 1);
        let dout = uniform(a.rows() * a.hidden(), -1.0, 1.0, 2);
        let results = every_simd(|simd| run(simd, 1, Precision::F32, &a, &qkv, &dout));
        assert!(run(Simd::detect(), 2, Precision::F32, &a, &qkv, &dout) == results, "two threads");
        let qkv64: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
        assert_close(&results[0], &reference(&a, &qkv64), 1e-6);
        assert_close(&results[2], &reference_gradient(&a, &qkv64, &dout), 3e-6);
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
    let separate = |packed: &[f32]| -> Vec<f32> {
        (0..3).flat_map(|part| packed.chunks(hidden).skip(part).step_by(3).flatten().copied()).collect()
    };
    let layout = QkvLayout { row_stride: hidden, key_stride: hidden, q: 0, k: rows * hidden, v: 2 * rows * hidden };
    let pool = ComputeThreads::inline();
    let cx = Context { simd: Simd::detect(), pool: &pool, precision: Precision::F32 };
    let (mut out2, mut lse2, mut dqkv2) = (out.clone(), lse.clone(), vec![0.0; packed.len()]);
    let mut workspace = AttentionWorkspace::new();
    let parts = separate(&packed);
    let qkv = Qkv { queries: &parts, keys: &parts, layout };
    forward(cx, &a, qkv, &mut out2, &mut lse2, &mut workspace);
    let gradient = QkvGradient::Together(&mut dqkv2);
    backward(cx, &a, qkv, &out2, &lse2, &dout, gradient, &mut [], &mut workspace);
    assert!(out2 == out && lse2 == lse && dqkv2 == separate(&dqkv));
}
