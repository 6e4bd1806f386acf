//! Shapes of values: the element type, and the dimensions of one sample.

use serde::{Deserialize, Serialize};

/// Maximum number of dimensions of a value.
pub const MAX_DIMENSIONS: usize = 6;

/// Element type of a value. Precision is not a part of it: the operands of matrix products are rounded where they are
/// packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 32-bit signed integers: token ids, labels, positions.
    I32,
    /// `true` or `false`: masks.
    Bool,
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::Bool => "bool",
        })
    }
}

/// Shape of a value: its element type and up to [`MAX_DIMENSIONS`] dimensions. The dimension of samples is implicit.
///
/// Kernels work on rows: the last dimension is the width of a row, and the product of the others the number of rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    dtype: DType,
    rank: usize,
    /// The first `rank` are used, the others are 0.
    sizes: [usize; MAX_DIMENSIONS],
}

impl Shape {
    /// Creates a shape; `None` if there are more than [`MAX_DIMENSIONS`] dimensions.
    pub fn new(dtype: DType, dimensions: &[usize]) -> Option<Self> {
        let mut sizes = [0; MAX_DIMENSIONS];
        sizes.get_mut(..dimensions.len())?.copy_from_slice(dimensions);
        Some(Self { dtype, rank: dimensions.len(), sizes })
    }

    /// Returns the shape of an f32 matrix.
    pub const fn matrix(rows: usize, columns: usize) -> Self {
        Self { dtype: DType::F32, rank: 2, sizes: [rows, columns, 0, 0, 0, 0] }
    }

    /// Returns the shape of a vector of i32.
    pub const fn integers(length: usize) -> Self {
        Self { dtype: DType::I32, rank: 1, sizes: [length, 0, 0, 0, 0, 0] }
    }

    /// Returns the element type.
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// Returns the dimensions, outermost first.
    pub fn dimensions(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }

    /// Returns the last dimension; 1 for a scalar.
    pub fn columns(&self) -> usize {
        self.dimensions().last().copied().unwrap_or(1)
    }

    /// Returns the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        let (_, outer) = self.dimensions().split_last().unwrap_or((&1, &[]));
        outer.iter().fold(1, |product: usize, &size| product.saturating_mul(size))
    }

    /// Returns the number of elements of one sample.
    pub fn elements(&self) -> u64 {
        self.dimensions().iter().fold(1, |product: u64, &size| product.saturating_mul(size as u64))
    }

    /// Returns the shape with another last dimension; a scalar stays a scalar.
    #[must_use]
    pub const fn with_columns(mut self, columns: usize) -> Self {
        if self.rank > 0 {
            self.sizes[self.rank - 1] = columns;
        }
        self
    }

    /// Returns the shape of one row: the last dimension alone; a scalar stays a scalar.
    #[must_use]
    pub fn row(self) -> Self {
        let mut row = Self { dtype: self.dtype, rank: self.rank.min(1), sizes: [0; MAX_DIMENSIONS] };
        if self.rank > 0 {
            row.sizes[0] = self.columns();
        }
        row
    }

    /// Returns the f32 shape with one more dimension at the end; `None` if there are already [`MAX_DIMENSIONS`].
    pub fn with_features(mut self, size: usize) -> Option<Self> {
        *self.sizes.get_mut(self.rank)? = size;
        Some(Self { dtype: DType::F32, rank: self.rank + 1, ..self })
    }

    /// Returns the shape with all dimensions joined to one.
    #[must_use]
    pub fn flattened(self) -> Self {
        let mut flat = Self { dtype: self.dtype, rank: 1, sizes: [0; MAX_DIMENSIONS] };
        flat.sizes[0] = usize::try_from(self.elements()).unwrap_or(usize::MAX);
        flat
    }

    /// Returns the shape of one i32 for each row.
    #[must_use]
    pub const fn one_integer_per_row(mut self) -> Self {
        if self.rank > 0 {
            self.rank -= 1;
            self.sizes[self.rank] = 0;
        }
        self.dtype = DType::I32;
        self
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.dimensions())
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_product_of_outer_dimensions() {
        let shape = |dimensions: &[usize]| Shape::new(DType::F32, dimensions).unwrap();
        for (dimensions, rows, columns, elements) in
            [(&[][..], 1, 1, 1), (&[7], 1, 7, 7), (&[3, 7], 3, 7, 21), (&[2, 3, 7], 6, 7, 42)]
        {
            let shape = shape(dimensions);
            assert_eq!((shape.rows(), shape.columns(), shape.elements()), (rows, columns, elements), "{shape}");
        }
        assert_eq!(Shape::new(DType::I32, &[1; MAX_DIMENSIONS + 1]), None);
        assert_eq!(shape(&[1; MAX_DIMENSIONS]).with_features(2), None);
        assert_eq!(Shape::integers(5).with_features(4), Some(Shape::matrix(5, 4)));
        assert_eq!(Shape::matrix(5, 4).one_integer_per_row(), Shape::integers(5));
        assert_eq!(Shape::matrix(5, 4).row(), shape(&[4]));
        assert_eq!(shape(&[usize::MAX, 4]).elements(), u64::MAX, "saturates");
    }
}
