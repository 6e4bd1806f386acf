//! A trait for registers of f32, for the few kernels that allocate registers explicitly, and prefetch hints.
//!
//! Every method is inlined into a function that is compiled for the instruction set of its implementation. All are
//! unsafe, because a CPU without that instruction set can't execute them.

/// A register of f32 lanes.
///
/// # Safety
/// For every method: the caller is compiled for the instruction set of the implementation, and the CPU has it.
pub(crate) trait Vector: Copy {
    /// Number of lanes.
    const LANES: usize;

    /// All lanes `x`.
    ///
    /// # Safety
    /// See [`Vector`].
    unsafe fn splat(x: f32) -> Self;
    /// Reads a vector.
    ///
    /// # Safety
    /// See [`Vector`]; `LANES` elements are readable at `p`.
    unsafe fn load(p: *const f32) -> Self;
    /// Reads `n` lanes; the other lanes are zero.
    ///
    /// # Safety
    /// See [`Vector`]; `n < LANES` elements are readable at `p`.
    unsafe fn load_part(p: *const f32, n: usize) -> Self;
    /// Writes a vector.
    ///
    /// # Safety
    /// See [`Vector`]; `LANES` elements are writable at `p`.
    unsafe fn store(self, p: *mut f32);
    /// Writes the first `n` lanes.
    ///
    /// # Safety
    /// See [`Vector`]; `n < LANES` elements are writable at `p`.
    unsafe fn store_part(self, p: *mut f32, n: usize);
    /// self * b + c, rounded once.
    ///
    /// # Safety
    /// See [`Vector`].
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// self + other.
    ///
    /// # Safety
    /// See [`Vector`].
    unsafe fn add(self, other: Self) -> Self;
}

/// Elements of a cache line.
pub(crate) const CACHE_LINE_ELEMENTS: usize = 16;

/// Prefetches the cache line of `p`, which may be any address, into the first-level cache.
#[inline(always)]
pub(crate) fn prefetch(p: *const f32) {
    // SAFETY: a prefetch never faults, and SSE is part of x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Like [`prefetch`], into the second-level cache.
#[inline(always)]
pub(crate) fn prefetch_l2(p: *const f32) {
    // SAFETY: a prefetch never faults, and SSE is part of x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Four lanes in an array, which the compiler maps to vector instructions of the target.
#[derive(Clone, Copy)]
pub(crate) struct PortableVector([f32; 4]);

impl Vector for PortableVector {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        PortableVector([x; 4])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: four elements are readable.
        PortableVector(unsafe { p.cast::<[f32; 4]>().read() })
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        // SAFETY: `n` elements are readable.
        PortableVector(std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: four elements are writable.
        unsafe { p.cast::<[f32; 4]>().write(self.0) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        for (i, x) in self.0.into_iter().enumerate().take(n) {
            // SAFETY: `n` elements are writable.
            unsafe { *p.add(i) = x }
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        PortableVector(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        PortableVector(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Vector;

    // "Enabled" in the comments below: the caller guarantees the instruction set, see `Vector`.

    #[inline(always)]
    fn mask16(n: usize) -> __mmask16 {
        (1 << n) - 1
    }

    impl Vector for __m512 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: AVX-512 is enabled.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: AVX-512 is enabled; 16 elements are readable.
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self {
            // SAFETY: AVX-512 is enabled; the `n` elements of the mask are readable.
            unsafe { _mm512_maskz_loadu_ps(mask16(n), p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: AVX-512 is enabled; 16 elements are writable.
            unsafe { _mm512_storeu_ps(p, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, p: *mut f32, n: usize) {
            // SAFETY: AVX-512 is enabled; the `n` elements of the mask are writable.
            unsafe { _mm512_mask_storeu_ps(p, mask16(n), self) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: AVX-512 is enabled.
            unsafe { _mm512_fmadd_ps(self, b, c) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: AVX-512 is enabled.
            unsafe { _mm512_add_ps(self, other) }
        }
    }

    /// All ones in the first `n` of eight lanes.
    ///
    /// # Safety
    /// AVX2 is enabled.
    #[inline(always)]
    unsafe fn mask8(n: usize) -> __m256i {
        const ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        debug_assert!(n <= 8);
        // SAFETY: AVX2 is enabled; 8 elements from one of the first 9 are inside the constant.
        unsafe { _mm256_loadu_si256(ONES_THEN_ZEROS.as_ptr().add(8 - n).cast()) }
    }

    impl Vector for __m256 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: AVX2 is enabled.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: AVX2 is enabled; 8 elements are readable.
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self {
            // SAFETY: AVX2 is enabled; the `n` elements of the mask are readable.
            unsafe { _mm256_maskload_ps(p, mask8(n)) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: AVX2 is enabled; 8 elements are writable.
            unsafe { _mm256_storeu_ps(p, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, p: *mut f32, n: usize) {
            // SAFETY: AVX2 is enabled; the `n` elements of the mask are writable.
            unsafe { _mm256_maskstore_ps(p, mask8(n), self) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: AVX2 and FMA are enabled.
            unsafe { _mm256_fmadd_ps(self, b, c) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: AVX2 is enabled.
            unsafe { _mm256_add_ps(self, other) }
        }
    }
}
