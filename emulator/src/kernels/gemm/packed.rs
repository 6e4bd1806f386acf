//! Right operands that are packed before the product.

use super::pack::{PackLayout, PackSource, SQUARE_LANES, pack_all};
use super::{GEMM_INNER_BLOCK, MicroKernel};
use crate::kernels::buffer::Buffer;
use crate::kernels::isa::Simd;
use crate::kernels::{Context, MatRef};
use crate::numerics::{Isa, Precision};

/// A right operand packed for the kernel of one instruction set, rounded to its precision.
#[derive(Clone, Copy, Debug)]
pub struct PackedOperand<'a> {
    pub(super) panels: &'a [f32],
    pub(super) layout: PackLayout,
    isa: Isa,
    precision: Precision,
}

impl PackedOperand<'_> {
    /// Checks that a product with this instruction set and precision can read the operand.
    ///
    /// # Panics
    /// If it can't.
    pub(super) fn check(&self, cx: Context<'_>) {
        assert_eq!((self.isa, self.precision), (cx.simd.isa(), cx.precision), "packed for another profile");
    }
}

/// A packed right operand in memory of its own.
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

    /// Packs `b` for [`gemm`](super::gemm), reusing the memory.
    pub fn pack(&mut self, cx: Context<'_>, b: MatRef<'_>) {
        self.pack_for_leaves(cx, b, 1);
    }

    /// Packs `b` for [`gemm_over_leaves`](super::gemm_over_leaves), reusing the memory.
    pub fn pack_for_leaves(&mut self, cx: Context<'_>, b: MatRef<'_>, leaves: usize) {
        let source = PackSource::right(b);
        self.layout = source.layout(MicroKernel::of(cx.simd).nr, leaves);
        (self.isa, self.precision) = (cx.simd.isa(), cx.precision);
        pack_all(cx, &source, self.layout, self.panels.resize(self.layout.len()));
    }

    /// Returns a view.
    pub fn operand(&self) -> PackedOperand<'_> {
        let Self { layout, isa, precision, .. } = *self;
        PackedOperand { panels: self.panels.as_slice(), layout, isa, precision }
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

/// The form in which a row-major matrix, or its transpose, is packed as a right operand. Unlike [`PackedB`] it has no
/// memory of its own, and the elements can be packed piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct PackedForm {
    layout: PackLayout,
    /// Columns of the matrix.
    columns: usize,
    is_transposed: bool,
    isa: Isa,
    precision: Precision,
}

impl PackedForm {
    /// Describes the packed form of a matrix of `rows` x `columns`, or of its transpose, for products in `precision`.
    pub fn new(simd: Simd, precision: Precision, (rows, columns): (usize, usize), is_transposed: bool) -> Self {
        let (lanes, steps) = if is_transposed { (rows, columns) } else { (columns, rows) };
        let layout = PackLayout { lanes, steps, block: GEMM_INNER_BLOCK, width: MicroKernel::of(simd).nr };
        // Otherwise packing a part would overwrite elements of the next one.
        assert!(layout.width.is_multiple_of(SQUARE_LANES));
        Self { layout, columns, is_transposed, isa: simd.isa(), precision }
    }

    /// Returns the elements of the packed form.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Returns whether the packed form has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Packs `values`, the elements of the matrix from `first` on, into `panels`. They have to be rounded to the
    /// precision already. `panels` is complete when every element of the matrix was packed once.
    ///
    /// # Panics
    /// If the elements are not inside of the matrix, or `panels` has another length.
    pub fn put(&self, cx: Context<'_>, first: usize, values: &[f32], panels: &mut [f32]) {
        assert_eq!(panels.len(), self.len(), "length of the packed form");
        let cx = Context { precision: Precision::F32, ..cx };
        let mut put_part = |row: usize, column: usize, values: &[f32], columns: usize| {
            if !values.is_empty() {
                let part = MatRef::row_major(values, values.len() / columns, columns);
                let part = if self.is_transposed { part.t() } else { part };
                let (lane, step) = if self.is_transposed { (row, column) } else { (column, row) };
                pack_all(cx, &PackSource::right(part).starting_at(lane, step), self.layout, panels);
            }
        };
        // The rest of a row, whole rows, and the beginning of a row.
        let (row, column) = (first / self.columns, first % self.columns);
        let (rest, values) = values.split_at(values.len().min((self.columns - column) % self.columns));
        put_part(row, column, rest, rest.len());
        let row = first.div_ceil(self.columns);
        let (rows, start) = values.split_at(values.len() / self.columns * self.columns);
        put_part(row, 0, rows, self.columns);
        put_part(row + rows.len() / self.columns, 0, start, start.len());
    }

    /// Returns the operand in complete `panels`.
    pub fn operand<'a>(&self, panels: &'a [f32]) -> PackedOperand<'a> {
        PackedOperand { panels, layout: self.layout, isa: self.isa, precision: self.precision }
    }
}
