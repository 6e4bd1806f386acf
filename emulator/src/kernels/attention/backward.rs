//! The backward pass: probabilities are recomputed from the saved logarithms.
//!
//! With P the probabilities, F the dropout factors, D the row sums of dO ∘ O:
//! dV = (P∘F)ᵀ dO, dS = P ∘ (F ∘ dO Vᵀ - D), dQ = scale · dS K, dK = scale · dSᵀ Q.

use super::block::{AttentionBlock, RowBlocks, left_rows};
use super::{AttentionParams, AttentionWorkspace, HeadScratch, KEY_BLOCK, QUERY_BLOCK, QkvLayout, SharedRows};
use crate::kernels::Context;
use crate::kernels::gemm::PanelBlock;
use crate::kernels::isa::{REDUCTION_LANES, Simd, simd_fn, sum_lanes};
use crate::kernels::math::exp;
use crate::kernels::matrix::MatRef;
use crate::numerics::random::{DropoutMask, subkey};
use crate::numerics::{Precision, bf16};

/// Gradients of queries, keys and values, stored to `dqkv`, which has the layout of `qkv`. `out` and `lse` are those
/// of [`forward()`](super::forward()), `dout` is the gradient of `out`.
///
/// # Panics
/// If lengths do not match.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    cx: Context<'_>,
    attention: &AttentionParams<'_>,
    qkv: &[f32],
    layout: QkvLayout,
    out: &[f32],
    lse: &[f32],
    dout: &[f32],
    dqkv: &mut [f32],
    workspace: &mut AttentionWorkspace,
) {
    attention.check();
    let (hidden, pairs) = (attention.hidden(), attention.samples * attention.heads);
    assert_eq!((out.len(), dout.len()), (attention.rows() * hidden, attention.rows() * hidden));
    assert_eq!((lse.len(), dqkv.len()), (attention.saved_len(), qkv.len()));
    if out.is_empty() {
        return;
    }
    let dim = attention.head_dim;
    let inputs = BackwardInputs { qkv, layout, out, lse, dout };
    // The three parts of a row may be in different rows of the slice, so it is addressed as one row.
    let elements = dqkv.len();
    let dqkv = SharedRows::new(dqkv, 1, elements, elements);
    let scratch = workspace.for_threads(cx.pool.threads());
    cx.pool.for_each_tile_with(scratch, pairs, |scratch, pair| {
        let (sample, head) = (pair / attention.heads, pair % attention.heads);
        let put = |offset: usize, values: &[f32]| {
            for (token, values) in values.chunks_exact(dim).enumerate() {
                let row = (sample * attention.tokens + token) * layout.row_stride;
                // SAFETY: each pair has its own columns of its sample's rows; the layout's parts do not overlap.
                unsafe { dqkv.segment(0, row + offset + head * dim, dim) }.copy_from_slice(values);
            }
        };
        let [dq, dk, dv] = backward_pair(cx.simd, cx.precision, attention, inputs, pair, scratch);
        put(layout.q, dq);
        put(layout.k, dk);
        put(layout.v, dv);
    });
}

/// What the backward pass reads.
#[derive(Clone, Copy)]
struct BackwardInputs<'a> {
    qkv: &'a [f32],
    layout: QkvLayout,
    out: &'a [f32],
    lse: &'a [f32],
    dout: &'a [f32],
}

