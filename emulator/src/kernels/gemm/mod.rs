//! Matrix products: C = A·B or C = C + A·B, with an optional bias per column.
//!
//! Operands are strided views, so that transposed ones need no copy; a right operand that is used often (a layer's
//! weights, once for every leaf) is packed once as [`PackedB`].
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
mod product;

pub(crate) use block::{LeftOperand, PanelBlock, TileRegion, block_product};
use micro::MicroKernel;
use pack::{PackLayout, PackSource, pack_panels};
use product::Product;

use super::Context;
use super::buffer::Buffer;
use super::matrix::{MatMut, MatRef};
use super::pool::rows_mut;
use crate::numerics::{GEMM_INNER_BLOCK, Isa, Precision};
use crate::tree::MAX_BLOCK_LEAVES;

/// Columns packed in one work item.
const PACK_GRAIN_LANES: usize = 384;

/// What happens to the previous content of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// It is overwritten.
    Store,
    /// The product is added to it, with the bits of a separate addition.
    Add,
}

/// A right operand packed for the kernel of one instruction set, rounded to its precision.
#[derive(Debug)]
pub struct PackedB {
    panels: Buffer,
    layout: PackLayout,
    isa: Isa,
    precision: Precision,
}

impl PackedB {
    /// Creates an empty operand, to be filled by [`PackedB::pack`].
    pub fn new() -> Self {
        let layout = PackLayout { lanes: 0, steps: 0, block: GEMM_INNER_BLOCK, width: 1 };
        PackedB { panels: Buffer::new(), layout, isa: Isa::Portable, precision: Precision::F32 }
    }

    /// Packs `b` for [`gemm`], reusing the memory.
    pub fn pack(&mut self, cx: Context<'_>, b: MatRef<'_>) {
        self.pack_for_leaves(cx, b, 1);
    }

    /// Packs `b` for [`gemm_over_leaves`], reusing the memory.
    pub fn pack_for_leaves(&mut self, cx: Context<'_>, b: MatRef<'_>, leaves: usize) {
        let source = PackSource::right(b);
        self.layout = source.layout(MicroKernel::of(cx.simd).nr, leaves);
        (self.isa, self.precision) = (cx.simd.isa(), cx.precision);
        pack_all(cx, &source, self.layout, self.panels.resize(self.layout.len()));
    }

    /// Rows of the operand (the inner dimension).
    pub fn rows(&self) -> usize {
        self.layout.steps
    }

    /// Columns of the operand.
    pub fn cols(&self) -> usize {
        self.layout.lanes
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }
}

impl Default for PackedB {
    fn default() -> Self {
        PackedB::new()
    }
}

/// The right operand of a product.
#[derive(Clone, Copy, Debug)]
pub enum RightOperand<'a> {
    /// To be packed by the call.
    View(MatRef<'a>),
    /// Packed before the call.
    Packed(&'a PackedB),
}

impl<'a> From<MatRef<'a>> for RightOperand<'a> {
    fn from(b: MatRef<'a>) -> Self {
        RightOperand::View(b)
    }
}

impl<'a> From<&'a PackedB> for RightOperand<'a> {
    fn from(b: &'a PackedB) -> Self {
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
            assert_eq!((packed.isa, packed.precision), (cx.simd.isa(), cx.precision), "packed for another profile");
            (packed.layout, packed.panels.as_slice())
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

/// Packs a whole operand into `out`.
fn pack_all(cx: Context<'_>, source: &PackSource<'_>, layout: PackLayout, out: &mut [f32]) {
    let PackLayout { width, steps, block, .. } = layout;
    let mut rest = out;
    for start in (0..steps).step_by(block.max(1)) {
        let panel_len = width * layout.block_steps(start);
        let (block, tail) = rest.split_at_mut(layout.panels() * panel_len);
        rest = tail;
        let grain = (PACK_GRAIN_LANES / width).max(1);
        cx.pool.for_each_rows(layout.panels(), grain, rows_mut(block, panel_len), |first, out| {
            pack_panels(cx.simd, cx.precision, source, layout, start, first, out.data);
        });
    }
}

#[cfg(test)]
mod tests;
