//! The innermost kernel: a tile of C from one panel of A and one of B, both packed.
//!
//! The tile is held in registers while the inner index runs; each element is one chain of fused multiply-adds from
//! zero, so its bits do not depend on the tile's shape. The shapes: 8 rows x 3 vectors of 16 for AVX-512 (24 of 32
//! registers), 6 x 2 vectors of 8 for AVX2 (12 of 16), 6 x 4 vectors of 4 for the portable kernel (24 of NEON's 32).

use std::mem::MaybeUninit;

use crate::kernels::isa::Simd;
use crate::kernels::vector::{CACHE_LINE_ELEMENTS, PortableVector, Vector, prefetch, prefetch_l2};
use crate::numerics::Isa;

/// Steps of the inner index per check of the loop counter.
pub(crate) const UNROLL_STEPS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// Steps of the inner index.
    pub k: usize,
    /// First element of A.
    pub a: *const f32,
    /// Distance in A of lanes, and of steps: (1, `mr`) in a packed panel.
    pub a_strides: (usize, usize),
    /// Panel of B: `k` groups of `nr` elements.
    pub b: *const f32,
    /// Address to prefetch into the second-level cache, every [`UNROLL_STEPS`] steps; may be invalid.
    pub next: *const f32,
    /// Elements by which `next` advances, at most a cache line.
    pub next_stride: usize,
    /// First element of the tile in C.
    pub c: *mut f32,
    /// Distance between rows of C.
    pub c_stride: usize,
    /// Rows of the tile that exist, 1 to `mr`.
    pub rows: usize,
    /// Columns of the tile that exist, 1 to `nr`.
    pub cols: usize,
    /// Whether the product is added to C or stored.
    pub add: bool,
    /// `cols` values added to each row at the end, or null.
    pub bias: *const f32,
}

/// The kernel of an instruction set and its tile shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MicroKernel {
    /// Rows of a panel of A.
    pub mr: usize,
    /// Columns of a panel of B.
    pub nr: usize,
    run: unsafe fn(&Tile),
}

impl MicroKernel {
    /// The kernel for `simd`.
    #[inline]
    pub(crate) fn of(simd: Simd) -> MicroKernel {
        match simd.isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => MicroKernel { mr: 8, nr: 48, run: x86::avx512 },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => MicroKernel { mr: 6, nr: 16, run: x86::avx2 },
            _ => MicroKernel { mr: 6, nr: 16, run: portable },
        }
    }

    /// Computes one tile.
    ///
    /// # Safety
    /// The CPU has the instruction set of this kernel; `mr` lanes of `k` steps are readable at `a`, independent of
    /// `rows`, and `k * nr` elements at `b`; the given rows and columns exist in C, and no other reference to them
    /// exists during the call; `bias` is null or points to `cols` elements.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, tile: &Tile) {
        // SAFETY: passed on from the caller.
        unsafe { (self.run)(tile) }
    }
}

