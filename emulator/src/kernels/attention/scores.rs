//! Changes of the scores before the softmax: linear and trained biases, soft-capping, the sliding window, and spans and
//! mask of keys.

use super::block::AttentionBlock;
use super::{AttentionParams, KEY_BLOCK};
use crate::kernels::isa::simd_fn;
use crate::kernels::math::tanh;

/// Returns the factor of the distance in the bias of head `head` of `heads`: 2^(-8 (head + 1) / heads) if that number
/// is a power of two. Otherwise the first heads have the slopes of the largest power of two below, and the others every
/// second slope of twice that. Source: Press et al., "Train Short, Test Long" (2021), and its published code.
pub fn alibi_slope(heads: usize, head: usize) -> f32 {
    let full = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let exponent = match head.checked_sub(full) {
        None => 8.0 * (head + 1) as f64 / full as f64,
        Some(rest) => 4.0 * (2 * rest + 1) as f64 / full as f64,
    };
    libm::exp2(-exponent) as f32
}

impl AttentionParams<'_> {
    /// Returns the first key of each block of keys that queries `q_first..q_first + rows` attend to, ascending.
    pub(super) fn key_blocks(&self, q_first: usize, rows: usize) -> impl Iterator<Item = usize> {
        let first = self.window.map_or(0, |window| (q_first + 1).saturating_sub(window));
        let (begin, end) = (first / KEY_BLOCK * KEY_BLOCK, self.key_end(q_first + rows - 1));
        (0..self.sinks.min(begin)).step_by(KEY_BLOCK).chain((begin..end).step_by(KEY_BLOCK))
    }

    /// Returns the end of the keys that query `query` attends to.
    pub(super) fn key_end(&self, query: usize) -> usize {
        if self.causal { query + 1 } else { self.key_tokens }
    }

    /// Returns the first query that attends to key `key`.
    pub(super) fn first_query(&self, key: usize) -> usize {
        if self.causal { key } else { 0 }
    }

    /// Returns the end of the queries that attend to a key of the block that begins at key `k_first`.
    pub(super) fn query_end(&self, k_first: usize) -> usize {
        match self.window {
            Some(window) if k_first >= self.sinks => self.tokens.min((k_first + KEY_BLOCK - 1).saturating_add(window)),
            Some(_) | None => self.tokens,
        }
    }
}

/// What happens to the products of the queries and keys of one head. Without any adjustment, they are only scaled.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreAdjustment<'a> {
    scale: f32,
    /// Added for each token between query and key: 0 or negative.
    per_distance: f32,
    /// Number of keys that a query attends to.
    window: usize,
    /// Number of first keys that a query attends to besides.
    sinks: usize,
    /// Bound of the scores.
    softcap: Option<f32>,
    /// The biases by distance: that of the last query and the first key is the first.
    biases: Option<&'a [f32]>,
    /// Position of the last query.
    last_query: usize,
    /// The mask of the sample's keys.
    key_mask: Option<&'a [i32]>,
    /// The spans of the sample's keys.
    spans: Option<&'a [i32]>,
    /// The numbers of earlier queries that attend to the sample's keys.
    earlier: Option<&'a [i32]>,
}

impl<'a> ScoreAdjustment<'a> {
    /// Returns the adjustment of a pair of sample and query head, if there is one. `biases` are those of the head, by
    /// distance.
    pub fn of(attention: &AttentionParams<'a>, pair: usize, biases: Option<&'a [f32]>) -> Option<Self> {
        let (sample, head) = (pair / attention.heads, pair % attention.heads);
        let of_sample = |integers: &'a [i32]| &integers[sample * attention.key_tokens..][..attention.key_tokens];
        let [key_mask, spans, earlier] =
            [attention.key_mask, attention.spans, attention.earlier].map(|integers| integers.map(of_sample));
        let window = attention.window.filter(|window| *window < attention.tokens);
        let per_distance = if attention.alibi { -alibi_slope(attention.heads, head) } else { 0.0 };
        let softcap = attention.softcap;
        let is_masked = window.is_some() || key_mask.is_some() || spans.is_some();
        let is_needed = is_masked || attention.alibi || softcap.is_some() || biases.is_some();
        let window = window.unwrap_or(usize::MAX);
        let (scale, last_query, sinks) = (attention.scale, attention.tokens - 1, attention.sinks);
        is_needed.then_some(Self {
            scale,
            per_distance,
            window,
            sinks,
            softcap,
            biases,
            last_query,
            key_mask,
            spans,
            earlier,
        })
    }

    /// Replaces the products of a block by scores; those of keys that are masked or outside of the window by
    /// negative infinity.
    pub fn apply(self, simd: crate::kernels::Simd, block: AttentionBlock, scores: &mut [f32]) {
        adjust_rows(simd, block, self, scores);
    }
}

simd_fn! {
    fn adjust_rows(block: AttentionBlock, adjustment: ScoreAdjustment<'_>, scores: &mut [f32]) {
        let ScoreAdjustment { scale, per_distance, window, sinks, softcap, biases, last_query, .. } = adjustment;
        for (i, row) in scores.chunks_exact_mut(KEY_BLOCK).enumerate().take(block.rows) {
            let query = block.q_first + i;
            let distance = query as i32 - block.k_first as i32;
            for (j, x) in (0i32..).zip(&mut row[..block.visible(i)]) {
                *x = x.mul_add(scale, per_distance * (distance - j) as f32);
            }
            if let Some(cap) = softcap {
                let inverse = 1.0 / cap;
                row[..block.visible(i)].iter_mut().for_each(|x| *x = cap * tanh(*x * inverse));
            }
            if let Some(biases) = biases {
                let biases = &biases[block.k_first + last_query - query..];
                row[..block.visible(i)].iter_mut().zip(biases).for_each(|(x, bias)| *x += bias);
            }
            let outside = (query + 1).saturating_sub(window).saturating_sub(block.k_first);
            let (sinks, outside) = (sinks.saturating_sub(block.k_first), outside.min(block.keys));
            row[sinks.min(outside)..outside].fill(f32::NEG_INFINITY);
            if let Some(spans) = adjustment.spans {
                let visible = &mut row[..block.visible(i)];
                for (j, (x, &span)) in (0i32..).zip(visible.iter_mut().zip(&spans[block.k_first..])) {
                    *x = if distance - j > span { f32::NEG_INFINITY } else { *x };
                }
            }
            if let Some(earlier) = adjustment.earlier {
                let visible = &mut row[..block.visible(i)];
                for (j, (x, &count)) in (0i32..).zip(visible.iter_mut().zip(&earlier[block.k_first..])) {
                    *x = if j - distance > count { f32::NEG_INFINITY } else { *x };
                }
            }
            if let Some(mask) = adjustment.key_mask {
                for (x, &mask) in row[..block.visible(i)].iter_mut().zip(&mask[block.k_first..]) {
                    *x = if mask == 0 { f32::NEG_INFINITY } else { *x };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::alibi_slope;

    /// The slopes that the published code of ALiBi returns.
    #[test]
    fn slopes_are_those_of_the_paper() {
        let slopes = |heads| (0..heads).map(|head| alibi_slope(heads, head)).collect::<Vec<_>>();
        assert_eq!(slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        let exponents = [2.0, 4.0, 6.0, 8.0, 1.0, 3.0];
        assert_eq!(slopes(6), exponents.map(|exponent: f32| (-exponent).exp2()));
    }
}
