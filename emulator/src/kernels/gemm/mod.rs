//! Matrix products: C = A·B or C = C + A·B, with an optional bias per column.
//!
//! Operands are strided views, so that transposed ones need no copy; a right operand that is used often (a layer's
//! weights, once for every leaf) is packed once, as [`PackedB`] or, while its elements arrive, by [`PackedForm`].
//!
//! The order of summation is fixed: the inner index is cut into blocks of [`GEMM_INNER_BLOCK`]; in a block each element
//! is one chain of fused multiply-adds from zero in ascending order; the blocks are added one after the other; the
//! total is added to C if requested; the bias is added last. Threads, tiles and instruction sets do not affect it.
//! Adding a product into C has therefore the same bits as computing it separately and adding the two.
//!
//! [`gemm_over_leaves`] computes the products of several leaves and their sum along the [leaf tree](crate::tree), with
//! the bits of separate products and additions, but writes C only once.

mod block;
mod leaf_sum;
mod micro;
mod pack;
mod packed;
mod product;

pub(crate) use block::{LeftOperand, PanelBlock, TileRegion, block_product};
use micro::MicroKernel;
use pack::{PackSource, pack_all};
pub use packed::{PackedB, PackedForm, PackedOperand};
use product::Product;

use super::Context;
use super::buffer::Buffer;
use super::matrix::{MatMut, MatRef};
use crate::numerics::GEMM_INNER_BLOCK;
use crate::tree::MAX_BLOCK_LEAVES;

/// What happens to the previous content of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// It is overwritten.
    Store,
    /// The product is added to it, with the bits of a separate addition.
    Add,
}

/// The right operand of a product.
#[derive(Clone, Copy, Debug)]
pub enum RightOperand<'a> {
    /// To be packed by the call.
    View(MatRef<'a>),
    /// Packed before the call.
    Packed(PackedOperand<'a>),
}

impl<'a> From<MatRef<'a>> for RightOperand<'a> {
    fn from(b: MatRef<'a>) -> Self {
        RightOperand::View(b)
    }
}

impl<'a> From<&'a PackedB> for RightOperand<'a> {
    fn from(b: &'a PackedB) -> Self {
        RightOperand::Packed(b.operand())
    }
}

impl<'a> From<PackedOperand<'a>> for RightOperand<'a> {
    fn from(b: PackedOperand<'a>) -> Self {
        RightOperand::Packed(b)
    }
}

/// Scratch memory of [`gemm`]; grows to the largest product and is then reused.
#[derive(Debug, Default)]
pub struct GemmWorkspace {
    right: Buffer,
    threads: Vec<product::ThreadScratch>,
}

impl GemmWorkspace {
    /// An empty one.
    pub fn new() -> Self {
        GemmWorkspace::default()
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        self.right.bytes() + self.threads.iter().map(product::ThreadScratch::bytes).sum::<usize>()
    }
}

/// C = A·B or C + A·B, then plus `bias` (one value for each column).
///
/// # Panics
/// If shapes do not match, or a packed operand was packed for another instruction set or precision, or for leaves.
pub fn gemm<'b>(
    cx: Context<'_>,
    a: MatRef<'_>,
    b: impl Into<RightOperand<'b>>,
    c: MatMut<'_>,
    accumulate: Accumulate,
    bias: Option<&[f32]>,
    workspace: &mut GemmWorkspace,
) {
    multiply(cx, (a, b.into()), 1, c, accumulate, bias, workspace);
}

/// C = S or C + S, where S is the sum over `leaves` leaves, along their tree, of the products of columns of A and rows
/// of B that belong to a leaf: the first ones to the first leaf.
///
/// # Panics
/// If shapes do not match, there are more than [`MAX_BLOCK_LEAVES`] leaves, or several of more than
/// [`GEMM_INNER_BLOCK`] steps, or a packed operand was packed for another instruction set, precision or number of
/// leaves.
pub fn gemm_over_leaves<'b>(
    cx: Context<'_>,
    a: MatRef<'_>,
    b: impl Into<RightOperand<'b>>,
    leaves: usize,
    c: MatMut<'_>,
    accumulate: Accumulate,
    workspace: &mut GemmWorkspace,
) {
    multiply(cx, (a, b.into()), leaves, c, accumulate, None, workspace);
}

fn multiply(
    cx: Context<'_>,
    (a, b): (MatRef<'_>, RightOperand<'_>),
    leaves: usize,
    mut c: MatMut<'_>,
    accumulate: Accumulate,
    bias: Option<&[f32]>,
    workspace: &mut GemmWorkspace,
) {
    assert!((1..=MAX_BLOCK_LEAVES).contains(&leaves), "{leaves} leaves");
    let micro = MicroKernel::of(cx.simd);
    let left = PackSource::left(a);
    let left_layout = left.layout(micro.mr, leaves);
    let (layout, right) = match b {
        RightOperand::Packed(packed) => {
            packed.check(cx);
            (packed.layout, packed.panels)
        }
        RightOperand::View(b) => {
            let source = PackSource::right(b);
            let layout = source.layout(micro.nr, leaves);
            let packed = workspace.right.resize(layout.len());
            pack_all(cx, &source, layout, packed);
            (layout, &*packed)
        }
    };
    assert_eq!((a.cols(), left_layout.block), (layout.steps, layout.block), "inner dimensions differ");
    assert_eq!((c.rows(), c.cols()), (a.rows(), layout.lanes), "shape of C");
    assert!(bias.is_none_or(|bias| bias.len() == layout.lanes), "length of the bias");
    if a.cols() == 0 {
        return finish_empty(c, accumulate, bias);
    }
    if a.rows() > 0 && layout.lanes > 0 {
        let c = c.target();
        let product =
            Product { cx, micro, leaves, left, left_layout, right, right_layout: layout, c, accumulate, bias };
        // SAFETY: C has the shape of the product, by the assertions, and is borrowed until the call returns.
        unsafe { product.run(cx.pool, &mut workspace.threads) };
    }
}

/// A product over an empty inner dimension is zero.
fn finish_empty(mut c: MatMut<'_>, accumulate: Accumulate, bias: Option<&[f32]>) {
    for row in c.iter_rows() {
        if accumulate == Accumulate::Store {
            row.fill(0.0);
        }
        if let Some(bias) = bias {
            row.iter_mut().zip(bias).for_each(|(c, b)| *c += b);
        }
    }
}

#[cfg(test)]
mod tests;
