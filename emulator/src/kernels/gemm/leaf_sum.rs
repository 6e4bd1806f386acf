//! A tile of C in a product that is summed over leaves, see [`gemm_over_leaves`](super::gemm_over_leaves).
//!
//! Each kernel tile of C is finished before the next one: the products of the leaves are added along the leaf tree in a
//! few tiles of scratch memory, which stay in the first-level cache, and only the last sum is written to C.

use std::ops::Range;

use super::Accumulate;
use super::block::next_panel_stride;
use super::micro::{MicroKernel, Tile, UNROLL_STEPS};
use super::pack::pack_panels;
use super::product::{Product, ThreadScratch};
use crate::kernels::elementwise;
use crate::kernels::isa::Simd;
use crate::kernels::matrix::MatPtr;
use crate::kernels::vector::{CACHE_LINE_ELEMENTS, prefetch};
use crate::tree::Node;

/// Packed operands of all leaves, for the rows of one tile of C and all of its columns.
struct LeafOperands<'a> {
    simd: Simd,
    micro: MicroKernel,
    /// Steps of a leaf.
    steps: usize,
    left: &'a [f32],
    /// Elements of a leaf in `left`.
    left_stride: usize,
    right: &'a [f32],
    /// Elements of a leaf in `right`.
    right_stride: usize,
    /// Elements by which each kernel tile of a column prefetches the next panel.
    next_stride: usize,
}

/// The position of a kernel tile, and how many of its rows and columns exist.
#[derive(Clone, Copy)]
struct TilePosition {
    row: usize,
    col: usize,
    rows: usize,
    cols: usize,
}

impl Product<'_> {
    /// Computes one tile of the sum over all leaves. `halves` are the children of the root of the leaf tree.
    ///
    /// # Safety
    /// `rows` and `cols` are inside C, begin at panels, and no other reference to that part of C exists during the
    /// call.
    pub(super) unsafe fn tile_over_leaves(
        &self,
        halves: (Node, Node),
        rows: Range<usize>,
        cols: Range<usize>,
        scratch: &mut ThreadScratch,
    ) {
        let ThreadScratch { left, separate } = scratch;
        let (mr, nr) = (self.micro.mr, self.micro.nr);
        let (steps, right) = (self.left_layout.block, self.right_layout);
        let left_stride = rows.len().next_multiple_of(mr) * steps;
        let left = left.resize_in_huge_pages(left_stride * self.leaves);
        for (leaf, left) in left.chunks_exact_mut(left_stride).enumerate() {
            let (simd, precision) = (self.cx.simd, self.cx.precision);
            pack_panels(simd, precision, &self.left, self.left_layout, leaf * steps, rows.start / mr, left);
        }
        let operands = LeafOperands {
            simd: self.cx.simd,
            micro: self.micro,
            steps,
            left,
            left_stride,
            right: self.right,
            right_stride: right.offset(steps, 0),
            next_stride: next_panel_stride(self.micro, rows.len()),
        };
        let levels = self.leaves.next_power_of_two().ilog2() as usize;
        let sums = separate.resize((levels + 1) * mr * nr);
        for col in cols.clone().step_by(nr) {
            for row in rows.clone().step_by(mr) {
                let (row_in_tile, tile_rows) = (row - rows.start, mr.min(rows.end - row));
                let at = TilePosition { row: row_in_tile, col, rows: tile_rows, cols: nr.min(cols.end - col) };
                // SAFETY: inside C, by the caller's contract.
                let c = unsafe { self.c.offset(row, col) };
                // SAFETY: the rows exist.
                unsafe { prefetch_tile(c, at) };
                let halves = operands.sums_of_halves(halves, at, sums);
                // SAFETY: a part of the tile, which is inside C and exclusive to this call.
                unsafe { finish(self.cx.simd, c, at, halves, nr, self.accumulate) };
            }
        }
    }
}

