"""Sums of windows that overlap: `fold` and the inverse of short-time Fourier transforms."""

from __future__ import annotations

from typing import Any

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import Operand, Traced, UnsupportedModelError
from millrace.torch.operators.elementwise import total
from millrace.torch.operators.registry import translates
from millrace.torch.operators.shapes import part, permute, with_borders
from millrace.torch.translator import Translator


def _overlapped(t: Translator, x: Value, axis: int, step: int, length: int) -> Value:
    """Return the sums of windows that begin `step` elements after each other, as one dimension of `length`.

    x [.., windows, size, ..] -> [.., length, ..], where `axis` is that of the windows.
    """
    count, size = x.shape[axis : axis + 2]
    chunks = -(-size // step)
    x = with_borders(t, x, axis + 1, 0, chunks * step - size, 0.0)
    rows = []
    # The same part of all windows is contiguous in the result.
    for at in range(chunks):
        chunk = part(t, x, axis + 1, at * step, (at + 1) * step)
        row = t.reshape(chunk, (*x.shape[:axis], count * step, *x.shape[axis + 2 :]))
        rows.append(with_borders(t, row, axis, at * step, (chunks - 1 - at) * step, 0.0))
    value = total(t, rows)
    longest = value.shape[axis]
    value = part(t, value, axis, 0, min(length, longest))
    return with_borders(t, value, axis, 0, max(length - longest, 0), 0.0)


@translates("col2im")
def _fold(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, output, kernel, dilation, padding, stride = t.traced(args[0]), *args[1:6]
    if list(dilation) != [1, 1]:
        raise UnsupportedModelError("fold with a dilation: use ConvTranspose2d")
    padded = [size + 2 * border for size, border in zip(output, padding, strict=True)]
    counts = [(size - width) // step + 1 for size, width, step in zip(padded, kernel, stride, strict=True)]
    channels = x.value.shape[-2] // (kernel[0] * kernel[1])
    value = t.reshape(x.value, (channels, *kernel, *counts))
    # [channels, kernel rows, kernel columns, rows, columns]
    value = _overlapped(t, permute(t, value, [0, 2, 3, 1, 4]), 2, stride[0], padded[0])
    value = _overlapped(t, permute(t, value, [0, 2, 3, 1]), 2, stride[1], padded[1])
    for axis, (size, border) in enumerate(zip(output, padding, strict=True), 1):
        value = part(t, value, axis, border, border + size)
    return Traced(t.reshape(value, layout.sample), layout)


@translates("unfold_backward")
def _sum_of_windows(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, _, dim, _, step = t.traced(args[0]), *args[1:5]
    axis, rank = layout.dimension(dim), len(x.value.shape)
    # The elements of windows are the last dimension.
    order = [*range(axis + 1), rank - 1, *range(axis + 1, rank - 1)]
    value = _overlapped(t, permute(t, x.value, order), axis, step, layout.sample[axis])
    return Traced(value, layout)
