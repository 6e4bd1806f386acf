//! The instruction set in use, and a macro that compiles one function body for each.

use crate::numerics::Isa;

/// Lanes of every reduction, independent of the register width.
pub const REDUCTION_LANES: usize = 16;

/// Proof that this CPU can run kernels compiled for [`Simd::isa`].
///
/// Values come only from detection or a checked choice, which makes calls of the compiled variants sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd(Isa);

/// The CPU lacks the requested instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this CPU does not support {requested}: choose {best}, the best that it supports, or run on another machine")]
pub struct Unavailable {
    /// Requested instruction set.
    pub requested: Isa,
    /// Best instruction set of this CPU.
    pub best: Isa,
}

impl Simd {
    /// Detects the best instruction set of this CPU.
    pub fn detect() -> Self {
        Simd(Isa::detect())
    }

    /// Selects an instruction set, for a job whose members support less than the best one.
    pub fn new(isa: Isa) -> Result<Self, Unavailable> {
        if isa.available() { Ok(Simd(isa)) } else { Err(Unavailable { requested: isa, best: Isa::detect() }) }
    }

    /// Returns all instruction sets that this CPU can run, the preferred one last.
    pub fn all() -> impl Iterator<Item = Simd> {
        Isa::ALL.into_iter().filter_map(|isa| Simd::new(isa).ok())
    }

    /// Returns the instruction set.
    #[inline(always)]
    pub fn isa(self) -> Isa {
        self.0
    }
}

/// Sum of the lanes by halves: eight pairs, four, two, one.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; REDUCTION_LANES]) -> f32 {
    let mut half = REDUCTION_LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Returns the maximum of the lanes; a NaN in any lane may or may not be returned.
#[inline(always)]
pub(crate) fn max_lanes(mut lanes: [f32; REDUCTION_LANES]) -> f32 {
    let mut half = REDUCTION_LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = if lanes[i] > lanes[i + half] { lanes[i] } else { lanes[i + half] };
        }
        half /= 2;
    }
    lanes[0]
}

/// Compiles a function once per instruction set and adds a first argument `simd: Simd` that chooses.
///
/// The body must consist of code that is inlined (loops over slices and arrays, `#[inline(always)]` functions);
/// otherwise it is compiled for the baseline.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(simd: $crate::kernels::isa::Simd, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            match simd.isa() {
                // SAFETY: a `Simd` of this instruction set exists only if the CPU has it.
                #[cfg(target_arch = "x86_64")]
                $crate::numerics::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::numerics::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(crate) use simd_fn;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_available_sets_can_be_had() {
        let best = Simd::detect().isa();
        let ascending: &[Isa] =
            if cfg!(target_arch = "aarch64") { &[Isa::Neon] } else { &[Isa::Portable, Isa::Avx2, Isa::Avx512] };
        for isa in Isa::ALL {
            assert_eq!(Simd::new(isa).is_ok(), ascending.contains(&isa) && isa as u8 <= best as u8);
        }
        assert_eq!(Simd::all().last(), Some(Simd::detect()));
    }

    #[test]
    fn lanes_are_summed_by_halves() {
        let lanes = std::array::from_fn(|i| i as f32 * 1.1);
        assert!((sum_lanes(lanes) - 132.0).abs() < 1e-4);
        assert_eq!(max_lanes(lanes), 15.0 * 1.1);
    }
}
