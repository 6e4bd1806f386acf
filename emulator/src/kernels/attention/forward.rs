//! The forward pass.

use super::block::{AttentionBlock, RowBlocks, left_rows};
use super::scores::ScoreAdjustment;
use super::{AttentionParams, AttentionWorkspace, HeadScratch, KEY_BLOCK, QUERY_BLOCK, Qkv, SharedRows};
use crate::kernels::gemm::{LeftOperand, PanelBlock};
use crate::kernels::isa::{REDUCTION_LANES, max_lanes, simd_fn, sum_lanes};
use crate::kernels::math::exp;
use crate::kernels::{Context, elementwise};
use crate::numerics::random::{DropoutMask, subkey};
use crate::numerics::{Precision, bf16};

/// Computes out = softmax(scale · Q Kᵀ) V for every sample and head. `out` has rows of
/// [`AttentionParams::hidden`] elements; `lse` receives [`AttentionParams::saved_len`] logarithms of sums of
/// exponentials.
///
/// # Panics
/// If lengths do not match.
pub fn forward(
    cx: Context<'_>,
    attention: &AttentionParams<'_>,
    qkv: Qkv<'_>,
    out: &mut [f32],
    lse: &mut [f32],
    workspace: &mut AttentionWorkspace,
) {
    attention.check();
    let (hidden, pairs) = (attention.hidden(), attention.samples * attention.heads);
    assert_eq!((out.len(), lse.len()), (attention.rows() * hidden, attention.saved_len()));
    if out.is_empty() {
        return;
    }
    let out = SharedRows::new(out, attention.rows(), hidden, hidden);
    let lse = SharedRows::new(lse, pairs, attention.tokens, attention.tokens);
    let scratch = workspace.for_threads(cx.pool.threads());
    cx.pool.for_each_tile_with(scratch, pairs, |scratch, pair| {
        // SAFETY: each pair has its own row of `lse`.
        let lse = unsafe { lse.segment(pair, 0, attention.tokens) };
        let (sample, head) = (pair / attention.heads, pair % attention.heads);
        let write = |token: usize, (factor, log): (f32, f32), values: &[f32]| {
            // SAFETY: each pair has its own columns of its sample's rows.
            let row = unsafe { out.segment(sample * attention.tokens + token, head * values.len(), values.len()) };
            elementwise::scaled_copy(cx.simd, factor, values, row);
            lse[token] = log;
        };
        forward_pair(cx, attention, qkv, (pair, 0), scratch, write);
    });
}

/// Computes the rows of the output from token `first` on of one sample, with the bits of [`forward()`]. `qkv` has all
/// tokens, `out` only rows from `first` on.
///
/// # Panics
/// If lengths do not match, or attention is not causal.
pub fn forward_rows(
    cx: Context<'_>,
    attention: &AttentionParams<'_>,
    first: usize,
    qkv: Qkv<'_>,
    out: &mut [f32],
    workspace: &mut AttentionWorkspace,
) {
    attention.check();
    let (hidden, rows) = (attention.hidden(), attention.tokens - first);
    assert!(attention.samples == 1 && attention.causal && out.len() == rows * hidden, "rows of one sample");
    if out.is_empty() {
        return;
    }
    let out = SharedRows::new(out, rows, hidden, hidden);
    let scratch = workspace.for_threads(cx.pool.threads());
    cx.pool.for_each_tile_with(scratch, attention.heads, |scratch, head| {
        let write = |token: usize, (factor, _): (f32, f32), values: &[f32]| {
            // The first block begins at a tile of the kernels, which may have earlier tokens.
            let Some(row) = token.checked_sub(first) else { return };
            // SAFETY: each head has its own columns.
            let row = unsafe { out.segment(row, head * values.len(), values.len()) };
            elementwise::scaled_copy(cx.simd, factor, values, row);
        };
        forward_pair(cx, attention, qkv, (head, first), scratch, write);
    });
}

/// State of the rows of a query block.
struct OnlineSoftmax {
    max: [f32; QUERY_BLOCK],
    sum: [f32; QUERY_BLOCK],
    /// Factor for the values summed so far.
    rescale: [f32; QUERY_BLOCK],
}

impl OnlineSoftmax {
    /// Returns the factor of the values of a finished row, and the logarithm of its sum of exponentials. Both are 0 for
    /// a query that attends to no key: its output is 0, and so are the probabilities that the backward pass recomputes.
    fn row(&self, row: usize) -> (f32, f32) {
        let (max, sum) = (self.max[row], self.sum[row]);
        if max == f32::NEG_INFINITY { (0.0, 0.0) } else { (1.0 / sum, max + libm::logf(sum)) }
    }
}

