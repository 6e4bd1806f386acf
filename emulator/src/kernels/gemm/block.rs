//! Products of operands that fit in one block of the inner dimension, on the calling thread.

use std::ops::Range;

use super::Accumulate;
use super::micro::{MicroKernel, Tile, UNROLL_STEPS};
use super::pack::{PackLayout, PackSource, pack_panels};
use crate::kernels::isa::Simd;
use crate::kernels::matrix::{MatMut, MatPtr, MatRef};
use crate::kernels::vector::CACHE_LINE_ELEMENTS;
use crate::numerics::{GEMM_INNER_BLOCK, Precision};

/// Packed panels of at most [`GEMM_INNER_BLOCK`] steps, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelBlock<'a> {
    pub(super) data: &'a [f32],
    pub(super) width: usize,
    pub(super) steps: usize,
}

impl<'a> PanelBlock<'a> {
    /// Returns the elements that a right operand of `steps` rows and `lanes` columns takes.
    pub(crate) fn right_len(simd: Simd, lanes: usize, steps: usize) -> usize {
        one_block(simd, lanes, steps).len()
    }

    /// Packs a right operand of at most [`GEMM_INNER_BLOCK`] rows on the calling thread. `out` has at least the
    /// required length.
    pub(crate) fn pack_right(simd: Simd, precision: Precision, b: MatRef<'_>, out: &'a mut [f32]) -> Self {
        let source = PackSource::right(b);
        let layout = source.layout(MicroKernel::of(simd).nr, 1);
        assert!(layout.steps <= GEMM_INNER_BLOCK, "more than one block of steps");
        let data = &mut out[..layout.len()];
        if !data.is_empty() {
            pack_panels(simd, precision, &source, layout, 0, 0, data);
        }
        PanelBlock { data, width: layout.width, steps: layout.steps }
    }

    /// Returns a view of what [`PanelBlock::pack_right`] wrote to `data`.
    pub(crate) fn packed_right(simd: Simd, lanes: usize, steps: usize, data: &'a [f32]) -> Self {
        let layout = one_block(simd, lanes, steps);
        PanelBlock { data: &data[..layout.len()], width: layout.width, steps }
    }
}

/// Returns the layout of a right operand of at most one block of steps.
fn one_block(simd: Simd, lanes: usize, steps: usize) -> PackLayout {
    PackLayout { lanes, steps, block: GEMM_INNER_BLOCK, width: MicroKernel::of(simd).nr }
}

/// A left operand: packed panels, or an unpacked matrix, which is faster if the cache holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOperand<'a> {
    data: &'a [f32],
    /// Distance between lanes at the start of a panel, and within a panel.
    lane: (usize, usize),
    step: usize,
    steps: usize,
}

impl<'a> From<PanelBlock<'a>> for LeftOperand<'a> {
    fn from(panels: PanelBlock<'a>) -> Self {
        LeftOperand { data: panels.data, lane: (panels.steps, 1), step: panels.width, steps: panels.steps }
    }
}

impl<'a> LeftOperand<'a> {
    /// Creates a view of a matrix in `data`: element (lane, step) is `data[lane * lane_stride + step * step_stride]`.
    /// Kernels read whole tiles, so `data` extends to the end of the last tile, of [`LeftOperand::height`] lanes.
    pub(crate) fn strided(data: &'a [f32], steps: usize, lane_stride: usize, step_stride: usize) -> Self {
        LeftOperand { data, lane: (lane_stride, lane_stride), step: step_stride, steps }
    }

    /// Lanes of a kernel tile.
    pub(crate) fn height(simd: Simd) -> usize {
        MicroKernel::of(simd).mr
    }

    /// Steps of the inner index.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// Returns `mr` lanes from lane `lane` and `count` steps from step `step`.
    #[inline(always)]
    fn at(&self, lane: usize, mr: usize, step: usize, count: usize) -> *const f32 {
        let from = &self.data[lane * self.lane.0 + step * self.step..];
        assert!((mr - 1) * self.lane.1 + (count - 1) * self.step < from.len(), "a left operand that is too short");
        from.as_ptr()
    }
}

