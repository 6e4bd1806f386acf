//! The numerics profile: the choices that determine the bits of a run, and their name.

use std::fmt;
use std::str::FromStr;

use millrace_params::Precision;
use serde::{Deserialize, Serialize};

use crate::plan::{Chunk, StreamPlan};

/// Length of the blocks into which GEMM cuts its inner dimension.
///
/// Inside a block every output element is one chain of fused multiply-adds in ascending order of the inner index; the
/// value of the block is then added to the output. The constant is part of the numerics and never derived from a cache
/// size. 1,024 covers the tokens of a default leaf, so that a weight gradient is a single chain.
pub const GEMM_INNER_BLOCK: usize = 1024;

/// Instruction set a kernel is compiled for. Machines have sets of them, see [`IsaSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// The baseline of x86-64, SSE2, and of any other target but aarch64.
    Portable,
    /// The baseline of aarch64.
    Neon,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and CD.
    Avx512,
}

impl Isa {
    /// Every instruction set; of two that a machine has, the later one is preferred.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// Detects the preferred instruction set of this CPU.
    pub fn detect() -> Isa {
        IsaSet::detect().preferred().unwrap_or(Isa::Portable)
    }

    /// Returns whether this CPU can run code compiled for `self`.
    pub fn available(self) -> bool {
        IsaSet::detect().contains(self)
    }
}

/// The instruction sets that a machine has. Machines of different kinds may have none in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsaSet(u8);

impl IsaSet {
    /// Detects the instruction sets of this CPU.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512cd");
            let detected = [(Isa::Portable, true), (Isa::Avx2, avx2), (Isa::Avx512, avx2 && avx512)];
            return detected.into_iter().filter_map(|(isa, has)| has.then_some(isa)).collect();
        }
        #[allow(unreachable_code, reason = "of other targets")]
        [if cfg!(target_arch = "aarch64") { Isa::Neon } else { Isa::Portable }].into_iter().collect()
    }

    /// Returns whether `isa` is one of the sets.
    pub const fn contains(self, isa: Isa) -> bool {
        self.0 & (1 << isa as u8) != 0
    }

    /// Returns the sets, the preferred one last.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Isa> {
        Isa::ALL.into_iter().filter(move |isa| self.contains(*isa))
    }

    /// Returns the preferred one; `None` if there is none.
    pub fn preferred(self) -> Option<Isa> {
        self.iter().next_back()
    }

    /// Returns these sets without those that are preferred to `isa`.
    #[must_use]
    pub fn up_to(self, isa: Isa) -> Self {
        self.iter().filter(|other| *other as u8 <= isa as u8).collect()
    }

    /// Returns the set that most of the machines have, and of several such sets the preferred one; `None` without
    /// machines.
    pub fn most_common(machines: impl IntoIterator<Item = Self> + Clone) -> Option<Isa> {
        let count = |isa: &Isa| machines.clone().into_iter().filter(|machine| machine.contains(*isa)).count();
        Isa::ALL.into_iter().filter(|isa| count(isa) > 0).max_by_key(count)
    }
}

impl FromIterator<Isa> for IsaSet {
    fn from_iter<I: IntoIterator<Item = Isa>>(sets: I) -> Self {
        Self(sets.into_iter().fold(0, |bits, isa| bits | (1 << isa as u8)))
    }
}

/// The name is not that of an instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose one of {}, {}, {} or {}", Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable)]
pub struct UnknownIsa;

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Isa::ALL.into_iter().find(|isa| isa.to_string() == name).ok_or(UnknownIsa)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

/// Two runs with equal profiles, plans and seeds produce the same bytes.
///
/// A job fixes one profile for all its processes, and its checkpoints record it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumericsProfile {
    /// Instruction set.
    pub isa: Isa,
    /// Inner block of GEMM, see [`GEMM_INNER_BLOCK`].
    pub kc: u32,
    /// Denormal results and operands are taken as zero.
    pub flush_to_zero: bool,
    /// Operands of matrix products.
    pub precision: Precision,
    /// Samples of a training leaf: sums over a batch are sums over leaves. `None` if unknown, as in profiles of 0.1.0
    /// and of imported weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf_samples: Option<u32>,
    /// Elements of the largest chunk: the norm of the gradient is a sum over chunks. `None` as for `leaf_samples`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_elements: Option<u32>,
}