/// `MR` rows times `NV` vectors; panels of B are `nr` wide, of which the first `NV` vectors are used.
///
/// # Safety
/// As [`MicroKernel::run`], with `tile.cols <= NV * LANES <= nr`, and `PACKED` only if A's strides are those of a
/// panel.
#[inline(always)]
unsafe fn kernel<V: Vector, const MR: usize, const NV: usize, const PACKED: bool>(tile: &Tile, nr: usize) {
    /// Elements of A fetched ahead: 512 bytes.
    const PREFETCH_ELEMENTS: usize = 128;
    // SAFETY: the caller guarantees the instruction set of `V`.
    let mut acc = [[unsafe { V::splat(0.0) }; NV]; MR];
    let (mut a, mut b, mut next, mut remaining) = (tile.a, tile.b, tile.next, tile.k);
    // Constants if possible, so that addresses are part of the instructions.
    let (lane, step_a) = if PACKED { (1, MR) } else { tile.a_strides };
    let mut row = 0;
    // SAFETY: `step` is called `tile.k` times and reads `MR` and `nr` elements each time; prefetched
    // addresses are never read; rows and columns stored are those of the tile.
    unsafe {
        while remaining >= UNROLL_STEPS {
            if row < tile.rows {
                // The tile of C is fetched while the first steps run: it is needed at the end.
                let c = tile.c.wrapping_add(row * tile.c_stride);
                for j in 0..NV {
                    prefetch(c.wrapping_add(j * V::LANES));
                }
                prefetch(c.wrapping_add(NV * V::LANES - 1));
                row += 1;
            }
            if PACKED {
                prefetch(a.wrapping_add(PREFETCH_ELEMENTS));
                prefetch(a.wrapping_add(PREFETCH_ELEMENTS + CACHE_LINE_ELEMENTS));
            }
            prefetch_l2(next);
            next = next.wrapping_add(tile.next_stride);
            for i in 0..UNROLL_STEPS {
                step::<V, MR, NV>(a.wrapping_add(i * step_a), lane, b.add(i * nr), &mut acc);
            }
            a = a.wrapping_add(UNROLL_STEPS * step_a);
            b = b.add(UNROLL_STEPS * nr);
            remaining -= UNROLL_STEPS;
        }
        for i in 0..remaining {
            step::<V, MR, NV>(a.wrapping_add(i * step_a), lane, b.add(i * nr), &mut acc);
        }
        let is_whole = tile.rows == MR && tile.cols == NV * V::LANES;
        match (is_whole, tile.add, tile.bias.is_null()) {
            (true, false, true) => finish_tile::<V, MR, NV, false, false>(tile, &acc),
            (true, true, true) => finish_tile::<V, MR, NV, true, false>(tile, &acc),
            (true, false, false) => finish_tile::<V, MR, NV, false, true>(tile, &acc),
            _ => {
                // The sums go through memory: they only stay in registers until here if every index is a constant
                // after unrolling, and the loop below is too large to be unrolled.
                let mut sums = MaybeUninit::<[[V; NV]; MR]>::uninit();
                for (i, sum) in acc.as_flattened().iter().enumerate() {
                    sums.as_mut_ptr().cast::<V>().add(i).write(*sum);
                }
                for (i, row) in sums.assume_init_ref().iter().enumerate().take(tile.rows) {
                    finish_row(tile, i, row);
                }
            }
        }
    }
}

/// One step of the inner index: the outer product of a column of A and a row of B.
///
/// # Safety
/// As [`Vector`]; `MR` elements `lane` apart are readable at `a`, `NV` vectors at `b`.
#[inline(always)]
unsafe fn step<V: Vector, const MR: usize, const NV: usize>(
    a: *const f32,
    lane: usize,
    b: *const f32,
    acc: &mut [[V; NV]; MR],
) {
    // SAFETY: the caller guarantees the instruction set of `V`.
    let mut row = [unsafe { V::splat(0.0) }; NV];
    for (j, r) in row.iter_mut().enumerate() {
        // SAFETY: one of the vectors at `b`.
        *r = unsafe { V::load(b.add(j * V::LANES)) };
    }
    for (i, acc) in acc.iter_mut().enumerate() {
        // SAFETY: one of the elements at `a`.
        let x = unsafe { V::splat(*a.add(i * lane)) };
        for (acc, r) in acc.iter_mut().zip(&row) {
            // SAFETY: the caller guarantees the instruction set of `V`.
            *acc = unsafe { x.mul_add(*r, *acc) };
        }
    }
}

/// Stores a tile of which all rows and columns exist: added to C if `ADD`, then with the bias if `BIAS`.
///
/// # Safety
/// As [`MicroKernel::run`]; the tile has `MR` rows and `NV * LANES` columns, and a bias if `BIAS`.
#[inline(always)]
unsafe fn finish_tile<V: Vector, const MR: usize, const NV: usize, const ADD: bool, const BIAS: bool>(
    tile: &Tile,
    acc: &[[V; NV]; MR],
) {
    for (i, row) in acc.iter().enumerate() {
        for (j, product) in row.iter().enumerate() {
            // SAFETY: a vector of an existing row and of the bias.
            unsafe {
                let c = tile.c.add(i * tile.c_stride + j * V::LANES);
                let mut value = *product;
                if ADD {
                    value = V::load(c).add(value);
                }
                if BIAS {
                    value = value.add(V::load(tile.bias.add(j * V::LANES)));
                }
                value.store(c);
            }
        }
    }
}

