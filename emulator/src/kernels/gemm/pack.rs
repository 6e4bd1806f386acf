//! Packs an operand in the order in which the innermost kernel reads it.
//!
//! Both operands consist of *lanes* (rows of A, columns of B) times *steps* of the inner index. The packed form has
//! blocks of steps: of [`GEMM_INNER_BLOCK`], or those of one leaf if a product is summed over leaves. A block has
//! panels of `width` lanes; a panel has one group of `width` elements per step. Lanes after the end of the last panel
//! are zero.

use crate::kernels::isa::{Simd, simd_fn};
use crate::kernels::matrix::MatRef;
use crate::kernels::vector::{CACHE_LINE_ELEMENTS, prefetch};
use crate::numerics::{GEMM_INNER_BLOCK, Isa, Precision, bf16};

/// Sizes of a packed operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackLayout {
    pub lanes: usize,
    /// Steps of the inner index.
    pub steps: usize,
    /// Steps of a block; the last one may have fewer.
    pub block: usize,
    /// Lanes of a panel.
    pub width: usize,
}

impl PackLayout {
    /// Number of panels.
    pub(crate) fn panels(self) -> usize {
        self.lanes.div_ceil(self.width)
    }

    /// Elements of the packed form.
    pub(crate) fn len(self) -> usize {
        self.panels() * self.width * self.steps
    }

    /// Steps of the block that begins at step `start`.
    pub(crate) fn block_steps(self, start: usize) -> usize {
        self.block.min(self.steps - start)
    }

    /// Returns the range of panel `panel` of the block that begins at step `start`.
    pub(crate) fn offset(self, start: usize, panel: usize) -> usize {
        self.panels() * self.width * start + panel * self.width * self.block_steps(start)
    }
}

/// An operand to be packed: element (lane, step) is `data[lane * lane_stride + step * step_stride]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackSource<'a> {
    data: &'a [f32],
    lane_stride: usize,
    step_stride: usize,
    lanes: usize,
    steps: usize,
}

impl<'a> PackSource<'a> {
    /// Rows are lanes.
    pub(crate) fn left(a: MatRef<'a>) -> Self {
        PackSource {
            data: a.data(),
            lane_stride: a.row_stride(),
            step_stride: a.col_stride(),
            lanes: a.rows(),
            steps: a.cols(),
        }
    }

    /// Columns are lanes.
    pub(crate) fn right(b: MatRef<'a>) -> Self {
        PackSource::left(b.t())
    }

    /// Returns the layout with panels of `width` lanes of an operand whose steps are those of `leaves` leaves.
    ///
    /// # Panics
    /// If the steps can't be divided by the leaves, or those of several leaves are more than one block each.
    pub(crate) fn layout(&self, width: usize, leaves: usize) -> PackLayout {
        let block = if leaves == 1 { GEMM_INNER_BLOCK } else { self.steps / leaves };
        assert!(
            self.steps.is_multiple_of(leaves) && block <= GEMM_INNER_BLOCK,
            "{} steps of {leaves} leaves",
            self.steps
        );
        PackLayout { lanes: self.lanes, steps: self.steps, block, width }
    }
}

/// Packs panels `first .. first + count` of the block of steps that begins at `start` into `out`, which is exactly
/// their range of the packed form.
pub(crate) fn pack_panels(
    simd: Simd,
    precision: Precision,
    source: &PackSource<'_>,
    layout: PackLayout,
    start: usize,
    first: usize,
    out: &mut [f32],
) {
    let (width, steps) = (layout.width, layout.block_steps(start));
    let count = out.len() / (width * steps).max(1);
    assert!(out.len() == count * width * steps && first + count <= layout.panels());
    let block = PackBlock { source: *source, start, steps, width, first };
    if source.lane_stride == 1 {
        copy_panels(simd, block, out);
    } else if source.step_stride == 1 {
        transpose_panels(simd, block, out);
    } else {
        gather_groups(block, out);
    }
    if precision == Precision::Bf16 {
        round(simd, out);
    }
}

