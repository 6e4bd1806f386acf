//! The choices that decide the bits of a run, and their name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Length of the blocks into which GEMM cuts its inner dimension.
///
/// Inside a block every output element is one chain of fused multiply-adds in rising order of the inner index; the
/// block's value is then added to the output. The constant is part of the numerics: it is never derived from a cache
/// size. 1,024 covers the tokens of a default leaf, so that a weight gradient is a single chain.
pub const GEMM_KC: usize = 1024;

/// Instruction set a kernel is compiled for, in rising order: the best that several machines share is the minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// Whatever the target guarantees (SSE2 on x86-64, NEON on aarch64).
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and CD.
    Avx512,
}

impl Isa {
    /// Every instruction set, lowest first.
    pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    /// The best instruction set of the CPU this runs on.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512cd");
            if avx2 && avx512 {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }

    /// Whether this CPU can run code compiled for `self`.
    pub fn available(self) -> bool {
        self <= Isa::detect()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

/// Precision of the operands of matrix products. Accumulation, sums and everything elementwise is f32 in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Operands as they are.
    #[default]
    F32,
    /// Operands rounded to bf16 (nearest, ties to even); a product of two bf16 is exact in f32.
    Bf16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        })
    }
}

/// Two runs with equal profiles, plans and seeds end in the same bytes.
///
/// A job pins one profile for all its processes and its checkpoints carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumericsProfile {
    /// Instruction set.
    pub isa: Isa,
    /// Inner block of GEMM, see [`GEMM_KC`].
    pub kc: u32,
    /// Denormal results and operands are taken as zero.
    pub flush_to_zero: bool,
    /// Operands of matrix products.
    pub precision: Precision,
}

impl NumericsProfile {
    /// The profile of this build on `isa`: fixed inner block, denormals flushed.
    pub const fn new(isa: Isa, precision: Precision) -> Self {
        NumericsProfile { isa, kc: GEMM_KC as u32, flush_to_zero: true, precision }
    }
}

impl fmt::Display for NumericsProfile {
    /// For example `avx512 kc1024 ftz f32`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let denormals = if self.flush_to_zero { "ftz" } else { "denormals" };
        write!(f, "{} kc{} {} {}", self.isa, self.kc, denormals, self.precision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_reads_back_and_has_a_name() {
        let profile = NumericsProfile::new(Isa::Avx2, Precision::Bf16);
        let json = serde_json::to_string(&profile).unwrap();
        assert_eq!(json, r#"{"isa":"avx2","kc":1024,"flush_to_zero":true,"precision":"bf16"}"#);
        assert_eq!(serde_json::from_str::<NumericsProfile>(&json).unwrap(), profile);
        assert_eq!(profile.to_string(), "avx2 kc1024 ftz bf16");
    }

    #[test]
    fn the_lowest_isa_always_runs_and_order_is_rising() {
        assert!(Isa::Portable.available());
        assert!(Isa::ALL.is_sorted());
        assert!(Isa::detect().available());
    }
}
