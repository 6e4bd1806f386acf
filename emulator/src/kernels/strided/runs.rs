//! Iteration over the joint dimensions of several operands.

use std::ops::Range;

use super::BLOCK_ELEMENTS;
use super::view::{MAX_VIEW_RANK, View};

/// Some joint dimensions of `N` operands, joined where the elements of all operands follow each other. The last
/// dimension is called a *run*.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs<const N: usize> {
    rank: usize,
    sizes: [usize; MAX_VIEW_RANK],
    strides: [[usize; N]; MAX_VIEW_RANK],
}

impl<const N: usize> Runs<N> {
    /// Returns the dimensions `axes` of these views.
    pub fn new(views: &[View; N], axes: Range<usize>) -> Self {
        let mut runs = Self { rank: 0, sizes: [1; MAX_VIEW_RANK], strides: [[0; N]; MAX_VIEW_RANK] };
        for axis in axes {
            let size = views[0].sizes[axis];
            let strides = views.map(|view| view.strides[axis]);
            if size == 1 {
                continue;
            }
            let follows = |last: usize| (0..N).all(|n| runs.strides[last][n] == strides[n] * size);
            match runs.rank.checked_sub(1).filter(|&last| follows(last)) {
                Some(last) => (runs.sizes[last], runs.strides[last]) = (runs.sizes[last] * size, strides),
                None => {
                    (runs.sizes[runs.rank], runs.strides[runs.rank]) = (size, strides);
                    runs.rank += 1;
                }
            }
        }
        runs.rank = runs.rank.max(1);
        runs
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.sizes[..self.rank].iter().product()
    }

    /// Returns the number of elements of a run.
    pub fn run(&self) -> usize {
        self.sizes[self.rank - 1]
    }

    /// Returns the distance between the elements of a run, for each operand.
    pub fn steps(&self) -> [usize; N] {
        self.strides[self.rank - 1]
    }

    /// Calls `f(offset, positions, count)` for the runs of the elements `first .. first + count`: `offset` is the
    /// number of elements before the run, `positions` are those of its first element, relative to `offsets`.
    pub fn for_each(
        &self,
        first: usize,
        count: usize,
        offsets: [usize; N],
        mut f: impl FnMut(usize, [usize; N], usize),
    ) {
        let (run, outer) = (self.run(), self.rank - 1);
        let mut coordinates = self.coordinates(first);
        let mut offset = 0;
        while offset < count {
            let len = (run - coordinates[outer]).min(count - offset);
            let position = |n: usize| {
                offsets[n] + (0..self.rank).map(|axis| coordinates[axis] * self.strides[axis][n]).sum::<usize>()
            };
            f(offset, std::array::from_fn(position), len);
            offset += len;
            coordinates[outer] = 0;
            for axis in (0..outer).rev() {
                coordinates[axis] += 1;
                if coordinates[axis] < self.sizes[axis] {
                    break;
                }
                coordinates[axis] = 0;
            }
        }
    }

    /// Returns the coordinates of element number `element`.
    fn coordinates(&self, mut element: usize) -> [usize; MAX_VIEW_RANK] {
        let mut coordinates = [0; MAX_VIEW_RANK];
        for axis in (0..self.rank).rev() {
            coordinates[axis] = element % self.sizes[axis];
            element /= self.sizes[axis];
        }
        coordinates
    }
}

/// Memory for contiguous copies of elements.
pub(super) struct Blocks<const N: usize>([[f32; BLOCK_ELEMENTS]; N]);

impl<const N: usize> Blocks<N> {
    pub const fn new() -> Self {
        Self([[0.0; BLOCK_ELEMENTS]; N])
    }

    /// Returns `count` elements of each operand as contiguous slices, from element `skip` of the run at `positions` on.
    pub fn read<'a>(
        &'a mut self,
        data: [&'a [f32]; N],
        positions: [usize; N],
        steps: [usize; N],
        skip: usize,
        count: usize,
    ) -> [&'a [f32]; N] {
        let mut operands = data;
        for (n, block) in self.0.iter_mut().enumerate() {
            let first = positions[n] + skip * steps[n];
            operands[n] = match steps[n] {
                1 => &data[n][first..][..count],
                0 => {
                    block[..count].fill(data[n][first]);
                    &block[..count]
                }
                step => {
                    for (to, from) in block[..count].iter_mut().zip(data[n][first..].iter().step_by(step)) {
                        *to = *from;
                    }
                    &block[..count]
                }
            };
        }
        operands
    }
}
