//! Products of one block of queries with one block of keys.

use super::{AttentionParams, KEY_BLOCK, QUERY_BLOCK};
use crate::kernels::buffer::Buffer;
use crate::kernels::gemm::{Accumulate, LeftOperand, PanelBlock, TileRegion, block_product};
use crate::kernels::isa::{Simd, simd_fn};
use crate::kernels::matrix::{MatMut, MatRef};
use crate::numerics::{Precision, bf16};

/// Queries `q_first .. q_first + rows` and keys `k_first .. k_first + keys`; if attention is causal, the last key is
/// not after the last query. Rows of scores and probabilities are [`KEY_BLOCK`] apart.
#[derive(Clone, Copy)]
pub(super) struct AttentionBlock {
    pub q_first: usize,
    pub k_first: usize,
    pub rows: usize,
    pub keys: usize,
    is_causal: bool,
}

impl AttentionBlock {
    /// Creates the block that begins at query `q_first` and key `k_first` of a sample.
    pub(super) fn new(attention: &AttentionParams<'_>, q_first: usize, k_first: usize) -> Self {
        let rows = QUERY_BLOCK.min(attention.tokens - q_first);
        let keys = KEY_BLOCK.min(attention.key_end(q_first + rows - 1) - k_first);
        Self { q_first, k_first, rows, keys, is_causal: attention.causal }
    }

    /// Returns the last key of the block, or of a later block, that query `query` of the sample attends to.
    #[inline(always)]
    fn last_key(self, query: usize) -> usize {
        if self.is_causal { query } else { self.k_first + self.keys - 1 }
    }

    /// out = A Bᵀ over the head's elements, for the queries of A and the keys of B, where any query of a kernel tile
    /// attends to any of its keys. (Q, K) gives scores, (dO, V) the gradient of the probabilities.
    pub(super) fn queries_by_keys(self, simd: Simd, queries: LeftOperand<'_>, keys: PanelBlock<'_>, out: &mut [f32]) {
        let AttentionBlock { q_first, k_first, .. } = self;
        let (height, steps) = (LeftOperand::height(simd), queries.steps());
        let mut out = MatMut::new(out, self.rows, self.keys, KEY_BLOCK);
        let visible = |row: usize, col: usize| match (self.last_key(row) + height).checked_sub(col) {
            Some(cols) if cols > 0 => TileRegion { steps: 0..steps, cols },
            _ => TileRegion::steps(0..0),
        };
        let (rows, cols) = (q_first..q_first + self.rows, k_first..k_first + self.keys);
        block_product(simd, queries, keys, rows, cols, &mut out, Accumulate::Store, visible);
    }

    /// out += P B for a P of queries x keys that is zero where a query does not attend, and B of keys x head. `out` are
    /// the query rows of the block.
    pub(super) fn times_keys(self, simd: Simd, p: &[f32], b: PanelBlock<'_>, dim: usize, out: &mut [f32]) {
        let height = LeftOperand::height(simd);
        let mut out = MatMut::row_major(out, self.rows, dim);
        let p = LeftOperand::strided(p, self.keys, KEY_BLOCK, 1);
        let upto = |row: usize, _| {
            let end = self.last_key(self.q_first + row) + height - self.k_first;
            TileRegion::steps(0..self.keys.min(end))
        };
        block_product(simd, p, b, 0..self.rows, 0..dim, &mut out, Accumulate::Add, upto);
    }

    /// out += Pᵀ B for a P of queries x keys that is zero where a query does not attend, and B of queries x head. `out`
    /// are the key rows of the block.
    pub(super) fn times_queries(self, simd: Simd, p: &[f32], b: PanelBlock<'_>, dim: usize, out: &mut [f32]) {
        let mut out = MatMut::row_major(out, self.keys, dim);
        let p = LeftOperand::strided(p, self.rows, 1, KEY_BLOCK);
        let from = |key: usize, _| {
            let first = if self.is_causal { (self.k_first + key).saturating_sub(self.q_first) } else { 0 };
            TileRegion::steps(first..self.rows)
        };
        block_product(simd, p, b, 0..self.keys, 0..dim, &mut out, Accumulate::Add, from);
    }

    /// Returns the number of keys of the block up to the last that query row `row` attends to: at least one.
    #[inline(always)]
    pub(super) fn visible(self, row: usize) -> usize {
        self.keys.min(self.last_key(self.q_first + row) + 1 - self.k_first)
    }
}

/// A matrix packed as right operands, one for each block of rows.
#[derive(Clone, Copy)]
pub(super) struct RowBlocks<'a> {
    simd: Simd,
    data: &'a [f32],
    rows: usize,
    cols: usize,
    block: usize,
}

impl<'a> RowBlocks<'a> {
    /// Packs blocks of `block` rows.
    pub(super) fn pack(simd: Simd, precision: Precision, m: MatRef<'_>, block: usize, out: &'a mut Buffer) -> Self {
        let (rows, cols) = (m.rows(), m.cols());
        let len = PanelBlock::right_len(simd, cols, block);
        let data = out.resize(len * rows.div_ceil(block));
        for (i, out) in data.chunks_exact_mut(len).enumerate() {
            let first = i * block;
            PanelBlock::pack_right(simd, precision, m.row_range(first, block.min(rows - first)), out);
        }
        RowBlocks { simd, data, rows, cols, block }
    }

    /// The block that begins at row `first`.
    pub(super) fn block(&self, first: usize) -> PanelBlock<'a> {
        let len = PanelBlock::right_len(self.simd, self.cols, self.block);
        let rows = self.block.min(self.rows - first);
        PanelBlock::packed_right(self.simd, self.cols, rows, &self.data[first / self.block * len..])
    }
}

simd_fn! {
    /// Copies a matrix of contiguous rows into `out` without gaps, rounded to `precision`.
    pub(super) fn gather_rows(precision: Precision, m: MatRef<'_>, out: &mut [f32]) {
        for (r, out) in out.chunks_exact_mut(m.cols()).enumerate().take(m.rows()) {
            match precision {
                Precision::F32 => out.iter_mut().zip(m.row(r)).for_each(|(o, x)| *o = *x),
                Precision::Bf16 => out.iter_mut().zip(m.row(r)).for_each(|(o, x)| *o = bf16::round(*x)),
            }
        }
    }
}

/// Returns a head's queries as a left operand, rounded to `precision`.
pub(super) fn left_rows<'a>(simd: Simd, precision: Precision, m: MatRef<'_>, out: &'a mut Buffer) -> LeftOperand<'a> {
    let (rows, cols) = (m.rows(), m.cols());
    let out = out.resize(rows.next_multiple_of(LeftOperand::height(simd)) * cols);
    gather_rows(simd, precision, m, out);
    LeftOperand::strided(out, cols, cols, 1)
}
