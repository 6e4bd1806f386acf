//! The backward pass: probabilities are recomputed from the saved logarithms.
//!
//! With P the probabilities, F the dropout factors, D the row sums of dO ∘ O:
//! dV = (P∘F)ᵀ dO, dS = P ∘ (F ∘ dO Vᵀ - D), dQ = scale · dS K, dK = scale · dSᵀ Q.

use super::block::{AttentionBlock, RowBlocks, left_rows};
use super::scores::ScoreAdjustment;
use super::{
    AttentionParams, AttentionWorkspace, HeadScratch, KEY_BLOCK, QUERY_BLOCK, Qkv, QkvGradient, QkvLayout, SharedRows,
};
use crate::kernels::elementwise::add_assign;
use crate::kernels::gemm::PanelBlock;
use crate::kernels::isa::{REDUCTION_LANES, Simd, simd_fn, sum_lanes};
use crate::kernels::math::exp;
use crate::kernels::matrix::MatRef;
use crate::kernels::{ComputeThreads, Context};
use crate::numerics::random::{DropoutMask, subkey};
use crate::numerics::{Precision, bf16};

/// Gradients of queries, keys and values, stored to `dqkv`, which has the layout of `qkv`. `out` and `lse` are those
/// of [`forward()`](super::forward()), `dout` is the gradient of `out`; `partial` is scratch memory of
/// [`AttentionParams::partial_len`] elements. With trained biases it receives their gradients: those of each bucket,
/// for each head of each sample.
///
/// # Panics
/// If lengths do not match.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    cx: Context<'_>,
    attention: &AttentionParams<'_>,
    qkv: Qkv<'_>,
    out: &[f32],
    lse: &[f32],
    dout: &[f32],
    dqkv: QkvGradient<'_>,
    partial: &mut [f32],
    workspace: &mut AttentionWorkspace,
) {
    attention.check();
    let (hidden, pairs) = (attention.hidden(), attention.samples * attention.heads);
    assert_eq!((out.len(), dout.len()), (attention.rows() * hidden, attention.rows() * hidden));
    assert_eq!(lse.len(), attention.saved_len());
    assert!(partial.len() >= attention.partial_len());
    if out.is_empty() {
        return;
    }
    let dim = attention.head_dim;
    let layout = qkv.layout;
    let inputs = BackwardInputs { qkv, out, lse, dout };
    let is_shared = attention.group() > 1;
    let (dqueries, dkeys) = match dqkv {
        QkvGradient::Together(gradient) => {
            let rows = FlatRows::new(gradient);
            (rows, rows)
        }
        QkvGradient::Separate { queries, keys } => (FlatRows::new(queries), FlatRows::new(keys)),
    };
    let partial = FlatRows::new(partial);
    let scratch = workspace.for_threads(cx.pool.threads());
    cx.pool.for_each_tile_with(scratch, pairs, |scratch, pair| {
        let (sample, head) = (pair / attention.heads, pair % attention.heads);
        let write = |target: &FlatRows, stride: usize, offset: usize, values: &[f32]| {
            let tokens = values.len() / dim;
            for (token, values) in values.chunks_exact(dim).enumerate() {
                let row = (sample * tokens + token) * stride;
                // SAFETY: each pair has its own columns of its sample's rows; the layout's parts do not overlap.
                unsafe { target.segment(row + offset + head * dim, dim) }.copy_from_slice(values);
            }
        };
        let PairGradients { dq, dk, dv, dbiases } =
            backward_pair(cx.simd, cx.precision, attention, inputs, pair, scratch);
        write(&dqueries, layout.row_stride, layout.q, dq);
        if let Some(relative) = attention.relative {
            // SAFETY: each pair has its own sums.
            let sums = unsafe { partial.segment(pair * relative.buckets, relative.buckets) };
            relative.sum_buckets(attention, dbiases, sums);
        }
        if is_shared {
            write(&partial, 2 * hidden, 0, dk);
            write(&partial, 2 * hidden, hidden, dv);
        } else {
            write(&dkeys, layout.key_stride, layout.k, dk);
            write(&dkeys, layout.key_stride, layout.v, dv);
        }
    });
    if is_shared {
        sum_groups(cx.simd, cx.pool, attention, layout, &partial, &dkeys);
    }
}

/// A slice to whose ranges several threads write. The three parts of a row of a [`QkvLayout`] may be in different rows
/// of the slice, so it is addressed as one row.
#[derive(Clone, Copy)]
struct FlatRows(SharedRows);

impl FlatRows {
    fn new(data: &mut [f32]) -> Self {
        let elements = data.len();
        FlatRows(SharedRows::new(data, 1, elements, elements))
    }

