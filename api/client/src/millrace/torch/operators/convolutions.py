"""Convolutions, pooling, and changes of the size of images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import inf, prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import Operand, Parameter, Traced, UnsupportedModelError
from millrace.torch.operators.elementwise import binary
from millrace.torch.operators.indexing import take
from millrace.torch.operators.layers import matmul
from millrace.torch.operators.registry import completed, translates
from millrace.torch.operators.shapes import join, part, permute, with_borders
from millrace.torch.translator import Translator


def _pair(given: int | Sequence[int]) -> list[int]:
    sizes = [given] if isinstance(given, int) else list(given)
    return sizes if len(sizes) == 2 else sizes * 2


def _each(given: Sequence[int], rank: int) -> list[int]:
    return list(given) if len(given) == rank else list(given) * rank


@translates("convolution")
def _convolution(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, weight, bias = t.traced(args[0]).value, args[1], args[2]
    rank = len(x.shape) - 1
    stride, padding, dilation = (_each(item, rank) for item in args[3:6])
    is_transposed, output_padding, groups = args[6], _each(args[7], rank), args[8]
    if is_transposed:
        x = _insert_zeros(t, x, weight, stride, padding, dilation, output_padding)
        stride, padding = [1] * rank, [0] * rank
    is_plain = isinstance(weight, Parameter) and not weight.transposed
    if not is_plain or not isinstance(bias, Parameter | None) or rank > 2:
        if is_transposed:
            raise UnsupportedModelError(
                "a transposed convolution with computed weights, or in three dimensions"
            )
        weight = t.traced(weight).value
        value = _as_product(t, x, weight, [stride, padding, dilation], groups)
        if bias is not None:
            value = binary(t, "add", value, t.reshape(t.traced(bias).value, (weight.shape[0], *[1] * rank)))
        return Traced(value, layout)
    # An image of one row, if there is one dimension.
    line = [1] * (2 - rank)
    kernel = tuple(weight.shape[2:])
    shape = (layout.sample[0], x.shape[0] // groups, *line, *kernel)
    params = [t.tensor(weight, "weight", transposed=is_transposed, shape=shape)]
    params += [] if bias is None else [t.tensor(bias, "bias")]
    node = {"op": "convolution", "stride": [*line, *stride], "padding": [*(0 for _ in line), *padding]}
    node |= {"dilation": [*line, *dilation], "groups": groups}
    image = t.reshape(x, (x.shape[0], *line, *x.shape[1:]))
    value = t.graph.node(node, [image], (layout.sample[0], *line, *layout.sample[1:]), params=params)
    return Traced(t.reshape(value, layout.sample), layout)


def _insert_zeros(
    t: Translator,
    x: Value,
    weight: Operand,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
) -> Value:
    """Return the image whose convolution is the transposed convolution: elements with zeros between them."""
    for axis, step in enumerate(stride, 1):
        kernel = weight.shape[axis + 1]
        if step > 1:
            before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
            x = t.reshape(x, (prod(before), size, 1, prod(after)))
            x = with_borders(t, x, 2, 0, step - 1, 0)
            x = part(t, t.reshape(x, (*before, size * step, *after)), axis, 0, size * step - step + 1)
        border = dilation[axis - 1] * (kernel - 1) - padding[axis - 1]
        first, last = border, border + output_padding[axis - 1]
        x = part(t, x, axis, max(-first, 0), x.shape[axis] - max(-last, 0))
        x = with_borders(t, x, axis, max(first, 0), max(last, 0), 0)
    return x


def _as_product(t: Translator, x: Value, weight: Value, window: list[list[int]], groups: int) -> Value:
    """Add a convolution as a product of the weights with the elements of each window."""
    stride, padding, dilation = window
    for axis, amount in enumerate(padding, 1):
        x = with_borders(t, x, axis, amount, amount, 0)
    kernel = weight.shape[2:]
    sizes = [
        (size - step * (count - 1) - 1) // jump + 1
        for size, count, jump, step in zip(x.shape[1:], kernel, stride, dilation, strict=True)
    ]
    columns = []
    for offsets in product(*(range(count) for count in kernel)):
        elements = x
        for axis, at in enumerate(offsets):
            start = at * dilation[axis]
            end = start + (sizes[axis] - 1) * stride[axis] + 1
            elements = part(t, elements, axis + 1, start, end, stride[axis])
        columns.append(t.reshape(elements, (x.shape[0], 1, prod(sizes))))
    rows = prod(kernel) * x.shape[0] // groups
    windows = t.reshape(join(t, columns, 1), (groups, rows, prod(sizes)))
    factors = t.reshape(weight, (groups, weight.shape[0] // groups, rows))
    return t.reshape(matmul(t, factors, windows), (weight.shape[0], *sizes))


@translates("max_pool2d_with_indices")
def _max_pool(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, kernel, stride, padding, dilation, _ = completed(args, None, None, [], 0, 1, False)
    node = _pooling("max_pool", kernel, stride, padding) | {"dilation": _pair(dilation)}
    value = t.traced(x).value
    for axis, extra in zip((-2, -1), _missing(node, value, layout), strict=True):
        # A last window that is not complete: what it lacks is never the largest.
        value = with_borders(t, value, len(value.shape) + axis, 0, extra, -inf)
    return [Traced(t.graph.node(node, [value], layout.sample), layout), None]


@translates("avg_pool2d")
def _average_pool(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, kernel, stride, padding, _, counts_padding, divisor = completed(
        args, None, None, [], 0, False, True, None
    )
    if divisor is not None:
        raise UnsupportedModelError("average pooling with divisor_override")
    node = _pooling("average_pool", kernel, stride, padding)
    value = t.traced(x).value
    if any(_missing(node, value, layout)):
        raise UnsupportedModelError("average pooling with ceil_mode, whose last window is not complete")
    node["counts_padding"] = counts_padding
    return Traced(t.graph.node(node, [value], layout.sample), layout)


def _pooling(
    kind: str, kernel: int | Sequence[int], stride: int | Sequence[int], padding: int | Sequence[int]
) -> dict[str, Any]:
    """Return a pooling operator. Without a stride, windows do not overlap."""
    return {"op": kind, "kernel": _pair(kernel), "stride": _pair(stride or kernel), "padding": _pair(padding)}


def _missing(node: dict[str, Any], x: Value, layout: Layout) -> list[int]:
    """Return how many rows and columns the last windows lack, which `ceil_mode` permits."""
    axes = zip(node["kernel"], node["stride"], node["padding"], node.get("dilation", [1, 1]), strict=True)
    ends = [
        (count - 1) * stride + dilation * (kernel - 1) + 1 - padding
        for (kernel, stride, padding, dilation), count in zip(axes, layout.sample[-2:], strict=True)
    ]
    pairs = zip(ends, x.shape[-2:], node["padding"], strict=True)
    return [max(end - size - padding, 0) for end, size, padding in pairs]


@translates("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def _adaptive_average(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0]).value
    rank = 1 if "1d" in t.name else 2
    return Traced(_resampled(t, x, layout.sample[-rank:], F.adaptive_avg_pool1d), layout)


@translates("adaptive_max_pool1d", "adaptive_max_pool2d")
def _adaptive_maximum(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0]).value
    line = [1] if "1d" in t.name else []
    image = t.reshape(x, (*x.shape[:1], *line, *x.shape[1:]))
    sizes = [*line, *layout.sample[1:]]
    kernel = [size // wanted for size, wanted in zip(image.shape[1:], sizes, strict=True)]
    if [size * wanted for size, wanted in zip(kernel, sizes, strict=True)] != list(image.shape[1:]):
        raise UnsupportedModelError("adaptive max pooling to a size that does not divide that of the image")
    node = {"op": "max_pool", "kernel": kernel, "stride": kernel}
    value = t.graph.node(node, [image], (x.shape[0], *sizes))
    return [Traced(t.reshape(value, layout.sample), layout), None]


def _resampled(t: Translator, x: Value, sizes: Sequence[int], resample: Any) -> Value:
    """Add a linear map of each of the last dimensions to another size; `resample` maps rows of numbers."""
    rank = len(x.shape)
    for axis, size in zip(range(rank - len(sizes), rank), sizes, strict=True):
        if x.shape[axis] == size:
            continue
        weights = resample(torch.eye(x.shape[axis])[None], size)[0]
        order = [at for at in range(rank) if at != axis] + [axis]
        rows = permute(t, x, order)
        rows = matmul(t, rows, t.constant(weights))
        x = permute(t, rows, [order.index(at) for at in range(rank)])
    return x


@translates("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d")
def _interpolate(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, is_aligned = t.traced(args[0]).value, bool(args[2])
    rank = 1 if "1d" in t.name else 2
    _check_scales(args, x, layout.sample, rank)

    def resample(rows: torch.Tensor, size: int) -> torch.Tensor:
        if "bicubic" not in t.name:
            return F.interpolate(rows, size, mode="linear", align_corners=is_aligned)
        image = F.interpolate(rows[:, :, None], (1, size), mode="bicubic", align_corners=is_aligned)
        return image[:, :, 0]

    return Traced(_resampled(t, x, layout.sample[-rank:], resample), layout)


@translates("upsample_nearest1d", "upsample_nearest2d", "_upsample_nearest_exact2d")
def _nearest(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    value = t.traced(args[0]).value
    rank = 1 if "1d" in t.name else 2
    _check_scales(args, value, layout.sample, rank)
    mode = "nearest-exact" if "exact" in t.name else "nearest"
    for axis in range(1, rank + 1):
        before, size, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
        wanted = layout.sample[axis]
        if wanted % size == 0:
            value = t.reshape(value, (prod(before), size, 1, prod(after)))
            value = t.expand(value, (prod(before), size, wanted // size, prod(after)))
            value = t.reshape(value, (*before, wanted, *after))
            continue
        positions = F.interpolate(torch.arange(float(size))[None, None], wanted, mode=mode)
        value = take(t, value, axis, [int(position) for position in positions.flatten()])
    return Traced(value, layout)


def _check_scales(args: list[Any], x: Value, sample: tuple[int, ...], rank: int) -> None:
    """Reject factors that differ from the ratio of the sizes, which PyTorch then uses instead."""
    scales = [item for item in args[2:] if isinstance(item, float)]
    for scale, size, wanted in zip(scales, x.shape[-rank:], sample[-rank:], strict=False):
        if abs(scale * size - wanted) > 1e-6:
            raise UnsupportedModelError("interpolation by a factor that makes no whole size: give size")
