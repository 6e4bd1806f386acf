//! What a number is, independent of who computes it.
//!
//! Everything here is a pure function: random values of (key, element), initial values of (seed, tensor, element),
//! bf16 of f32. Nothing keeps a state, so any range of any tensor can be produced alone, by any process, in any
//! order, and has the same bits. [`NumericsProfile`] names the few choices that do change bits.
//!
//! Invariants:
//! * no function here calls the platform's mathematics library: transcendental functions come from the pure-Rust
//!   `libm` crate, so that two machines agree to the last bit;
//! * the hash functions and constants are frozen: changing one changes every training run.

pub mod bf16;
pub mod init;
pub mod profile;
pub mod random;

pub use profile::{GEMM_INNER_BLOCK, Isa, NumericsProfile, Precision, largest_chunk};