/// Computes one head of one sample; returns dQ, dK, dV, tokens x head_dim each.
fn backward_pair<'s>(
    simd: Simd,
    precision: Precision,
    attention: &AttentionParams<'_>,
    inputs: BackwardInputs<'_>,
    pair: usize,
    scratch: &'s mut HeadScratch,
) -> [&'s [f32]; 3] {
    let (tokens, dim, hidden) = (attention.tokens, attention.head_dim, attention.hidden());
    let [q_left, k_cols, do_left, v_cols, k_rows, q_rows, do_rows, scores, dprobs, sums, dq, dk, dv] =
        &mut scratch.buffers;
    let view = |offset| attention.head(inputs.qkv, inputs.layout.row_stride, offset, pair);
    let (q, k, v) = (view(inputs.layout.q), view(inputs.layout.k), view(inputs.layout.v));
    let dout = attention.head(inputs.dout, hidden, 0, pair);
    let out = attention.head(inputs.out, hidden, 0, pair);

    let rights = PanelBlock::right_len(simd, tokens, dim);
    let q_left = left_rows(simd, precision, q, q_left);
    let do_left = left_rows(simd, precision, dout, do_left);
    let k_cols = PanelBlock::pack_right(simd, precision, k.t(), k_cols.resize(rights));
    let v_cols = PanelBlock::pack_right(simd, precision, v.t(), v_cols.resize(rights));
    // In blocks of rows, because rows are the inner index of the products they enter.
    let k_rows = RowBlocks::pack(simd, precision, k, KEY_BLOCK, k_rows);
    let q_rows = RowBlocks::pack(simd, precision, q, QUERY_BLOCK, q_rows);
    let do_rows = RowBlocks::pack(simd, precision, dout, QUERY_BLOCK, do_rows);

    let scores = scores.resize(QUERY_BLOCK * KEY_BLOCK);
    let dprobs = dprobs.resize(QUERY_BLOCK * KEY_BLOCK);
    let sums = sums.resize(tokens);
    row_dots(simd, out, dout, sums);
    let lse = &inputs.lse[pair * tokens..(pair + 1) * tokens];
    let dropout = attention.head_dropout(pair);
    let [dq, dk, dv] = [dq, dk, dv].map(|buffer| {
        let gradient = buffer.resize(tokens * dim);
        gradient.fill(0.0);
        gradient
    });

    for k_first in (0..tokens).step_by(KEY_BLOCK) {
        for q_first in (k_first..tokens).step_by(QUERY_BLOCK) {
            let rows = QUERY_BLOCK.min(tokens - q_first);
            let block = AttentionBlock { q_first, k_first, rows, keys: KEY_BLOCK.min(q_first + rows - k_first) };
            block.queries_by_keys(simd, q_left, k_cols, scores);
            block.queries_by_keys(simd, do_left, v_cols, dprobs);
            let row_values = (&lse[q_first..q_first + rows], &sums[q_first..q_first + rows]);
            gradient_rows(simd, block, attention.scale, dropout, precision, row_values, scores, dprobs);

            let (queries, keys) = (q_first * dim..(q_first + rows) * dim, k_first * dim..(k_first + block.keys) * dim);
            block.times_queries(simd, scores, do_rows.block(q_first), dim, &mut dv[keys.clone()]);
            block.times_queries(simd, dprobs, q_rows.block(q_first), dim, &mut dk[keys]);
            block.times_keys(simd, dprobs, k_rows.block(k_first), dim, &mut dq[queries]);
        }
    }
    [dq, dk, dv]
}

simd_fn! {
    /// `sums[r] = a[r] · b[r]` for each row.
    fn row_dots(a: MatRef<'_>, b: MatRef<'_>, sums: &mut [f32]) {
        for (r, sum) in sums.iter_mut().enumerate() {
            let (a, b) = (a.row(r).as_chunks::<REDUCTION_LANES>(), b.row(r).as_chunks::<REDUCTION_LANES>());
            let mut lanes = [0.0f32; REDUCTION_LANES];
            for (a, b) in a.0.iter().zip(b.0) {
                for l in 0..REDUCTION_LANES {
                    lanes[l] = a[l].mul_add(b[l], lanes[l]);
                }
            }
            for ((lane, a), b) in lanes.iter_mut().zip(a.1).zip(b.1) {
                *lane = a.mul_add(*b, *lane);
            }
            *sum = sum_lanes(lanes);
        }
    }
}

simd_fn! {
    /// `scores` becomes P∘F and `dprobs`, on entry dO Vᵀ, becomes scale · dS; both zero above the diagonal and
    /// rounded to `precision`.
    /// `row_values` are the rows' lse and D.
    fn gradient_rows(
        block: AttentionBlock,
        scale: f32,
        dropout: Option<(DropoutMask, u64)>,
        precision: Precision,
        row_values: (&[f32], &[f32]),
        scores: &mut [f32],
        dprobs: &mut [f32],
    ) {
        let rows = scores.chunks_exact_mut(KEY_BLOCK).zip(dprobs.chunks_exact_mut(KEY_BLOCK));
        for (i, ((p, dp), (&lse, &dot))) in rows.zip(row_values.0.iter().zip(row_values.1)).enumerate() {
            let visible = block.visible(i);
            let padded = visible.next_multiple_of(REDUCTION_LANES);
            p[visible..padded].fill(f32::NEG_INFINITY);
            dp[visible..padded].fill(0.0);
            let end = block.keys.max(padded);
            p[padded..end].fill(0.0);
            dp[padded..end].fill(0.0);
            let visible = p[..padded].iter_mut().zip(dp[..padded].iter_mut());
            match dropout {
                None => {
                    for (p, dp) in visible {
                        *p = exp(p.mul_add(scale, -lse));
                        *dp = *p * (*dp - dot) * scale;
                    }
                }
                Some((dropout, key)) => {
                    let key = subkey(key, (block.q_first + i) as u64);
                    for (j, (p, dp)) in (block.k_first as u32..).zip(visible) {
                        let factor = dropout.factor(key, j);
                        let probability = exp(p.mul_add(scale, -lse));
                        *dp = probability * dp.mul_add(factor, -dot) * scale;
                        *p = probability * factor;
                    }
                }
            }
            if precision == Precision::Bf16 {
                p[..padded].iter_mut().for_each(|p| *p = bf16::round(*p));
                dp[..padded].iter_mut().for_each(|dp| *dp = bf16::round(*dp));
            }
        }
    }
}
