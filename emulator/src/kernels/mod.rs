//! The compute kernels: functions of slices, without graph, network or clock.
//!
//! Layers of this module, each built on the ones before:
//! * [`isa`]: the instruction set in use, and kernels compiled once for each;
//! * [`ftz`], [`pool`]: threads that flush denormals, and work cut into tiles;
//! * [`buffer`], [`matrix`], [`mod@gemm`]: aligned scratch memory, strided views, matrix products;
//! * [`elementwise`], [`convert`], [`activation`], [`norm`], [`rms_norm`], [`rotary`], [`dropout`], [`embedding`],
//!   [`loss`], [`attention`], [`softmax`]: the operators between the products, forward and backward;
//! * [`arithmetic`], [`strided`]: functions of one and two numbers, and loops over operands of any strides, of which
//!   the generic operators are made.
//!
//! Updates of weights are kernels, too; they are in [`crate::optimizers`].
//!
//! Invariants:
//! * **Same bits.** A result depends on the operands and on the constants of [`crate::numerics`], never on the number
//!   of threads, on cache sizes or on how the work was cut. Reductions have one fixed order: sixteen lanes
//!   ([`isa::REDUCTION_LANES`]) in rising order, then a tree over the lanes, or rows one after the other. On CPUs with
//!   fused multiply-add all instruction sets give the same bits too, because every kernel is one body of IEEE
//!   operations.
//! * **No allocation in a step.** Scratch memory comes from the caller and grows only until the largest use is known.
//! * **No panic on data.** Kernels check lengths and panic on programming errors; no element value can cause a panic.
//!   NaN and infinity propagate, so that a non-finite loss is detected.

pub mod activation;
pub mod arithmetic;
pub mod attention;
pub mod buffer;
pub mod convert;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod ftz;
pub mod gemm;
pub mod isa;
pub mod loss;
mod math;
pub mod matrix;
pub mod norm;
pub mod peak;
pub mod pool;
pub mod rms_norm;
pub mod rotary;
pub mod softmax;
pub mod strided;
mod strip_sums;
#[cfg(test)]
pub(crate) mod testing;
mod vector;

pub use buffer::Buffer;
pub use gemm::{Accumulate, GemmWorkspace, PackedB, PackedForm, PackedOperand, RightOperand, gemm, gemm_over_leaves};
pub use isa::Simd;
pub use matrix::{MatMut, MatRef};
pub use pool::ComputeThreads;

use crate::numerics::Precision;

/// Context of kernels that use matrix products; cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Context<'p> {
    /// Instruction set.
    pub simd: Simd,
    /// Threads.
    pub pool: &'p ComputeThreads,
    /// Precision of the operands of matrix products.
    pub precision: Precision,
}