impl LeafOperands<'_> {
    /// Computes the sum of the products of the leaves below `node`, in the first tile of `sums`.
    fn sum(&self, node: Node, at: TilePosition, sums: &mut [f32]) {
        let Some((left, right)) = node.children() else { return self.product(node.start, at, sums, false) };
        if right.leaves() == 1 {
            self.sum(left, at, sums);
            return self.product(right.start, at, sums, true);
        }
        let (sum, of_right) = self.sums_of_halves((left, right), at, sums);
        elementwise::add_assign(self.simd, sum, of_right);
    }

    /// Computes the sums of the products of the leaves below two nodes, and returns the tiles of `sums` that have them.
    fn sums_of_halves<'s>(
        &self,
        (left, right): (Node, Node),
        at: TilePosition,
        sums: &'s mut [f32],
    ) -> (&'s mut [f32], &'s [f32]) {
        self.sum(left, at, sums);
        let (of_left, others) = sums.split_at_mut(self.micro.mr * self.micro.nr);
        self.sum(right, at, others);
        let of_right = &others[..of_left.len()];
        (of_left, of_right)
    }

    /// Stores the product of a leaf in the first tile of `sums`, or adds it.
    fn product(&self, leaf: u32, at: TilePosition, sums: &mut [f32], add: bool) {
        let (mr, nr, steps, leaf) = (self.micro.mr, self.micro.nr, self.steps, leaf as usize);
        let a = &self.left[leaf * self.left_stride + at.row * steps..][..mr * steps];
        let panel = leaf * self.right_stride + at.col * steps;
        let b = &self.right[panel..][..nr * steps];
        let c = &mut sums[..mr * nr];
        let prefetched = at.row / mr * (steps / UNROLL_STEPS) * self.next_stride;
        let tile = Tile {
            k: steps,
            a: a.as_ptr(),
            a_strides: (1, mr),
            b: b.as_ptr(),
            next: self.right.as_ptr().wrapping_add(panel + nr * steps + prefetched),
            next_stride: self.next_stride,
            c: c.as_mut_ptr(),
            c_stride: nr,
            rows: at.rows,
            cols: at.cols,
            add,
            bias: std::ptr::null(),
        };
        // SAFETY: A and B have `steps` groups of `mr` and `nr` elements and C has `mr` rows of `nr`, by the slices
        // above; the kernel was created with a `Simd`.
        unsafe { self.micro.run(&tile) };
    }
}

/// Prefetches a kernel tile of C, to which a sum is written soon.
///
/// # Safety
/// `c` points at the first element of the tile, whose rows exist.
unsafe fn prefetch_tile(c: MatPtr, at: TilePosition) {
    for row in 0..at.rows {
        // SAFETY: the first element of a row.
        let row = unsafe { c.at(row, 0) };
        (0..at.cols).step_by(CACHE_LINE_ELEMENTS).for_each(|col| prefetch(row.wrapping_add(col)));
    }
}

/// Stores the sum of two tiles, whose rows are `stride` apart, in a kernel tile of C, or adds it. The addition itself
/// stores to C. Copying a finished sum would be a second pass, with a call of memmove for each row.
///
/// # Safety
/// `c` points at the first element of the tile, whose rows and columns exist, and no other reference to it exists.
unsafe fn finish(
    simd: Simd,
    c: MatPtr,
    at: TilePosition,
    (left, right): (&mut [f32], &[f32]),
    stride: usize,
    accumulate: Accumulate,
) {
    let rows = left.chunks_exact_mut(stride).zip(right.chunks_exact(stride));
    for (row, (left, right)) in rows.take(at.rows).enumerate() {
        // SAFETY: by the caller's contract.
        let c = unsafe { std::slice::from_raw_parts_mut(c.at(row, 0), at.cols) };
        let (left, right) = (&mut left[..at.cols], &right[..at.cols]);
        match accumulate {
            Accumulate::Store => elementwise::add(simd, left, right, c),
            Accumulate::Add => {
                elementwise::add_assign(simd, left, right);
                elementwise::add_assign(simd, c, left);
            }
        }
    }
}