/// Arguments of a packing function.
#[derive(Clone, Copy)]
struct PackBlock<'a> {
    source: PackSource<'a>,
    start: usize,
    steps: usize,
    width: usize,
    first: usize,
}

impl<'a> PackBlock<'a> {
    /// Returns the first lane of panel `panel`, counted from the first one to pack, and the number of its lanes that
    /// exist.
    #[inline(always)]
    fn lanes(&self, panel: usize) -> (usize, usize) {
        let lane = (self.first + panel) * self.width;
        (lane, self.width.min(self.source.lanes - lane))
    }

    /// Returns the source from element (lane, start + step).
    #[inline(always)]
    fn from(&self, lane: usize, step: usize) -> &'a [f32] {
        &self.source.data[lane * self.source.lane_stride + (self.start + step) * self.source.step_stride..]
    }
}

simd_fn! {
    fn round(values: &mut [f32]) {
        for v in values {
            *v = bf16::round(*v);
        }
    }
}

/// Steps packed for all panels before the next ones, so that source rows are read while their pages are in the TLB.
const STRIP_STEPS: usize = 8;

simd_fn! {
    /// Lanes are contiguous: each step's group is a copy.
    fn copy_panels(block: PackBlock<'_>, out: &mut [f32]) {
        match block.width {
            48 => copy_groups::<48>(block, out),
            16 => copy_groups::<16>(block, out),
            8 => copy_groups::<8>(block, out),
            6 => copy_groups::<6>(block, out),
            _ => gather_groups(block, out),
        }
    }
}

/// Copies groups of `W` lanes.
#[inline(always)]
fn copy_groups<const W: usize>(block: PackBlock<'_>, out: &mut [f32]) {
    let panels = out.len() / (W * block.steps);
    let (lane, _) = block.lanes(0);
    let lanes = (panels * W).min(block.source.lanes - lane);
    for strip in (0..block.steps).step_by(STRIP_STEPS) {
        let count = STRIP_STEPS.min(block.steps - strip);
        let rows: [&[f32]; STRIP_STEPS] =
            std::array::from_fn(|i| if i < count { &block.from(lane, strip + i)[..lanes] } else { &[] });
        // Prefetches rows of the strip after the next one: they are too far apart for the hardware prefetcher.
        for step in (strip + 2 * STRIP_STEPS..strip + 3 * STRIP_STEPS).take_while(|step| *step < block.steps) {
            let row = block.from(lane, step).as_ptr();
            (0..lanes).step_by(CACHE_LINE_ELEMENTS).for_each(|i| prefetch(row.wrapping_add(i)));
        }
        for (panel, out) in out.chunks_exact_mut(W * block.steps).enumerate() {
            let groups = out[strip * W..].as_chunks_mut::<W>().0;
            for (group, row) in groups.iter_mut().zip(&rows[..count]) {
                let (blocks, rest) = row.as_chunks::<W>();
                match blocks.get(panel) {
                    Some(lanes) => *group = *lanes,
                    None => {
                        *group = [0.0; W];
                        copy_short(rest, group);
                    }
                }
            }
        }
    }
}

/// Copies a few elements in groups of eight, which is cheaper than a general copy.
#[inline(always)]
fn copy_short(source: &[f32], out: &mut [f32]) {
    let (eights, rest) = source.as_chunks::<8>();
    for (out, eight) in out.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
        *out = *eight;
    }
    for (out, x) in out[eights.len() * 8..].iter_mut().zip(rest) {
        *out = *x;
    }
}