/// The part of a kernel tile to compute, for products with triangular operands or results.
pub(crate) struct TileRegion {
    /// Steps to compute; an empty range skips the tile.
    pub steps: Range<usize>,
    /// Columns required; more may be computed.
    pub cols: usize,
}

impl TileRegion {
    /// All columns.
    #[inline(always)]
    pub(crate) fn steps(steps: Range<usize>) -> Self {
        TileRegion { steps, cols: usize::MAX }
    }
}

/// C = A·B or C + A·B for rows `rows` of A and columns `cols` of B, on the calling thread. `part_of(row, col)` returns
/// the required part of the kernel tile that begins there.
///
/// # Panics
/// If C has not the shape of the ranges, or these do not begin at panels.
#[allow(clippy::too_many_arguments)]
pub(crate) fn block_product(
    simd: Simd,
    left: LeftOperand<'_>,
    right: PanelBlock<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    c: &mut MatMut<'_>,
    accumulate: Accumulate,
    part_of: impl Fn(usize, usize) -> TileRegion,
) {
    let micro = MicroKernel::of(simd);
    assert!(c.rows() >= rows.len() && c.cols() >= cols.len(), "shape of C");
    assert!(rows.start.is_multiple_of(micro.mr) && cols.start.is_multiple_of(micro.nr), "ranges begin at panels");
    let add = accumulate == Accumulate::Add;
    // SAFETY: C has all rows and columns and is borrowed by this call.
    unsafe { sweep(micro, left, right, rows, cols, c.target(), add, None, part_of) }
}

/// Returns the elements of the next panel of B that a kernel tile prefetches in [`UNROLL_STEPS`] steps. While the tiles
/// of `rows` rows use a panel, each prefetches its share of the next one, and no more: other lines would take the place
/// of A in the cache.
pub(super) fn next_panel_stride(micro: MicroKernel, rows: usize) -> usize {
    let tiles = rows.div_ceil(micro.mr).max(1);
    (UNROLL_STEPS * micro.nr).div_ceil(tiles).min(CACHE_LINE_ELEMENTS)
}

/// Computes all kernel tiles of a product of packed blocks.
///
/// # Safety
/// `rows` and `cols` begin at panels of `left` and `right`; `c` points at the element (rows.start, cols.start) of a
/// matrix that contains all of them, and no other reference to that part exists during the call.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn sweep(
    micro: MicroKernel,
    left: LeftOperand<'_>,
    right: PanelBlock<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    c: MatPtr,
    add: bool,
    bias: Option<&[f32]>,
    part_of: impl Fn(usize, usize) -> TileRegion,
) {
    assert!(right.width == micro.nr && bias.is_none_or(|bias| bias.len() >= cols.len()));
    let next_stride = next_panel_stride(micro, rows.len());
    for col in cols.clone().step_by(micro.nr) {
        let next_panel = right.data.as_ptr().wrapping_add((col + micro.nr) * right.steps);
        for row in rows.clone().step_by(micro.mr) {
            let TileRegion { steps, cols: requested } = part_of(row, col);
            if steps.is_empty() {
                continue;
            }
            let prefetched = (row - rows.start) / micro.mr * (steps.len() / UNROLL_STEPS) * next_stride;
            let a = left.at(row, micro.mr, steps.start, steps.len());
            let b = &right.data[col * right.steps + steps.start * micro.nr..];
            assert!(steps.end <= left.steps && steps.end <= right.steps && b.len() >= steps.len() * micro.nr);
            // SAFETY: both operands are long enough, by the assertions; the elements of C exist and are exclusive, by
            // the caller's contract; the kernel was created with a `Simd`.
            unsafe {
                micro.run(&Tile {
                    k: steps.len(),
                    a,
                    a_strides: (left.lane.1, left.step),
                    b: b.as_ptr(),
                    next: next_panel.wrapping_add(prefetched),
                    next_stride,
                    c: c.at(row - rows.start, col - cols.start),
                    c_stride: c.row_stride(),
                    rows: micro.mr.min(rows.end - row),
                    cols: micro.nr.min(cols.end - col).min(requested),
                    add,
                    bias: bias.map_or(std::ptr::null(), |bias| bias[col - cols.start..].as_ptr()),
                });
            }
        }
    }
}