impl NumericsProfile {
    /// Returns the profile of this build on `isa`: fixed inner block, denormals flushed; without a plan.
    pub const fn new(isa: Isa, precision: Precision) -> Self {
        let (leaf_samples, chunk_elements) = (None, None);
        NumericsProfile {
            isa,
            kc: GEMM_INNER_BLOCK as u32,
            flush_to_zero: true,
            precision,
            leaf_samples,
            chunk_elements,
        }
    }

    /// Returns the profile of runs of `plan`.
    #[must_use]
    pub fn for_plan(self, plan: &StreamPlan) -> Self {
        let (leaf_samples, chunk_elements) = (Some(plan.leaves.samples), largest_chunk(&plan.chunks));
        NumericsProfile { leaf_samples, chunk_elements, ..self }
    }

    /// Returns whether two runs compute the same bits, as far as both profiles are known.
    pub fn agrees_with(&self, other: &Self) -> bool {
        let sizes = |profile: &Self| [profile.leaf_samples, profile.chunk_elements];
        let known_sizes = sizes(self).into_iter().zip(sizes(other));
        let without_cuts = |profile: &Self| Self { leaf_samples: None, chunk_elements: None, ..*profile };
        without_cuts(self) == without_cuts(other)
            && known_sizes.into_iter().all(|(a, b)| a.is_none() || b.is_none() || a == b)
    }
}

/// Returns the elements of the largest of these chunks. Groups of the same sizes are cut identically if and only if
/// their largest chunks have the same size: groups are cut into as few equal pieces as a bound allows, and the largest
/// piece, used as the bound, gives the same number of pieces.
pub fn largest_chunk(chunks: &[Chunk]) -> Option<u32> {
    chunks.iter().map(|chunk| chunk.elements).max().and_then(|elements| u32::try_from(elements).ok())
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
    fn cuts_are_compared_where_both_profiles_have_them() {
        let first = NumericsProfile::new(Isa::Avx2, Precision::F32);
        let with_sizes =
            |leaf, chunk| NumericsProfile { leaf_samples: Some(leaf), chunk_elements: Some(chunk), ..first };
        assert!(first.agrees_with(&with_sizes(4, 64)) && with_sizes(4, 64).agrees_with(&first));
        assert!(with_sizes(4, 64).agrees_with(&with_sizes(4, 64)));
        assert!(
            !with_sizes(4, 64).agrees_with(&with_sizes(2, 64)) && !with_sizes(4, 64).agrees_with(&with_sizes(4, 128))
        );
        assert!(!first.agrees_with(&NumericsProfile::new(Isa::Portable, Precision::F32)));
        let json = serde_json::to_string(&with_sizes(4, 64)).unwrap();
        assert_eq!(serde_json::from_str::<NumericsProfile>(&json).unwrap(), with_sizes(4, 64));
    }

    #[test]
    fn preferred_set_of_this_machine_runs() {
        assert!(Isa::detect().available() && IsaSet::detect().contains(Isa::detect()));
        assert!(!(Isa::Portable.available() && Isa::Neon.available()), "these are of different machines");
    }

    #[test]
    fn machines_share_the_set_that_most_of_them_have() {
        let set = |sets: &[Isa]| sets.iter().copied().collect::<IsaSet>();
        let old = set(&[Isa::Portable, Isa::Avx2]);
        let (new, arm) = (set(&[Isa::Portable, Isa::Avx2, Isa::Avx512]), set(&[Isa::Neon]));
        assert_eq!((new.preferred(), IsaSet::default().preferred()), (Some(Isa::Avx512), None));
        for (machines, expected) in [
            (vec![new, new], Some(Isa::Avx512)),
            (vec![new, new, old], Some(Isa::Avx2)),
            (vec![new, arm, new], Some(Isa::Avx512)),
            (vec![arm, old, arm], Some(Isa::Neon)),
            (vec![], None),
        ] {
            assert_eq!(IsaSet::most_common(machines.iter().copied()), expected, "{machines:?}");
        }
        assert_eq!((new.up_to(Isa::Avx2), arm.up_to(Isa::Portable)), (old, IsaSet::default()));
    }
}
