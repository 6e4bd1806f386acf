//! A whole product: C is cut into tiles, each computed by one thread over the whole inner dimension.

use std::ops::Range;

use super::Accumulate;
use super::block::{PanelBlock, TileRegion, sweep};
use super::micro::MicroKernel;
use super::pack::{PackLayout, PackSource, pack_panels};
use crate::kernels::buffer::Buffer;
use crate::kernels::matrix::{MatMut, MatPtr};
use crate::kernels::pool::ComputeThreads;
use crate::kernels::{Context, elementwise};
use crate::numerics::GEMM_INNER_BLOCK;
use crate::tree::Node;

/// Elements of A that a tile uses in one block of steps: half of a second-level cache of 1 MiB.
const MAX_TILE_LEFT_ELEMENTS: usize = 128 * 1024;
/// Maximum columns of a tile. A tile packs its part of A itself while the cache still holds it, so wide tiles are good.
const MAX_TILE_COLS: usize = 3072;
/// With several threads tiles become smaller until there are enough of them: first columns, down to this, then rows.
const MIN_TILE_COLS: usize = 768;
/// Minimum rows of a tile that is cut to occupy all threads.
const MIN_TILE_ROWS: usize = 48;
/// Tiles per thread.
const TILES_PER_THREAD: usize = 4;

/// Scratch memory of a thread.
#[derive(Debug, Default)]
pub(super) struct ThreadScratch {
    pub left: Buffer,
    /// Sums that are not added to C yet.
    pub separate: Buffer,
}

impl ThreadScratch {
    pub(super) fn bytes(&self) -> usize {
        self.left.bytes() + self.separate.bytes()
    }
}

/// A product with a packed right operand. No dimension is zero.
pub(super) struct Product<'a> {
    pub cx: Context<'a>,
    pub micro: MicroKernel,
    /// Leaves over which products are summed, each of one block of steps; 1 for a product that is not such a sum.
    pub leaves: usize,
    pub left: PackSource<'a>,
    pub left_layout: PackLayout,
    pub right: &'a [f32],
    pub right_layout: PackLayout,
    pub c: MatPtr,
    pub accumulate: Accumulate,
    pub bias: Option<&'a [f32]>,
}

impl Product<'_> {
    /// Computes all tiles on the threads of `pool`, with one `scratch` per thread.
    ///
    /// # Safety
    /// C has all rows of the left and columns of the right operand, and no other reference to it exists during the
    /// call.
    pub(super) unsafe fn run(&self, pool: &ComputeThreads, scratch: &mut Vec<ThreadScratch>) {
        let (tile_rows, tile_cols) = self.tile_shape(pool.threads());
        let (m, n) = (self.left_layout.lanes, self.right_layout.lanes);
        if scratch.len() < pool.threads() {
            scratch.resize_with(pool.threads(), ThreadScratch::default);
        }
        let across = n.div_ceil(tile_cols);
        let halves = Node::new(0, self.leaves as u32).children();
        pool.for_each_tile_with(scratch, m.div_ceil(tile_rows) * across, |scratch, tile| {
            let (row, col) = (tile / across * tile_rows, tile % across * tile_cols);
            let (rows, cols) = (row..(row + tile_rows).min(m), col..(col + tile_cols).min(n));
            // SAFETY: tiles are disjoint, inside C, and each is computed once.
            unsafe {
                match halves {
                    None => self.tile(rows, cols, scratch),
                    Some(halves) => self.tile_over_leaves(halves, rows, cols, scratch),
                }
            }
        });
    }

    /// Returns rows and columns of a tile: of equal size, and enough tiles for all threads.
    fn tile_shape(&self, threads: usize) -> (usize, usize) {
        let (m, n) = (self.left_layout.lanes, self.right_layout.lanes);
        let (mr, nr) = (self.micro.mr, self.micro.nr);
        let mut down = m.div_ceil(MAX_TILE_LEFT_ELEMENTS / self.left_layout.steps.min(GEMM_INNER_BLOCK));
        let mut across = n.div_ceil(MAX_TILE_COLS);
        while threads > 1 && down * across < TILES_PER_THREAD * threads {
            if n / across > MIN_TILE_COLS {
                across += 1;
            } else if m / down > MIN_TILE_ROWS {
                down += 1;
            } else if n / across > 2 * nr {
                across += 1;
            } else {
                break;
            }
        }
        let even = |len: usize, parts: usize, unit: usize| len.div_ceil(parts).next_multiple_of(unit);
        (even(m, down, mr), even(n, across, nr))
    }

    /// Computes one tile over the whole inner dimension.
    ///
    /// # Safety
    /// `rows` and `cols` are inside C, begin at panels, and no other reference to that part of C exists during the
    /// call.
    unsafe fn tile(&self, rows: Range<usize>, cols: Range<usize>, scratch: &mut ThreadScratch) {
        let ThreadScratch { left, separate } = scratch;
        let steps = self.left_layout.steps;
        let add = self.accumulate == Accumulate::Add;
        if add && steps > GEMM_INNER_BLOCK {
            // The blocks are added up separately, because (c + x) + y differs from c + (x + y).
            let (height, width) = (rows.len(), cols.len());
            let mut separate = MatMut::row_major(separate.resize(height * width), height, width);
            let target = separate.target();
            for start in (0..steps).step_by(GEMM_INNER_BLOCK) {
                // SAFETY: the buffer has the shape of the tile and is exclusive to this call.
                unsafe { self.block(start, rows.clone(), cols.clone(), target, start > 0, None, left) };
            }
            for (row, sum) in rows.zip(separate.iter_rows()) {
                // SAFETY: a row of the tile, exclusive to this call.
                let c = unsafe { std::slice::from_raw_parts_mut(self.c.at(row, cols.start), width) };
                elementwise::add_assign(self.cx.simd, c, sum);
                if let Some(bias) = self.bias {
                    elementwise::add_assign(self.cx.simd, c, &bias[cols.clone()]);
                }
            }
            return;
        }
        // SAFETY: inside C by the caller's contract.
        let corner = unsafe { self.c.offset(rows.start, cols.start) };
        for start in (0..steps).step_by(GEMM_INNER_BLOCK) {
            let last = start + GEMM_INNER_BLOCK >= steps;
            let bias = self.bias.filter(|_| last).map(|bias| &bias[cols.clone()]);
            // SAFETY: the tile is inside C and exclusive to this call.
            unsafe { self.block(start, rows.clone(), cols.clone(), corner, add || start > 0, bias, left) };
        }
    }

    /// One tile's block of the inner dimension; `c` points at the tile's first element.
    ///
    /// # Safety
    /// As for [`Product::tile`], for `c`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn block(
        &self,
        start: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        c: MatPtr,
        add: bool,
        bias: Option<&[f32]>,
        left: &mut Buffer,
    ) {
        let Context { simd, precision, .. } = self.cx;
        let (width, steps) = (self.micro.mr, self.left_layout.block_steps(start));
        let left = left.resize_in_huge_pages(rows.len().next_multiple_of(width) * steps);
        pack_panels(simd, precision, &self.left, self.left_layout, start, rows.start / width, left);
        let left = PanelBlock { data: left, width, steps };
        let (from, len) =
            (self.right_layout.offset(start, 0), self.right_layout.panels() * self.right_layout.width * steps);
        let right = PanelBlock { data: &self.right[from..from + len], width: self.right_layout.width, steps };
        let part = |_, _| TileRegion::steps(0..steps);
        // SAFETY: passed on.
        unsafe { sweep(self.micro, left.into(), right, 0..rows.len(), cols, c, add, bias, part) }
    }
}