    /// Returns a range of elements.
    ///
    /// # Safety
    /// As [`SharedRows::segment`].
    #[allow(clippy::mut_from_ref)]
    unsafe fn segment(&self, first: usize, len: usize) -> &mut [f32] {
        // SAFETY: the caller's contract.
        unsafe { self.0.segment(0, first, len) }
    }
}

/// Adds up the gradients of keys and values of the query heads that share them, in ascending order.
fn sum_groups(
    simd: Simd,
    pool: &ComputeThreads,
    attention: &AttentionParams<'_>,
    layout: QkvLayout,
    partial: &FlatRows,
    dkeys: &FlatRows,
) {
    let (hidden, dim, group) = (attention.hidden(), attention.head_dim, attention.group());
    pool.for_each_tile(attention.samples * attention.key_tokens, |row| {
        for (offset, from) in [(layout.k, 0), (layout.v, hidden)] {
            for head in 0..attention.key_heads {
                // SAFETY: each row is written by one thread, and no thread writes `partial` any more.
                let sum = unsafe { dkeys.segment(row * layout.key_stride + offset + head * dim, dim) };
                for member in 0..group {
                    let first = 2 * row * hidden + from + (head * group + member) * dim;
                    // SAFETY: as above.
                    let part = unsafe { partial.segment(first, dim) };
                    if member == 0 { sum.copy_from_slice(part) } else { add_assign(simd, sum, part) }
                }
            }
        }
    });
}

/// What the backward pass reads.
#[derive(Clone, Copy)]
struct BackwardInputs<'a> {
    qkv: Qkv<'a>,
    out: &'a [f32],
    lse: &'a [f32],
    dout: &'a [f32],
}

/// Gradients of one head of one sample.
struct PairGradients<'s> {
    /// Of the queries, tokens x head_dim.
    dq: &'s [f32],
    /// Of keys and values, key tokens x head_dim each.
    dk: &'s [f32],
    dv: &'s [f32],
    /// Of the trained biases, by distance.
    dbiases: &'s [f32],
}

