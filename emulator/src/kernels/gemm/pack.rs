//! Packs an operand in the order in which the innermost kernel reads it.
//!
//! Both operands consist of *lanes* (rows of A, columns of B) times *steps* of the inner index. The packed form has
//! blocks of steps: of [`GEMM_INNER_BLOCK`], or those of one leaf if a product is summed over leaves. A block has
//! panels of `width` lanes; a panel has one group of `width` elements per step. Lanes after the end of the last panel
//! are zero.

use std::ops::Range;

use crate::kernels::Context;
use crate::kernels::isa::{Simd, simd_fn};
use crate::kernels::matrix::MatRef;
use crate::kernels::pool::rows_mut;
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

/// An operand to be packed, or a part of one that begins at a lane and a step: element (lane, step) of the operand is
/// `data[(lane - first_lane) * lane_stride + (step - first_step) * step_stride]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackSource<'a> {
    data: &'a [f32],
    lane_stride: usize,
    step_stride: usize,
    first_lane: usize,
    lanes: usize,
    first_step: usize,
    steps: usize,
}

impl<'a> PackSource<'a> {
    /// Rows are lanes.
    pub(crate) fn left(a: MatRef<'a>) -> Self {
        PackSource {
            data: a.data(),
            lane_stride: a.row_stride(),
            step_stride: a.col_stride(),
            first_lane: 0,
            lanes: a.rows(),
            first_step: 0,
            steps: a.cols(),
        }
    }

    /// Columns are lanes.
    pub(crate) fn right(b: MatRef<'a>) -> Self {
        PackSource::left(b.t())
    }

    /// Makes this the part of a larger operand that begins at `lane` and `step`.
    pub(crate) fn starting_at(self, lane: usize, step: usize) -> Self {
        PackSource { first_lane: lane, first_step: step, ..self }
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

    /// Returns the part that lies in panels `first .. first + count` of the block of steps that begins at `start`.
    fn part(&self, layout: PackLayout, start: usize, first: usize, count: usize) -> PanelPart<'a> {
        let (width, block_steps) = (layout.width, layout.block_steps(start));
        let lanes = intersection(&self.lanes(), &(first * width..(first + count) * width));
        let steps = intersection(&self.steps(), &(start..start + block_steps));
        let offset =
            (lanes.start - self.first_lane) * self.lane_stride + (steps.start - self.first_step) * self.step_stride;
        PanelPart {
            data: if lanes.is_empty() || steps.is_empty() { &[] } else { &self.data[offset..] },
            lane_stride: self.lane_stride,
            step_stride: self.step_stride,
            is_last: lanes.end == layout.lanes,
            lane: lanes.start - first * width,
            lanes: lanes.len(),
            step: steps.start - start,
            steps: steps.len(),
            width,
            block_steps,
        }
    }

    fn lanes(&self) -> Range<usize> {
        self.first_lane..self.first_lane + self.lanes
    }

    fn steps(&self) -> Range<usize> {
        self.first_step..self.first_step + self.steps
    }
}

/// Returns what two ranges have in common; an empty range at the start of the later one if nothing.
fn intersection(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// Lanes copied in one work item: long runs of each source row.
const COPY_GRAIN_LANES: usize = 384;
/// Lanes transposed in one work item.
const TRANSPOSE_GRAIN_LANES: usize = 48;

/// Packs an operand, or a part of one, into `out`, the memory of the whole operand.
pub(crate) fn pack_all(cx: Context<'_>, source: &PackSource<'_>, layout: PackLayout, out: &mut [f32]) {
    let PackLayout { width, block, .. } = layout;
    let (lanes, steps) = (source.lanes(), source.steps());
    let panels = lanes.start / width..lanes.end.div_ceil(width);
    let grain_lanes = if source.step_stride == 1 { TRANSPOSE_GRAIN_LANES } else { COPY_GRAIN_LANES };
    let grain = (grain_lanes / width).max(1);
    for start in (steps.start / block.max(1) * block..steps.end).step_by(block.max(1)) {
        let panel_len = width * layout.block_steps(start);
        let out = &mut out[layout.offset(start, panels.start)..layout.offset(start, panels.end)];
        cx.pool.for_each_rows(panels.len(), grain, rows_mut(out, panel_len), |first, out| {
            pack_panels(cx.simd, cx.precision, source, layout, start, panels.start + first, out.data);
        });
    }
}

/// Packs panels `first .. first + count` of the block of steps that begins at `start` into `out`, which is exactly
/// their range of the packed form. If the source is a part of an operand, other elements of `out` keep their values.
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
    let part = source.part(layout, start, first, count);
    if part.lanes == 0 || part.steps == 0 {
        return;
    }
    if part.lane_stride == 1 && part.has_whole_panels() {
        copy_panels(simd, part, out);
    } else if part.step_stride == 1 {
        transpose_panels(simd, part, out);
    } else {
        gather_panels(part, out);
    }
    if precision == Precision::Bf16 {
        round(simd, out);
    }
}