/// Computes one head of one sample, for the queries from `first` on and perhaps some before. `write` receives the rows
/// of the output: token, factor and logarithm of [`OnlineSoftmax::row`], values.
#[allow(clippy::too_many_arguments)]
fn forward_pair(
    cx: Context<'_>,
    attention: &AttentionParams<'_>,
    qkv: Qkv<'_>,
    (pair, first): (usize, usize),
    scratch: &mut HeadScratch,
    mut write: impl FnMut(usize, (f32, f32), &[f32]),
) {
    let Context { simd, precision, .. } = cx;
    let (tokens, key_tokens, dim) = (attention.tokens, attention.key_tokens, attention.head_dim);
    let [q_left, k_right, v_right, scores, acc, ..] = &mut scratch.buffers;
    let layout = qkv.layout;
    let view = |offset| attention.key_head(qkv.keys, layout.key_stride, offset, pair);
    let queries = attention.head(qkv.queries, layout.row_stride, layout.q, pair);
    let biases = attention.biases_by_distance(pair, &mut scratch.biases);

    let q = left_rows(simd, precision, queries, q_left);
    let k_right = k_right.resize(PanelBlock::right_len(simd, key_tokens, dim));
    let k = PanelBlock::pack_right(simd, precision, view(layout.k).t(), k_right);
    let v = RowBlocks::pack(simd, precision, view(layout.v), KEY_BLOCK, v_right);
    let scores = scores.resize(QUERY_BLOCK * KEY_BLOCK);
    let acc = acc.resize(QUERY_BLOCK * dim);
    let dropout = attention.head_dropout(pair);
    let adjustment = ScoreAdjustment::of(attention, pair, biases);
    let scale = if adjustment.is_some() { 1.0 } else { attention.scale };

    let height = LeftOperand::height(simd);
    for q_first in (first / height * height..tokens).step_by(QUERY_BLOCK) {
        let rows = QUERY_BLOCK.min(tokens - q_first);
        let mut running = OnlineSoftmax {
            max: [f32::NEG_INFINITY; QUERY_BLOCK],
            sum: [0.0; QUERY_BLOCK],
            rescale: [0.0; QUERY_BLOCK],
        };
        acc.fill(0.0);
        for (index, k_first) in attention.key_blocks(q_first, rows).enumerate() {
            let block = AttentionBlock::new(attention, q_first, k_first);
            block.queries_by_keys(simd, q, k, scores);
            if let Some(adjustment) = adjustment {
                adjustment.apply(simd, block, scores);
            }
            softmax_rows(simd, block, scale, dropout, precision, scores, &mut running);
            if index > 0 {
                for (row, factor) in acc.chunks_exact_mut(dim).zip(&running.rescale[..rows]) {
                    elementwise::scale(simd, *factor, row);
                }
            }
            block.times_keys(simd, scores, v.block(k_first), dim, acc);
        }
        for (i, values) in acc.chunks_exact(dim).enumerate().take(rows) {
            write(q_first + i, running.row(i), values);
        }
    }
}

simd_fn! {
    /// Replaces scores by exp(scale · score - running maximum), zero where a query does not attend, with dropout if
    /// any, and rounded to `precision`. The running sums are those before dropout and rounding.
    fn softmax_rows(
        block: AttentionBlock,
        scale: f32,
        dropout: Option<(DropoutMask, u64)>,
        precision: Precision,
        scores: &mut [f32],
        running: &mut OnlineSoftmax,
    ) {
        for (i, row) in scores.chunks_exact_mut(KEY_BLOCK).enumerate().take(block.rows) {
            let visible = block.visible(i);
            let padded = visible.next_multiple_of(REDUCTION_LANES);
            row[visible..padded].fill(f32::NEG_INFINITY);
            row[padded..block.keys.max(padded)].fill(0.0);
            let (vectors, _) = row[..padded].as_chunks_mut::<REDUCTION_LANES>();

            let mut highest = [f32::NEG_INFINITY; REDUCTION_LANES];
            for vector in vectors.iter_mut() {
                for (highest, x) in highest.iter_mut().zip(vector) {
                    *x *= scale;
                    *highest = if *x > *highest { *x } else { *highest };
                }
            }
            let highest = max_lanes(highest).max(running.max[i]);
            // A window or a mask may leave no key of this block to the row: all probabilities are then 0.
            let max = if highest == f32::NEG_INFINITY { 0.0 } else { highest };
            let mut sums = [0.0f32; REDUCTION_LANES];
            for vector in vectors.iter_mut() {
                for (sum, x) in sums.iter_mut().zip(vector) {
                    *x = exp(*x - max);
                    *sum += *x;
                }
            }
            let rescale = exp(running.max[i] - max);
            running.sum[i] = running.sum[i].mul_add(rescale, sum_lanes(sums));
            (running.max[i], running.rescale[i]) = (highest, rescale);
            if let Some((dropout, key)) = dropout {
                let key = subkey(key, (block.q_first + i) as u64);
                for (j, x) in (block.k_first as u32..).zip(row[..padded].iter_mut()) {
                    *x *= dropout.factor(key, j);
                }
            }
            if precision == Precision::Bf16 {
                row[..padded].iter_mut().for_each(|x| *x = bf16::round(*x));
            }
        }
    }
}