/// Computes one head of one sample.
fn backward_pair<'s>(
    simd: Simd,
    precision: Precision,
    attention: &AttentionParams<'_>,
    inputs: BackwardInputs<'_>,
    pair: usize,
    scratch: &'s mut HeadScratch,
) -> PairGradients<'s> {
    let (tokens, key_tokens, dim) = (attention.tokens, attention.key_tokens, attention.head_dim);
    let hidden = attention.hidden();
    let [q_left, k_cols, do_left, v_cols, k_rows, q_rows, do_rows, scores, dprobs, sums, dq, dk, dv] =
        &mut scratch.buffers;
    let QkvLayout { row_stride, key_stride, q, k, v } = inputs.qkv.layout;
    let q = attention.head(inputs.qkv.queries, row_stride, q, pair);
    let [k, v] = [k, v].map(|offset| attention.key_head(inputs.qkv.keys, key_stride, offset, pair));
    let dout = attention.head(inputs.dout, hidden, 0, pair);
    let out = attention.head(inputs.out, hidden, 0, pair);

    let rights = PanelBlock::right_len(simd, key_tokens, dim);
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
    let [dq, dk, dv] = [(dq, tokens), (dk, key_tokens), (dv, key_tokens)].map(|(buffer, tokens)| {
        let gradient = buffer.resize(tokens * dim);
        gradient.fill(0.0);
        gradient
    });

    let biases = attention.biases_by_distance(pair, &mut scratch.biases);
    let dbiases = scratch.bias_gradients.resize(biases.map_or(0, <[f32]>::len));
    dbiases.fill(0.0);
    let adjustment = ScoreAdjustment::of(attention, pair, biases);
    let score_scale = if adjustment.is_some() { 1.0 } else { attention.scale };
    for k_first in (0..key_tokens).step_by(KEY_BLOCK) {
        let q_end = attention.query_end(k_first);
        for q_first in (attention.first_query(k_first)..q_end).step_by(QUERY_BLOCK) {
            let block = AttentionBlock::new(attention, q_first, k_first);
            let rows = block.rows;
            block.queries_by_keys(simd, q_left, k_cols, scores);
            block.queries_by_keys(simd, do_left, v_cols, dprobs);
            if let Some(adjustment) = adjustment {
                adjustment.apply(simd, block, scores);
            }
            let row_values = (&lse[q_first..q_first + rows], &sums[q_first..q_first + rows]);
            let scales = (score_scale, attention.scale);
            if attention.softcap.is_some() || attention.relative.is_some() {
                let of_scores =
                    ScoreGradients { softcap: attention.softcap, last_query: tokens - 1, dbiases: &mut *dbiases };
                adjusted_gradient_rows(
                    simd, block, scales.1, dropout, precision, row_values, scores, dprobs, of_scores,
                );
            } else {
                gradient_rows(simd, block, scales, dropout, precision, row_values, scores, dprobs);
            }

            let (queries, keys) = (q_first * dim..(q_first + rows) * dim, k_first * dim..(k_first + block.keys) * dim);
            block.times_queries(simd, scores, do_rows.block(q_first), dim, &mut dv[keys.clone()]);
            block.times_queries(simd, dprobs, q_rows.block(q_first), dim, &mut dk[keys]);
            block.times_keys(simd, dprobs, k_rows.block(k_first), dim, &mut dq[queries]);
        }
    }
    PairGradients { dq, dk, dv, dbiases }
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
    /// `scores` becomes P∘F and `dprobs`, on entry dO Vᵀ, becomes scale · dS; both zero where a query does not
    /// attend, and rounded to `precision`. `scales` are the factors of `scores` and of dS, `row_values` the rows' lse
    /// and D.
    fn gradient_rows(
        block: AttentionBlock,
        scales: (f32, f32),
        dropout: Option<(DropoutMask, u64)>,
        precision: Precision,
        row_values: (&[f32], &[f32]),
        scores: &mut [f32],
        dprobs: &mut [f32],
    ) {
        let (score_scale, scale) = scales;
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
                        *p = exp(p.mul_add(score_scale, -lse));
                        *dp = *p * (*dp - dot) * scale;
                    }
                }
                Some((dropout, key)) => {
                    let key = subkey(key, (block.q_first + i) as u64);
                    for (j, (p, dp)) in (block.k_first as u32..).zip(visible) {
                        let factor = dropout.factor(key, j);
                        let probability = exp(p.mul_add(score_scale, -lse));
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

/// What the gradients of adjusted scores need and become.
struct ScoreGradients<'a> {
    softcap: Option<f32>,
    /// Position of the last query.
    last_query: usize,
    /// Sums of the gradients of scores, by distance; empty without trained biases.
    dbiases: &'a mut [f32],
}

simd_fn! {
    /// As `gradient_rows`, for scores that are soft-capped or have trained biases, whose gradients are added up.
    fn adjusted_gradient_rows(
        block: AttentionBlock,
        scale: f32,
        dropout: Option<(DropoutMask, u64)>,
        precision: Precision,
        row_values: (&[f32], &[f32]),
        scores: &mut [f32],
        dprobs: &mut [f32],
        of_scores: ScoreGradients<'_>,
    ) {
        let ScoreGradients { softcap, last_query, dbiases } = of_scores;
        let inverse = softcap.map_or(0.0, |cap| 1.0 / cap);
        let rows = scores.chunks_exact_mut(KEY_BLOCK).zip(dprobs.chunks_exact_mut(KEY_BLOCK));
        for (i, ((p, dp), (&lse, &dot))) in rows.zip(row_values.0.iter().zip(row_values.1)).enumerate() {
            let visible = block.visible(i);
            let end = block.keys.max(visible.next_multiple_of(REDUCTION_LANES));
            p[visible..end].fill(0.0);
            dp[visible..end].fill(0.0);
            let (p, dp) = (&mut p[..visible], &mut dp[..visible]);
            if let Some((dropout, key)) = dropout {
                let key = subkey(key, (block.q_first + i) as u64);
                for (j, (p, dp)) in (block.k_first as u32..).zip(p.iter_mut().zip(dp.iter_mut())) {
                    let (factor, capped) = (dropout.factor(key, j), if *p == f32::NEG_INFINITY { 0.0 } else { *p });
                    let probability = exp(*p - lse);
                    let tangent = capped * inverse;
                    *dp = probability * dp.mul_add(factor, -dot) * tangent.mul_add(-tangent, 1.0);
                    *p = probability * factor;
                }
            } else {
                for (p, dp) in p.iter_mut().zip(dp.iter_mut()) {
                    let capped = if *p == f32::NEG_INFINITY { 0.0 } else { *p };
                    let tangent = capped * inverse;
                    *p = exp(*p - lse);
                    *dp = *p * (*dp - dot) * tangent.mul_add(-tangent, 1.0);
                }
            }
            if !dbiases.is_empty() {
                let dbiases = &mut dbiases[block.k_first + last_query - (block.q_first + i)..];
                dbiases.iter_mut().zip(dp.iter()).for_each(|(sum, dp)| *sum += dp);
            }
            dp.iter_mut().for_each(|dp| *dp *= scale);
            if precision == Precision::Bf16 {
                p.iter_mut().for_each(|p| *p = bf16::round(*p));
                dp.iter_mut().for_each(|dp| *dp = bf16::round(*dp));
            }
        }
    }
}
