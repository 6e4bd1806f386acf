//! Strided views of matrices.

/// A matrix in a slice: element (r, c) is `data[r * row_stride + c * col_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> MatRef<'a> {
    /// Creates a view with any strides.
    ///
    /// # Panics
    /// If the last element is outside of `data`.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Self {
        check_extent(data.len(), rows, cols, row_stride, col_stride);
        MatRef { data, rows, cols, row_stride, col_stride }
    }

    /// Creates a view of contiguous rows.
    ///
    /// # Panics
    /// If `data` is too short.
    pub fn row_major(data: &'a [f32], rows: usize, cols: usize) -> Self {
        MatRef::new(data, rows, cols, cols, 1)
    }

    /// Returns the transposed matrix: same memory, exchanged strides.
    pub fn t(self) -> Self {
        MatRef {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            data: self.data,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rows `first .. first + rows`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn row_range(self, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.rows, "rows {first}+{rows} of {}", self.rows);
        let data = if rows == 0 { &[] } else { &self.data[first * self.row_stride..] };
        MatRef { data, rows, ..self }
    }

    /// Columns `first .. first + cols`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn col_range(self, first: usize, cols: usize) -> Self {
        self.t().row_range(first, cols).t()
    }

    /// Row `row` of a matrix of contiguous rows.
    ///
    /// # Panics
    /// If the row does not exist or its elements are not contiguous.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        assert!(row < self.rows && self.col_stride == 1);
        &self.data[row * self.row_stride..][..self.cols]
    }

    pub(crate) fn data(&self) -> &'a [f32] {
        self.data
    }

    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(crate) fn col_stride(&self) -> usize {
        self.col_stride
    }
}

/// A mutable matrix of contiguous rows, `row_stride` elements apart.
#[derive(Debug)]
pub struct MatMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> MatMut<'a> {
    /// A view of rows `row_stride` apart.
    ///
    /// # Panics
    /// If the last element is outside of `data`, or rows overlap.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        check_extent(data.len(), rows, cols, row_stride, 1);
        assert!(rows <= 1 || row_stride >= cols, "rows of {cols} elements overlap at a stride of {row_stride}");
        MatMut { data, rows, cols, row_stride }
    }

    /// Rows one after the other without a gap.
    ///
    /// # Panics
    /// If `data` is too short.
    pub fn row_major(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        MatMut::new(data, rows, cols, cols)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The rows, each a slice.
    pub fn iter_rows(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let (cols, rows) = (self.cols, self.rows);
        self.data.chunks_mut(self.row_stride.max(1)).take(rows).map(move |row| &mut row[..cols])
    }

    /// Returns a pointer to the elements, for writing tiles from several threads.
    pub(crate) fn target(&mut self) -> MatPtr {
        MatPtr { data: self.data.as_mut_ptr(), row_stride: self.row_stride }
    }
}

/// The memory behind a [`MatMut`], shared by threads that write disjoint tiles of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatPtr {
    data: *mut f32,
    row_stride: usize,
}

// SAFETY: a `MatPtr` is only an address; each use of it must itself be disjoint from the others.
unsafe impl Send for MatPtr {}
// SAFETY: as above.
unsafe impl Sync for MatPtr {}

impl MatPtr {
    /// Address of element (row, col).
    ///
    /// # Safety
    /// The element must be inside the matrix.
    #[inline(always)]
    pub(crate) unsafe fn at(self, row: usize, col: usize) -> *mut f32 {
        // SAFETY: inside one allocation, by the caller's contract.
        unsafe { self.data.add(row * self.row_stride + col) }
    }

    /// Returns the matrix from element (row, col).
    ///
    /// # Safety
    /// The element must be inside the matrix.
    pub(crate) unsafe fn offset(self, row: usize, col: usize) -> MatPtr {
        // SAFETY: the caller's contract.
        MatPtr { data: unsafe { self.at(row, col) }, ..self }
    }

    /// Returns the distance between rows.
    pub(crate) fn row_stride(self) -> usize {
        self.row_stride
    }
}

fn check_extent(len: usize, rows: usize, cols: usize, row_stride: usize, col_stride: usize) {
    if rows == 0 || cols == 0 {
        return;
    }
    let last =
        (rows - 1).checked_mul(row_stride).zip((cols - 1).checked_mul(col_stride)).and_then(|(r, c)| r.checked_add(c));
    assert!(
        last.is_some_and(|last| last < len),
        "a {rows}x{cols} matrix with strides {row_stride} and {col_stride} does not fit in {len} elements"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_know_their_bounds() {
        let data = [0.0; 12];
        let m = MatRef::row_major(&data, 3, 4);
        assert_eq!((m.t().rows(), m.t().cols()), (4, 3));
        assert_eq!(m.row_range(1, 2).data().len(), 8);
        assert_eq!(m.col_range(3, 1).data().len(), 9);
        assert_eq!(m.row_range(3, 0).rows(), 0);
        let bad: [fn(&[f32]) -> usize; 4] = [
            |d| MatRef::row_major(d, 4, 4).rows(),
            |d| MatRef::new(d, 2, 2, usize::MAX, 1).rows(),
            |d| MatMut::new(&mut d.to_vec(), 3, 4, 3).rows(),
            |d| MatRef::row_major(d, 3, 4).row_range(2, 2).rows(),
        ];
        for case in bad {
            assert!(std::panic::catch_unwind(|| case(&data)).is_err());
        }
    }
}
