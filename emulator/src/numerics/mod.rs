//! Number formats, random numbers and initial values, independent of the agent that computes them.
//!
//! Everything here is a pure function: random values of (key, element), initial values of (seed, tensor, element), bf16
//! of f32. There is no state, so any process can produce any range of any tensor, in any order, with the same bits.
//! [`NumericsProfile`] names the few choices that change bits.
//!
//! Invariants:
//! * no function here calls the platform's mathematics library: transcendental functions come from the pure-Rust
//!   `libm` crate, so that two machines agree to the last bit;
//! * the hash functions and constants are frozen: changing one changes every training run.

pub mod bf16;
pub mod init;
pub mod little_endian;
pub mod profile;
pub mod random;

pub use millrace_params::Precision;
pub use profile::{GEMM_INNER_BLOCK, Isa, IsaSet, NumericsProfile, UnknownIsa, largest_chunk};
