//! The emulated CS-2: model graphs, compiler, kernels, wafer memory and time model.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod compile;
#[cfg(feature = "kernels")]
pub mod device;
pub mod families;
pub mod graph;
#[cfg(feature = "kernels")]
pub mod kernels;
pub mod numerics;
pub mod ops;
pub mod placement;
pub mod plan;
pub mod report;
pub mod schedule;
#[cfg(test)]
mod testing;
pub mod time;
pub mod tree;
pub mod wafer;
