//! Where the elements of an operand are.

use crate::graph::MAX_DIMENSIONS;

/// Maximum number of dimensions of a view: those of a value, and the samples.
pub const MAX_VIEW_RANK: usize = MAX_DIMENSIONS + 1;

/// The positions of an operand's elements in a slice: element `(i, j, ..)` is at `offset + i * strides[0] +
/// j * strides[1] + ..`. A stride of 0 repeats elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub(super) offset: usize,
    pub(super) rank: usize,
    /// The first `rank` are used.
    pub(super) sizes: [usize; MAX_VIEW_RANK],
    pub(super) strides: [usize; MAX_VIEW_RANK],
}

impl View {
    /// Returns the view of elements that are stored row by row, without gaps.
    ///
    /// # Panics
    /// If there are more than [`MAX_VIEW_RANK`] dimensions.
    pub fn dense(sizes: &[usize]) -> Self {
        let mut view = Self { offset: 0, rank: 0, sizes: [1; MAX_VIEW_RANK], strides: [0; MAX_VIEW_RANK] };
        view.rank = sizes.len();
        view.sizes[..sizes.len()].copy_from_slice(sizes);
        let mut stride = 1;
        for axis in (0..sizes.len()).rev() {
            view.strides[axis] = stride;
            stride *= sizes[axis];
        }
        view
    }

    /// Returns the view of the values of `samples` samples, each of these dimensions. Samples are dimension 0.
    pub fn of_samples(samples: usize, dimensions: &[usize]) -> Self {
        let mut view = Self::dense(dimensions).inserted(0, samples);
        view.strides[0] = dimensions.iter().product();
        view
    }

    /// Returns the view of one value of these dimensions that is repeated for each of `samples` samples.
    pub fn of_each_sample(samples: usize, dimensions: &[usize]) -> Self {
        Self::dense(dimensions).inserted(0, samples)
    }

    /// Returns the sizes of all dimensions.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.sizes().iter().product()
    }

    /// Returns whether elements are repeated along `axis`.
    pub fn is_repeated(&self, axis: usize) -> bool {
        self.strides[axis] == 0
    }

    /// Returns the view with a new dimension before `axis`, along which its elements are repeated.
    #[must_use]
    pub fn inserted(mut self, axis: usize, size: usize) -> Self {
        assert!(self.rank < MAX_VIEW_RANK && axis <= self.rank, "a view of at most {MAX_VIEW_RANK} dimensions");
        self.sizes.copy_within(axis..self.rank, axis + 1);
        self.strides.copy_within(axis..self.rank, axis + 1);
        (self.sizes[axis], self.strides[axis]) = (size, 0);
        self.rank += 1;
        self
    }

    /// Returns the view as one of `sizes`, the first of which is that of the samples. As in NumPy, the other dimensions
    /// are aligned at the end, and those of size 1 are repeated.
    #[must_use]
    pub fn broadcast(mut self, sizes: &[usize]) -> Self {
        while self.rank < sizes.len() {
            self = self.inserted(1, 1);
        }
        for (axis, &size) in sizes.iter().enumerate() {
            if self.sizes[axis] != size {
                assert_eq!(self.sizes[axis], 1, "{self:?} is not broadcast to {sizes:?}");
                (self.sizes[axis], self.strides[axis]) = (size, 0);
            }
        }
        self
    }

    /// Returns the view with its dimensions in another order: dimension `i` is dimension `order[i]` of this one.
    #[must_use]
    pub fn permuted(self, order: &[usize]) -> Self {
        assert_eq!(order.len(), self.rank);
        let mut view = self;
        for (to, &from) in order.iter().enumerate() {
            (view.sizes[to], view.strides[to]) = (self.sizes[from], self.strides[from]);
        }
        view
    }

    /// Returns the view of `size` elements along `axis`: element `start`, and every `step`-th after it.
    #[must_use]
    pub fn sliced(mut self, axis: usize, start: usize, step: usize, size: usize) -> Self {
        assert!(size > 0 && start + (size - 1) * step < self.sizes[axis], "elements {start}.. of {self:?}");
        self.offset += start * self.strides[axis];
        self.sizes[axis] = size;
        self.strides[axis] *= step;
        self
    }

    /// Returns the position after the last element; the least length of a slice.
    pub(super) fn end(&self) -> usize {
        let last = self.sizes().iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>();
        self.offset + last + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_name_positions() {
        let view = View::of_samples(2, &[3, 4]);
        assert_eq!((view.sizes(), &view.strides[..3], view.end()), (&[2, 3, 4][..], &[12, 4, 1][..], 24));
        let vector = View::of_each_sample(2, &[4]).broadcast(&[2, 3, 4]);
        assert_eq!((vector.sizes(), &vector.strides[..3], vector.end()), (&[2, 3, 4][..], &[0, 0, 1][..], 4));
        let column = View::of_samples(2, &[3, 1]).broadcast(&[2, 3, 4]);
        assert_eq!((&column.strides[..3], column.is_repeated(2), column.end()), (&[3, 1, 0][..], true, 6));
        let permuted = view.permuted(&[0, 2, 1]);
        assert_eq!((permuted.sizes(), &permuted.strides[..3]), (&[2, 4, 3][..], &[12, 1, 4][..]));
        let part = view.sliced(2, 1, 2, 2);
        assert_eq!((part.offset, part.sizes(), part.strides[2], part.end()), (1, &[2, 3, 2][..], 2, 24));
        assert!(std::panic::catch_unwind(|| view.sliced(2, 1, 2, 3)).is_err());
        assert!(std::panic::catch_unwind(|| view.broadcast(&[2, 3, 5])).is_err());
    }
}
