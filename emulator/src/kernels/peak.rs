//! Measures the peak rate: how many fused multiply-adds per second this machine computes in registers.

use std::hint::black_box;
use std::time::Instant;

use super::isa::Simd;
use super::pool::ComputeThreads;
use super::vector::{PortableVector, Vector};
use crate::numerics::Isa;

/// Independent chains: more than latency times throughput of any CPU in use, few enough to stay in 16 registers.
const CHAINS: usize = 12;

/// `rounds` multiply-adds in each of `CHAINS` independent vectors.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn chains<V: Vector>(rounds: usize, factor: f32) -> [V; CHAINS] {
    // SAFETY: the caller guarantees the instruction set of `V`.
    unsafe {
        let (x, y) = (V::splat(factor), V::splat(1.0 - factor));
        let mut acc = [V::splat(0.5); CHAINS];
        for _ in 0..rounds {
            for chain in &mut acc {
                *chain = chain.mul_add(x, y);
            }
        }
        acc
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(rounds: usize, factor: f32) {
    // SAFETY: this function is compiled for AVX-512.
    black_box(unsafe { chains::<std::arch::x86_64::__m512>(rounds, factor) });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(rounds: usize, factor: f32) {
    // SAFETY: this function is compiled for AVX2 and FMA.
    black_box(unsafe { chains::<std::arch::x86_64::__m256>(rounds, factor) });
}

/// `rounds` rounds on the calling thread.
fn burst(simd: Simd, rounds: usize) {
    let factor = black_box(0.999);
    match simd.isa() {
        // SAFETY: a `Simd` of this instruction set exists only if the CPU has it.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(rounds, factor) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(rounds, factor) },
        _ => {
            // SAFETY: the portable vector has the instruction set of the target.
            black_box(unsafe { chains::<PortableVector>(rounds, factor) });
        }
    }
}

/// Floating-point operations of one round.
fn flops_per_round(simd: Simd) -> f64 {
    let lanes = match simd.isa() {
        Isa::Avx512 => 16,
        Isa::Avx2 => 8,
        Isa::Portable | Isa::Neon => 4,
    };
    (2 * CHAINS * lanes) as f64
}

/// Measures the peak of f32 multiply-adds of the whole pool in GFLOP/s: the best of `bursts` bursts of a few
/// milliseconds.
///
/// The clock of many CPUs decreases under load: measure in between other measurements, and compare within one run.
pub fn fma_gflops(simd: Simd, pool: &ComputeThreads, bursts: usize) -> f64 {
    const ROUNDS: usize = 50_000;
    // More tiles than threads, so that one thread that starts late does not determine the result.
    let tiles = pool.threads() * 8;
    let flops = flops_per_round(simd) * (ROUNDS * tiles) as f64;
    let rate = |_| {
        let start = Instant::now();
        pool.for_each_tile(tiles, |_| burst(simd, ROUNDS));
        flops / start.elapsed().as_secs_f64() / 1e9
    };
    (0..bursts.max(1)).map(rate).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_a_rate() {
        for simd in Simd::all() {
            let rate = fma_gflops(simd, &ComputeThreads::inline(), 1);
            assert!(rate > 0.01 && rate < 1e5, "{rate}");
        }
    }
}
