"""Elements of images at computed coordinates: `grid_sample`."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import Operand, Traced, UnsupportedModelError
from millrace.torch.operators.elementwise import binary, total, unary
from millrace.torch.operators.functions import compare, plus, rounded, select, times
from millrace.torch.operators.indexing import gather_elements
from millrace.torch.operators.registry import translates
from millrace.torch.operators.shapes import part
from millrace.torch.translator import Translator

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _clamped(t: Translator, x: Value, high: float) -> Value:
    """Return numbers that are at least 0 and at most `high`."""
    return binary(t, "min", binary(t, "max", x, t.number(0.0)), t.number(high))


def _reflected(t: Translator, x: Value, low: float, span: float) -> Value:
    """Return coordinates that are reflected at `low` and at `low + span` until they are between them."""
    if span == 0:
        return times(t, x, 0.0)
    distance = unary(t, "abs", plus(t, x, -low))
    flips = unary(t, "floor", times(t, distance, 1 / span))
    rest = binary(t, "sub", distance, times(t, flips, span))
    half = times(t, flips, 0.5)
    is_even = compare(t, "eq", half, unary(t, "floor", half))
    return select(t, is_even, plus(t, rest, low), plus(t, unary(t, "neg", rest), span + low))


def _in_pixels(t: Translator, x: Value, size: int, padding: int, *, align_corners: bool) -> Value:
    """Return coordinates in pixels, the first one 0, of those of a grid from -1 to 1."""
    intervals = size - 1 if align_corners else size
    pixel = plus(t, times(t, plus(t, x, 1.0), intervals / 2), 0.0 if align_corners else -0.5)
    if padding == REFLECTION:
        pixel = _reflected(t, pixel, 0.0 if align_corners else -0.5, float(intervals))
    return pixel if padding == ZEROS else _clamped(t, pixel, size - 1)


def _corner(t: Translator, image: Value, pixels: list[Value], sizes: tuple[int, ...]) -> tuple[Value, Value]:
    """Return the elements at whole pixels, and 1 where these are in the image, 0 elsewhere."""
    index, inside = t.number(0.0), t.number(1.0)
    for pixel, size in zip(pixels, sizes, strict=True):
        known = _clamped(t, pixel, size - 1)
        index = binary(t, "add", times(t, index, float(size)), known)
        inside = binary(t, "mul", inside, t.cast(compare(t, "eq", pixel, known), "f32"))
    index = t.cast(index, "i32")
    return gather_elements(t, image, 1, t.reshape(index, (1, prod(index.shape)))), inside


@translates("grid_sampler_2d", "grid_sampler_3d")
def _grid_sample(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, grid, mode, padding, align_corners = t.traced(args[0]), t.traced(args[1]), *args[2:5]
    if mode not in (BILINEAR, NEAREST):
        raise UnsupportedModelError('grid_sample with mode="bicubic": use "bilinear"')
    if x.layout.axis != 0 or x.layout.merged > 1 or grid.layout.axis not in (0, None):
        raise UnsupportedModelError("grid_sample of something else than a batch of images")
    channels, *rest = x.value.shape
    sizes = tuple(rest)
    # A grid without a batch is the same for each sample.
    points = t.reshape(grid.value, grid.value.shape[-len(sizes) - 1 :])
    # The last dimension of a grid has the coordinate of the last dimension of the image first.
    axes = range(len(sizes))
    coordinates = [
        part(t, points, len(sizes), at, at + 1, drop=True) for at in (len(sizes) - 1 - axis for axis in axes)
    ]
    pixels = [
        _in_pixels(t, coordinates[axis], sizes[axis], padding, align_corners=align_corners) for axis in axes
    ]
    image = t.reshape(x.value, (channels, prod(sizes)))
    if mode == NEAREST:
        found, inside = _corner(t, image, [rounded(t, pixel) for pixel in pixels], sizes)
        result = binary(t, "mul", found, t.reshape(inside, (1, prod(inside.shape))))
        return Traced(t.reshape(result, layout.sample), layout)
    return Traced(t.reshape(_interpolated(t, image, pixels, sizes), layout.sample), layout)


def _interpolated(t: Translator, image: Value, pixels: list[Value], sizes: tuple[int, ...]) -> Value:
    """Return the means of the elements around coordinates, weighted by how near they are."""
    axes = range(len(sizes))
    lower = [unary(t, "floor", pixel) for pixel in pixels]
    weights = [binary(t, "sub", pixel, below) for pixel, below in zip(pixels, lower, strict=True)]
    items = []
    for corner in product((0, 1), repeat=len(sizes)):
        ends = [plus(t, lower[axis], 1.0) if corner[axis] else lower[axis] for axis in axes]
        found, weight = _corner(t, image, ends, sizes)
        for axis in axes:
            share = weights[axis] if corner[axis] else plus(t, unary(t, "neg", weights[axis]), 1.0)
            weight = binary(t, "mul", weight, share)
        items.append(binary(t, "mul", found, t.reshape(weight, (1, prod(weight.shape)))))
    return total(t, items)
