//! The emulated CS-2: model graphs, compiler, kernels, wafer memory and time model.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![warn(missing_docs)]

// Unit tests and integration tests share a driver of rounds, which names this crate as integration tests do.
#[cfg(test)]
extern crate self as millrace_emulator;

#[cfg(all(test, feature = "kernels"))]
#[path = "../tests/common/mod.rs"]
mod common;
pub mod compile;
#[cfg(feature = "kernels")]
pub mod device;
pub mod families;
pub mod graph;
#[cfg(feature = "kernels")]
pub mod inference;
#[cfg(feature = "kernels")]
pub mod kernels;
pub mod numerics;
pub mod ops;
pub mod optimizers;
mod packing;
pub mod placement;
pub mod plan;
pub mod report;
pub mod rewrite;
pub mod schedule;
pub mod sparsity;
#[cfg(test)]
mod testing;
pub mod time;
pub mod tree;
pub mod wafer;
