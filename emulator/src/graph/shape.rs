//! Shapes of values: the element type, and the dimensions of one sample.

use serde::{Deserialize, Serialize};

use super::Dimensions;

/// Element type of a value. Precision is not a part of it: the operands of matrix products are rounded where they are
/// packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// Shape of a value: its element type and up to [`MAX_DIMENSIONS`](super::MAX_DIMENSIONS) dimensions. The dimension of
/// samples is implicit.
///
/// Kernels work on rows: the last dimension is the width of a row, and the product of the others the number of rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    dtype: DType,
    dimensions: Dimensions,
}

impl Shape {
    /// Creates a shape; `None` if there are more than [`MAX_DIMENSIONS`](super::MAX_DIMENSIONS) dimensions.
    pub fn new(dtype: DType, dimensions: &[usize]) -> Option<Self> {
        Dimensions::new(dimensions).map(|dimensions| Self { dtype, dimensions })
    }

    /// Creates a shape of these dimensions.
    pub const fn of(dtype: DType, dimensions: Dimensions) -> Self {
        Self { dtype, dimensions }
    }

    /// Returns the shape of an f32 matrix.
    pub const fn matrix(rows: usize, columns: usize) -> Self {
        Self { dtype: DType::F32, dimensions: Dimensions::from_array(2, [rows, columns, 0, 0, 0, 0]) }
    }

    /// Returns the shape of a vector of i32.
    pub const fn integers(length: usize) -> Self {
        Self { dtype: DType::I32, dimensions: Dimensions::from_array(1, [length, 0, 0, 0, 0, 0]) }
    }

    /// Returns the element type.
    pub const fn dtype(self) -> DType {
        self.dtype
    }

    /// Returns the dimensions, outermost first.
    pub fn dimensions(&self) -> &[usize] {
        &self.dimensions
    }

    /// Returns a copy of the dimensions.
    pub const fn dimension_list(self) -> Dimensions {
        self.dimensions
    }

    /// Returns the last dimension; 1 for a scalar.
    pub fn columns(&self) -> usize {
        self.dimensions.last().copied().unwrap_or(1)
    }

    /// Returns the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        usize::try_from(self.dimensions.without_last().elements()).unwrap_or(usize::MAX)
    }

    /// Returns the number of elements of one sample.
    pub fn elements(&self) -> u64 {
        self.dimensions.elements()
    }

    /// Returns the shape with another last dimension; a scalar stays a scalar.
    #[must_use]
    pub fn with_columns(self, columns: usize) -> Self {
        Self { dimensions: self.dimensions.with_size(self.dimensions.len().wrapping_sub(1), columns), ..self }
    }

    /// Returns the shape with these dimensions.
    #[must_use]
    pub const fn with_dimensions(self, dimensions: Dimensions) -> Self {
        Self { dimensions, ..self }
    }

    /// Returns the shape with another element type.
    #[must_use]
    pub const fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// Returns the shape of one row: the last dimension alone; a scalar stays a scalar.
    #[must_use]
    pub fn row(self) -> Self {
        let rank = self.dimensions.len().min(1);
        Self { dimensions: Dimensions::from_array(rank, [self.columns() * rank, 0, 0, 0, 0, 0]), ..self }
    }

    /// Returns the f32 shape with one more dimension at the end; `None` if there are already
    /// [`MAX_DIMENSIONS`](super::MAX_DIMENSIONS).
    pub fn with_features(self, size: usize) -> Option<Self> {
        Some(Self { dtype: DType::F32, dimensions: self.dimensions.with_last(size)? })
    }

    /// Returns the shape with all dimensions joined to one.
    #[must_use]
    pub fn flattened(self) -> Self {
        let elements = usize::try_from(self.elements()).unwrap_or(usize::MAX);
        Self { dimensions: Dimensions::from_array(1, [elements, 0, 0, 0, 0, 0]), ..self }
    }

    /// Returns the shape of one i32 for each row.
    #[must_use]
    pub const fn one_integer_per_row(self) -> Self {
        Self { dtype: DType::I32, dimensions: self.dimensions.without_last() }
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
    use crate::graph::MAX_DIMENSIONS;

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
