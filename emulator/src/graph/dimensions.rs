//! Short lists of sizes and of axes, which are copied instead of allocated.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// Maximum number of dimensions of a value.
pub const MAX_DIMENSIONS: usize = 6;

/// Up to [`MAX_DIMENSIONS`] sizes, outermost first. A list of numbers in documents.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(with = "Vec<usize>", extend("maxItems" = MAX_DIMENSIONS)))]
#[serde(try_from = "Vec<usize>", into = "Vec<usize>")]
pub struct Dimensions {
    rank: usize,
    /// The first `rank` are used, the others are 0.
    sizes: [usize; MAX_DIMENSIONS],
}

/// Up to [`MAX_DIMENSIONS`] numbers of dimensions, from 0 for the outermost. A list of numbers in documents.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Axes(Dimensions);

/// A list has more than [`MAX_DIMENSIONS`] elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} dimensions are more than {MAX_DIMENSIONS}, the most that a value has")]
pub struct TooManyDimensions(usize);

impl Dimensions {
    /// Creates a list; `None` if there are more than [`MAX_DIMENSIONS`] sizes.
    pub fn new(sizes: &[usize]) -> Option<Self> {
        let mut list = Self { rank: sizes.len(), sizes: [0; MAX_DIMENSIONS] };
        list.sizes.get_mut(..sizes.len())?.copy_from_slice(sizes);
        Some(list)
    }

    /// Creates a list of the first `rank` of these sizes, which is at most [`MAX_DIMENSIONS`].
    pub(crate) const fn from_array(rank: usize, sizes: [usize; MAX_DIMENSIONS]) -> Self {
        Self { rank, sizes }
    }

    /// Returns the product of all sizes. It saturates.
    pub fn elements(&self) -> u64 {
        self.iter().fold(1, |product: u64, &size| product.saturating_mul(size as u64))
    }

    /// Returns the list with one more size at the end; `None` if there are already [`MAX_DIMENSIONS`].
    pub fn with_last(mut self, size: usize) -> Option<Self> {
        *self.sizes.get_mut(self.rank)? = size;
        self.rank += 1;
        Some(self)
    }

    /// Returns the list without its last size; an empty list stays empty.
    #[must_use]
    pub const fn without_last(mut self) -> Self {
        if self.rank > 0 {
            self.rank -= 1;
            self.sizes[self.rank] = 0;
        }
        self
    }

    /// Returns the list without the sizes of these axes.
    #[must_use]
    pub fn without(self, axes: &[usize]) -> Self {
        let mut list = Self::default();
        for (_, size) in self.iter().enumerate().filter(|(axis, _)| !axes.contains(axis)) {
            list.sizes[list.rank] = *size;
            list.rank += 1;
        }
        list
    }

    /// Returns the list with another size at `axis`; unchanged if there is no such axis.
    #[must_use]
    pub fn with_size(mut self, axis: usize, size: usize) -> Self {
        if let Some(old) = self.sizes[..self.rank].get_mut(axis) {
            *old = size;
        }
        self
    }
}

impl Axes {
    /// Creates a list; `None` if there are more than [`MAX_DIMENSIONS`] axes.
    pub fn new(axes: &[usize]) -> Option<Self> {
        Dimensions::new(axes).map(Self)
    }
}

impl Deref for Dimensions {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }
}

impl Deref for Axes {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl TryFrom<Vec<usize>> for Dimensions {
    type Error = TooManyDimensions;

    fn try_from(sizes: Vec<usize>) -> Result<Self, TooManyDimensions> {
        Self::new(&sizes).ok_or(TooManyDimensions(sizes.len()))
    }
}

impl From<Dimensions> for Vec<usize> {
    fn from(sizes: Dimensions) -> Self {
        sizes.to_vec()
    }
}

impl std::fmt::Debug for Dimensions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", &**self)
    }
}

impl std::fmt::Debug for Axes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", &**self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_bounded() {
        let list = Dimensions::new(&[2, 3]).unwrap();
        assert_eq!((&*list.with_last(4).unwrap(), list.elements()), (&[2, 3, 4][..], 6));
        assert_eq!((list.without_last(), Dimensions::default().elements()), (Dimensions::new(&[2]).unwrap(), 1));
        assert_eq!((&*list.without(&[0]), &*list.without(&[0, 1]), list.without(&[7])), (&[3][..], &[][..], list));
        assert_eq!((list.with_size(0, 5), list.with_size(2, 5)), (Dimensions::new(&[5, 3]).unwrap(), list));
        assert_eq!(Dimensions::new(&[1; MAX_DIMENSIONS]).unwrap().with_last(1), None);
        assert_eq!(Dimensions::new(&[usize::MAX, 4]).unwrap().elements(), u64::MAX, "saturates");
        assert_eq!(serde_json::to_string(&Axes::new(&[1, 0]).unwrap()).unwrap(), "[1,0]");
        let error = serde_json::from_str::<Axes>("[0,0,0,0,0,0,0]").unwrap_err().to_string();
        assert!(error.contains("7 dimensions are more than 6"), "{error}");
    }
}