/// The part of an operand that lies in some panels of one block.
#[derive(Clone, Copy)]
struct PanelPart<'a> {
    /// From the first element of the part on.
    data: &'a [f32],
    lane_stride: usize,
    step_stride: usize,
    /// First lane of the part, counted from the first lane of the panels.
    lane: usize,
    lanes: usize,
    /// Whether the part has the last lane of the operand. Lanes after it are zero.
    is_last: bool,
    /// First step of the part, counted from the first step of the block.
    step: usize,
    steps: usize,
    width: usize,
    block_steps: usize,
}

impl<'a> PanelPart<'a> {
    /// Returns the source from an element on, counted from the first one of the part.
    #[inline(always)]
    fn from(&self, lane: usize, step: usize) -> &'a [f32] {
        &self.data[lane * self.lane_stride + step * self.step_stride..]
    }

    /// Returns whether all lanes of its panels are in the part, except those after the end of the operand.
    fn has_whole_panels(&self) -> bool {
        self.lane == 0 && (self.is_last || self.lanes.is_multiple_of(self.width))
    }

    /// Returns the panels that have lanes of the part: the lanes of the part in each panel, and the panel from the
    /// first step of the part on.
    #[inline(always)]
    fn panels<'o>(&self, out: &'o mut [f32]) -> impl Iterator<Item = (Range<usize>, &'o mut [f32])> + use<'o> {
        let Self { lane, lanes, step, width, block_steps, .. } = *self;
        let panels = out.chunks_exact_mut(width * block_steps).enumerate();
        panels.filter_map(move |(panel, out)| {
            let part = intersection(&(lane..lane + lanes), &(panel * width..(panel + 1) * width));
            let in_panel = part.start - panel * width..part.end - panel * width;
            (!part.is_empty()).then(|| (in_panel, &mut out[step * width..]))
        })
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
    /// Lanes are contiguous, and panels are whole: each step's group is a copy.
    fn copy_panels(part: PanelPart<'_>, out: &mut [f32]) {
        match part.width {
            48 => copy_groups::<48>(part, out),
            16 => copy_groups::<16>(part, out),
            8 => copy_groups::<8>(part, out),
            6 => copy_groups::<6>(part, out),
            _ => gather_panels(part, out),
        }
    }
}

/// Copies groups of `W` lanes.
#[inline(always)]
fn copy_groups<const W: usize>(part: PanelPart<'_>, out: &mut [f32]) {
    let panel_len = W * part.block_steps;
    let out = &mut out[..part.lanes.div_ceil(W) * panel_len];
    for strip in (0..part.steps).step_by(STRIP_STEPS) {
        let count = STRIP_STEPS.min(part.steps - strip);
        let rows: [&[f32]; STRIP_STEPS] =
            std::array::from_fn(|i| if i < count { &part.from(0, strip + i)[..part.lanes] } else { &[] });
        // Prefetches rows of the strip after the next one: they are too far apart for the hardware prefetcher.
        for step in (strip + 2 * STRIP_STEPS..strip + 3 * STRIP_STEPS).take_while(|step| *step < part.steps) {
            let row = part.from(0, step).as_ptr();
            (0..part.lanes).step_by(CACHE_LINE_ELEMENTS).for_each(|i| prefetch(row.wrapping_add(i)));
        }
        for (panel, out) in out.chunks_exact_mut(panel_len).enumerate() {
            let groups = out[(part.step + strip) * W..].as_chunks_mut::<W>().0;
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
fn gather_panels(part: PanelPart<'_>, out: &mut [f32]) {
    let mut first = 0;
    for (lanes, out) in part.panels(out) {
        for (step, group) in out.chunks_exact_mut(part.width).take(part.steps).enumerate() {
            let source = part.from(first, step);
            group[lanes.clone()].iter_mut().enumerate().for_each(|(i, g)| *g = source[i * part.lane_stride]);
            if part.is_last {
                group[lanes.end..].fill(0.0);
            }
        }
        first += lanes.len();
    }
}

/// Steps are contiguous: groups are columns of the source.
fn transpose_panels(simd: Simd, part: PanelPart<'_>, out: &mut [f32]) {
    let (width, steps) = (part.width, part.steps);
    let mut before = 0;
    for (lanes, out) in part.panels(out) {
        let source = |lane: usize| &part.from(before + lane - lanes.start, 0)[..steps];
        for first in (lanes.start / SQUARE_LANES * SQUARE_LANES..width).step_by(SQUARE_LANES) {
            let group = first..width.min(first + SQUARE_LANES);
            let mut done = 0;
            if lanes.start <= group.start && group.end <= lanes.end {
                let row = |i: usize| source(first + i.min(group.len() - 1));
                done = transpose_rows(simd, std::array::from_fn(row), width, &mut out[first..]);
            }
            // The remainder: the last steps, and groups with lanes that are not in the part.
            for lane in group.filter(|lane| *lane >= lanes.start) {
                let column = out[lane..].iter_mut().step_by(width).take(steps).skip(done);
                if lane < lanes.end {
                    column.zip(&source(lane)[done..]).for_each(|(o, s)| *o = *s);
                } else if part.is_last {
                    column.for_each(|o| *o = 0.0);
                }
            }
        }
        before += lanes.len();
    }
}

/// Lanes and steps of the squares that are transposed in registers.
pub(super) const SQUARE_LANES: usize = 8;

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
