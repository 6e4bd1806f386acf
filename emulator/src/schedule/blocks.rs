//! Blocks of leaves that a device computes together.
//!
//! Leaves are small if a batch must be divided among many systems. A device computes each step of a pass for a block of
//! consecutive leaves, the leaves below one node of the [leaf tree](crate::tree), before the next step: operators with
//! large weights then read these, and write their gradients, once for each block. The sums keep the order of the tree,
//! so blocks change no bits, only memory and time. On the modelled wafer there are no blocks.

use crate::graph::{DType, Graph};
use crate::numerics::GEMM_INNER_BLOCK;
use crate::tree::MAX_BLOCK_LEAVES;

/// Rows of a block up to which products become faster, and up to which a gradient of weights is one block of the inner
/// index. A leaf may have more rows; it is a block of its own.
const MAX_BLOCK_ROWS: usize = GEMM_INNER_BLOCK;

/// Returns the maximum leaves of a block, if leaves have `samples` samples.
pub fn leaves_per_block(graph: &Graph, samples: u32) -> u32 {
    let values = graph.values.iter().filter(|value| value.shape.dtype() == DType::F32);
    let rows = values.map(|value| value.shape.rows()).max().unwrap_or(1).saturating_mul(samples as usize);
    (MAX_BLOCK_ROWS / rows.max(1)).clamp(1, MAX_BLOCK_LEAVES) as u32
}
