//! Matrix products: C = A·B or C = C + A·B, with an optional bias per column.
//!
//! Operands are strided views, so that transposed ones need no copy; a right operand that is used often (a layer's
//! weights, once for every leaf) is packed once as [`PackedB`].
//!
//! The order of summation is fixed: the inner index is cut into blocks of [`GEMM_INNER_BLOCK`]; in a block each element
//! is one chain of fused multiply-adds from zero in ascending order; the blocks are added one after the other; the
//! total is added to C if requested; the bias is added last. Threads, tiles and instruction sets do not affect it.
//! Adding a product into C has therefore the same bits as computing it separately and adding the two.

mod block;
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
        let layout = PackLayout { lanes: 0, steps: 0, width: 1 };
        PackedB { panels: Buffer::new(), layout, isa: Isa::Portable, precision: Precision::F32 }
    }

    /// Packs `b`, reusing the memory.
    pub fn pack(&mut self, cx: Context<'_>, b: MatRef<'_>) {
        let source = PackSource::right(b);
        self.layout = source.layout(MicroKernel::of(cx.simd).nr);
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
/// If shapes do not match, or a packed operand was packed for another instruction set or precision.
pub fn gemm<'b>(
    cx: Context<'_>,
    a: MatRef<'_>,
    b: impl Into<RightOperand<'b>>,
    mut c: MatMut<'_>,
    accumulate: Accumulate,
    bias: Option<&[f32]>,
    workspace: &mut GemmWorkspace,
) {
    let (layout, right) = match b.into() {
        RightOperand::Packed(packed) => {
            assert_eq!((packed.isa, packed.precision), (cx.simd.isa(), cx.precision), "packed for another profile");
            (packed.layout, packed.panels.as_slice())
        }
        RightOperand::View(b) => {
            let source = PackSource::right(b);
            let layout = source.layout(MicroKernel::of(cx.simd).nr);
            let packed = workspace.right.resize(layout.len());
            pack_all(cx, &source, layout, packed);
            (layout, &*packed)
        }
    };
    assert_eq!(a.cols(), layout.steps, "inner dimensions differ");
    assert_eq!((c.rows(), c.cols()), (a.rows(), layout.lanes), "shape of C");
    assert!(bias.is_none_or(|bias| bias.len() == layout.lanes), "length of the bias");
    if a.cols() == 0 {
        return finish_empty(c, accumulate, bias);
    }
    if a.rows() > 0 && layout.lanes > 0 {
        let product = Product::new(cx, PackSource::left(a), right, layout, c.target(), accumulate, bias);
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
    let PackLayout { width, steps, .. } = layout;
    let mut rest = out;
    for start in (0..steps).step_by(GEMM_INNER_BLOCK) {
        let panel_len = width * layout.block_steps(start);
        let (block, tail) = rest.split_at_mut(layout.panels() * panel_len);
        rest = tail;
        let grain = (PACK_GRAIN_LANES / width).max(1);
        cx.pool.for_each_rows(layout.panels(), grain, rows_mut(block, panel_len), |first, out| {
            pack_panels(cx.simd, cx.precision, source, width, start, first, out.data);
        });
    }
}

#[cfg(test)]
mod tests;
