//! Windows that move over the rows and columns of an image: of [convolutions](super::Convolution) and pooling.

use serde::{Deserialize, Serialize};

use super::{OpError, Signature};
use crate::graph::{DType, Shape};

/// How a window moves; all numbers are of rows and of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Window {
    /// Distance between neighbouring windows.
    #[serde(default = "ones", skip_serializing_if = "is_ones")]
    pub stride: [usize; 2],
    /// Zeros before the first and after the last element.
    #[serde(default, skip_serializing_if = "is_zeros")]
    pub padding: [usize; 2],
    /// Distance between neighbouring elements of a window.
    #[serde(default = "ones", skip_serializing_if = "is_ones")]
    pub dilation: [usize; 2],
}

const fn ones() -> [usize; 2] {
    [1; 2]
}

fn is_ones(sizes: &[usize; 2]) -> bool {
    *sizes == [1; 2]
}

fn is_zeros(sizes: &[usize; 2]) -> bool {
    *sizes == [0; 2]
}

impl Default for Window {
    fn default() -> Self {
        Self { stride: [1; 2], padding: [0; 2], dilation: [1; 2] }
    }
}

/// Windows of `kernel` elements over images of `image` elements: `windows` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSizes {
    /// How they move.
    pub window: Window,
    /// Rows and columns of a window.
    pub kernel: [usize; 2],
    /// Rows and columns of the image.
    pub image: [usize; 2],
    /// Rows and columns of windows.
    pub windows: [usize; 2],
}

impl Window {
    /// Returns the sizes of windows of `kernel` elements over an image; `None` if no window fits, or a stride is 0.
    pub fn sizes(self, kernel: [usize; 2], image: [usize; 2]) -> Option<WindowSizes> {
        let mut windows = [0; 2];
        for axis in 0..2 {
            let extent = kernel[axis].checked_sub(1)?.checked_mul(self.dilation[axis])?.checked_add(1)?;
            let padded = self.padding[axis].checked_mul(2)?.checked_add(image[axis])?;
            windows[axis] = padded.checked_sub(extent)?.checked_div(self.stride[axis])? + 1;
        }
        (self.dilation[0] > 0 && self.dilation[1] > 0).then_some(WindowSizes { window: self, kernel, image, windows })
    }
}

impl WindowSizes {
    /// Returns the row (axis 0) or column of element `element` of window `window`; `None` if it is in the padding.
    pub fn input_position(&self, axis: usize, window: usize, element: usize) -> Option<usize> {
        let Window { stride, padding, dilation } = self.window;
        let position = (window * stride[axis] + element * dilation[axis]).checked_sub(padding[axis])?;
        (position < self.image[axis]).then_some(position)
    }

    /// Returns the number of elements of an image.
    pub const fn image_elements(&self) -> usize {
        self.image[0] * self.image[1]
    }

    /// Returns the number of windows.
    pub const fn window_count(&self) -> usize {
        self.windows[0] * self.windows[1]
    }

    /// Returns the number of elements of a window.
    pub const fn kernel_elements(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Calls `f` with the place in the image of each element of window `(row, column)` that is not in the padding, row
    /// by row.
    pub fn for_each_element(&self, [row, column]: [usize; 2], mut f: impl FnMut(usize)) {
        for y in (0..self.kernel[0]).filter_map(|element| self.input_position(0, row, element)) {
            for x in (0..self.kernel[1]).filter_map(|element| self.input_position(1, column, element)) {
                f(y * self.image[1] + x);
            }
        }
    }
}

/// Returns the sizes of the windows of a pooling operator over the rows and columns of `x`, an image. Each window
/// contains at least one element.
pub(super) fn pooling(x: Shape, kernel: [usize; 2], window: Window) -> Result<WindowSizes, OpError> {
    let error = || OpError::Window { kernel, found: x.to_string() };
    let &[_, height, width] = x.dimensions() else {
        return Err(OpError::NotAnImage { input: 0, found: x.to_string() });
    };
    if x.dtype() != DType::F32 || (0..2).any(|axis| window.padding[axis] > kernel[axis] / 2) {
        return Err(error());
    }
    window.sizes(kernel, [height, width]).ok_or_else(error)
}

/// Returns the output of a pooling operator.
pub(super) fn pooling_output(io: &Signature<'_>, kernel: [usize; 2], window: Window) -> Result<Option<Shape>, OpError> {
    let [x] = io.inputs([DType::F32])?;
    io.params(&[], 0)?;
    let [rows, columns] = pooling(x, kernel, window)?.windows;
    Ok(Some(x.with_dimensions(x.dimension_list().with_size(1, rows).with_size(2, columns))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_as_in_pytorch() {
        let window =
            |stride, padding, dilation| Window { stride: [stride, 1], padding: [padding, 0], dilation: [dilation, 1] };
        for ((kernel, stride, padding, dilation, image), expected) in [
            ((3, 1, 0, 1, 9), Some(7)),
            ((3, 2, 1, 1, 9), Some(5)),
            ((3, 2, 1, 1, 10), Some(5)),
            ((3, 1, 0, 4, 9), Some(1)),
            ((3, 1, 0, 4, 8), None),
            ((1, 9, 0, 1, 9), Some(1)),
            ((0, 1, 0, 1, 9), None),
            ((3, 0, 0, 1, 9), None),
            ((3, 1, 0, 0, 9), None),
            ((3, 1, usize::MAX, 1, 9), None),
            ((usize::MAX, 1, 0, usize::MAX, 9), None),
        ] {
            let sizes = window(stride, padding, dilation).sizes([kernel, 1], [image, 1]);
            assert_eq!(sizes.map(|sizes| sizes.windows[0]), expected, "{kernel} {stride} {padding} {dilation} {image}");
        }
    }

    #[test]
    fn elements_in_the_padding_are_skipped() {
        let sizes = Window { padding: [1, 1], ..Window::default() }.sizes([2, 2], [3, 3]).unwrap();
        let elements = |window| {
            let mut found = Vec::new();
            sizes.for_each_element(window, |element| found.push(element));
            found
        };
        assert_eq!((sizes.windows, elements([0, 0]), elements([1, 3])), ([4, 4], vec![0], vec![2, 5]));
    }
}