/// Stores or adds one row of a tile, then the bias.
///
/// # Safety
/// As [`MicroKernel::run`]; `row < tile.rows`.
#[inline(always)]
unsafe fn finish_row<V: Vector, const NV: usize>(tile: &Tile, row: usize, products: &[V; NV]) {
    // SAFETY: columns below `tile.cols` of an existing row, and of the bias.
    unsafe {
        let c = tile.c.add(row * tile.c_stride);
        for (j, product) in products.iter().enumerate() {
            let first = j * V::LANES;
            let mut value = *product;
            if tile.cols >= first + V::LANES {
                if tile.add {
                    value = V::load(c.add(first)).add(value);
                }
                if !tile.bias.is_null() {
                    value = value.add(V::load(tile.bias.add(first)));
                }
                value.store(c.add(first));
            } else if tile.cols > first {
                let remaining = tile.cols - first;
                if tile.add {
                    value = V::load_part(c.add(first), remaining).add(value);
                }
                if !tile.bias.is_null() {
                    value = value.add(V::load_part(tile.bias.add(first), remaining));
                }
                value.store_part(c.add(first), remaining);
            }
        }
    }
}

/// # Safety
/// As [`MicroKernel::run`], which needs no instruction set here.
unsafe fn portable(tile: &Tile) {
    // SAFETY: passed on; the vectors cover the tile's columns.
    unsafe {
        match (tile.a_strides == (1, 6), tile.cols.div_ceil(PortableVector::LANES)) {
            (true, 1) => kernel::<PortableVector, 6, 1, true>(tile, 16),
            (true, 2) => kernel::<PortableVector, 6, 2, true>(tile, 16),
            (true, 3) => kernel::<PortableVector, 6, 3, true>(tile, 16),
            (true, _) => kernel::<PortableVector, 6, 4, true>(tile, 16),
            (false, 1) => kernel::<PortableVector, 6, 1, false>(tile, 16),
            (false, 2) => kernel::<PortableVector, 6, 2, false>(tile, 16),
            (false, 3) => kernel::<PortableVector, 6, 3, false>(tile, 16),
            (false, _) => kernel::<PortableVector, 6, 4, false>(tile, 16),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Tile, kernel};

    /// # Safety
    /// As [`super::MicroKernel::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma")]
    pub unsafe fn avx512(tile: &Tile) {
        // SAFETY: passed on; the vectors cover the tile's columns.
        unsafe {
            match (tile.a_strides == (1, 8), tile.cols.div_ceil(16)) {
                (true, 1) => kernel::<__m512, 8, 1, true>(tile, 48),
                (true, 2) => kernel::<__m512, 8, 2, true>(tile, 48),
                (true, _) => kernel::<__m512, 8, 3, true>(tile, 48),
                (false, 1) => kernel::<__m512, 8, 1, false>(tile, 48),
                (false, 2) => kernel::<__m512, 8, 2, false>(tile, 48),
                (false, _) => kernel::<__m512, 8, 3, false>(tile, 48),
            }
        }
    }

    /// # Safety
    /// As [`super::MicroKernel::run`].
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn avx2(tile: &Tile) {
        // SAFETY: passed on; the vectors cover the tile's columns.
        unsafe {
            match (tile.a_strides == (1, 6), tile.cols.div_ceil(8)) {
                (true, 1) => kernel::<__m256, 6, 1, true>(tile, 16),
                (true, _) => kernel::<__m256, 6, 2, true>(tile, 16),
                (false, 1) => kernel::<__m256, 6, 1, false>(tile, 16),
                (false, _) => kernel::<__m256, 6, 2, false>(tile, 16),
            }
        }
    }
}