/// Handles any width and any strides: slow but general.
#[inline(always)]
fn gather_groups(block: PackBlock<'_>, out: &mut [f32]) {
    for (panel, out) in out.chunks_exact_mut(block.width * block.steps).enumerate() {
        let (lane, lanes) = block.lanes(panel);
        for (step, group) in out.chunks_exact_mut(block.width).enumerate() {
            let source = block.from(lane, step);
            for (i, g) in group.iter_mut().enumerate() {
                *g = if i < lanes { source[i * block.source.lane_stride] } else { 0.0 };
            }
        }
    }
}

/// Steps are contiguous: groups are columns of the source.
fn transpose_panels(simd: Simd, block: PackBlock<'_>, out: &mut [f32]) {
    for (panel, out) in out.chunks_exact_mut(block.width * block.steps).enumerate() {
        let (lane, lanes) = block.lanes(panel);
        for first in (0..block.width).step_by(SQUARE_LANES) {
            let group = SQUARE_LANES.min(block.width - first);
            let mut done = 0;
            if first + group <= lanes {
                let row = |i: usize| &block.from(lane + first + i.min(group - 1), 0)[..block.steps];
                done = transpose_rows(simd, std::array::from_fn(row), block.width, &mut out[first..]);
            }
            // The remainder: the last steps, and lanes that do not exist.
            for i in first..first + group {
                let column = out[i..].iter_mut().step_by(block.width).skip(done);
                if i < lanes {
                    column.zip(&block.from(lane + i, 0)[done..block.steps]).for_each(|(o, s)| *o = *s);
                } else {
                    column.for_each(|o| *o = 0.0);
                }
            }
        }
    }
}

/// Lanes and steps of the squares that are transposed in registers.
const SQUARE_LANES: usize = 8;

/// Writes columns of `rows` as groups of eight, `width` apart; returns how many. If `width` is below eight, the next
/// group overwrites the end of a group, so the caller has to write some steps at the end.
fn transpose_rows(simd: Simd, rows: [&[f32]; SQUARE_LANES], width: usize, out: &mut [f32]) -> usize {
    let steps = rows[0].len();
    assert!(rows.iter().all(|row| row.len() == steps));
    // The last group begins at (steps - 1) * width.
    let fitting = if out.len() < SQUARE_LANES { 0 } else { steps.min((out.len() - SQUARE_LANES) / width + 1) };
    let squares = fitting / SQUARE_LANES;
    match simd.isa() {
        // SAFETY: a `Simd` above portable exists only if the CPU has AVX2; rows have `squares * 8` elements, and `out`
        // has eight more from the beginning of the last group.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => unsafe {
            x86::transpose_squares(rows.map(<[f32]>::as_ptr), squares, width, out.as_mut_ptr());
            squares * SQUARE_LANES
        },
        _ => 0,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX2; `squares * 8` elements are readable at each row; eight elements are writable at
    /// `out + step * width` for each of these steps.
    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose_squares(mut rows: [*const f32; 8], squares: usize, width: usize, mut out: *mut f32) {
        for _ in 0..squares {
            // SAFETY: by the caller's contract.
            unsafe {
                for half in 0..2 {
                    // Rows i and i + 4 share a register, which leaves a 4 x 4 transposition in each half of it.
                    let pair = |i: usize| {
                        let low = _mm256_castps128_ps256(_mm_loadu_ps(rows[i].add(4 * half)));
                        _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(rows[i + 4].add(4 * half)))
                    };
                    let (a, b, c, d) = (pair(0), pair(1), pair(2), pair(3));
                    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                    _mm256_storeu_ps(out, _mm256_shuffle_ps::<0x44>(ab, cd));
                    _mm256_storeu_ps(out.add(width), _mm256_shuffle_ps::<0xee>(ab, cd));
                    let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                    _mm256_storeu_ps(out.add(2 * width), _mm256_shuffle_ps::<0x44>(ab, cd));
                    _mm256_storeu_ps(out.add(3 * width), _mm256_shuffle_ps::<0xee>(ab, cd));
                    out = out.wrapping_add(4 * width);
                }
                for row in &mut rows {
                    *row = row.add(8);
                }
            }
        }
    }
}
