"""Convolutions, pooling, and changes of the size of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from millrace.torch.operators.layers import images_of_sample, matmul
from millrace.torch.operators.reductions import reduce
from millrace.torch.operators.registry import completed, translates
from millrace.torch.operators.shapes import join, part, permute, with_borders
from millrace.torch.translator import Translator


def _each(given: Sequence[int], rank: int) -> list[int]:
    return list(given) if len(given) == rank else list(given) * rank


@translates("convolution")
def _convolution(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, weight, bias = t.traced(args[0]), args[1], args[2]
    rank = x.layout.rank - 2
    stride, padding, dilation = (_each(item, rank) for item in args[3:6])
    is_transposed, output_padding, groups = args[6], _each(args[7], rank), args[8]
    if x.layout.axis == 1 or (isinstance(weight, Traced) and weight.layout.axis is not None):
        raise UnsupportedModelError(
            "a convolution with other weights for each sample: write it as a product with unfold(x)"
        )
    images = images_of_sample(x)
    image = _folded(t, x.value, rank)
    if is_transposed:
        image = _insert_zeros(t, image, weight, stride, padding, dilation, output_padding)
        stride, padding = [1] * rank, [0] * rank
    image = t.reshape(image, (images, x.layout.sizes[1], *image.shape[1:]))
    is_plain = isinstance(weight, Parameter) and not weight.transposed
    if not is_plain or not isinstance(bias, Parameter | None) or rank > 2:
        kernel = t.traced(weight).value
        kernel = _reversed_kernel(t, kernel, groups) if is_transposed else kernel
        # The images are a further dimension, in which the kernel has one element.
        image, kernel = permute(t, image, _exchanged(image)), t.reshape(kernel, _with_one(kernel))
        window = [[1, *stride], [0, *padding], [1, *dilation]]
        value = _as_product(t, image, kernel, window, groups)
        if bias is not None:
            by_channel = (kernel.shape[0], *(1 for _ in value.shape[1:]))
            value = binary(t, "add", value, t.reshape(t.traced(bias).value, by_channel))
        return Traced(t.reshape(permute(t, value, _exchanged(value)), layout.sample), layout)
    shape = (layout.sizes[1], image.shape[1] // groups, *(1 for _ in range(2 - rank)), *weight.shape[2:])
    params = [t.tensor(weight, "weight", transposed=is_transposed, shape=shape)]
    params += [] if bias is None else [t.tensor(bias, "bias")]
    node = {"op": "convolution", "groups": groups}
    if rank == 1:
        # The images are the lines of one image.
        node |= {"stride": [1, *stride], "padding": [0, *padding], "dilation": [1, *dilation]}
        image = permute(t, image, _exchanged(image))
        value = t.graph.node(node, [image], (shape[0], images, layout.sizes[2]), params=params)
        return Traced(t.reshape(permute(t, value, _exchanged(value)), layout.sample), layout)
    node |= {"stride": stride, "padding": padding, "dilation": dilation}
    if images == 1:
        image = t.reshape(image, image.shape[1:])
        value = t.graph.node(node, [image], (shape[0], *layout.sizes[2:]), params=params)
        return Traced(t.reshape(value, layout.sample), layout)
    # The images are one below the other, each with its own padding.
    reach = dilation[0] * (weight.shape[2] - 1) + 1
    height = image.shape[2] + 2 * padding[0]
    fill = -height % stride[0]
    image = with_borders(t, image, 2, padding[0], padding[0] + fill, 0)
    lines = image.shape[2] // stride[0]
    image = permute(t, image, _exchanged(image))
    image = t.reshape(image, (image.shape[0], images * image.shape[2], image.shape[3]))
    image = with_borders(t, image, 1, 0, max(reach - stride[0], 0), 0)
    node["padding"] = [0, padding[1]]
    value = t.graph.node(node, [image], (shape[0], images * lines, layout.sizes[3]), params=params)
    value = t.reshape(value, (shape[0], images, lines, layout.sizes[3]))
    value = part(t, value, 2, 0, layout.sizes[2])
    return Traced(permute(t, value, _exchanged(value)), layout)


def _folded(t: Translator, x: Value, rank: int) -> Value:
    """Return images, of which a value may have several, with the channels of all in one dimension."""
    return t.reshape(x, (prod(x.shape[: len(x.shape) - rank]), *x.shape[len(x.shape) - rank :]))


def _exchanged(x: Value) -> list[int]:
    """Return the order of dimensions in which the first two are exchanged."""
    return [1, 0, *range(2, len(x.shape))]


def _with_one(kernel: Value) -> tuple[int, ...]:
    return (*kernel.shape[:2], 1, *kernel.shape[2:])


def _reversed_kernel(t: Translator, kernel: Value, groups: int) -> Value:
    """Return the weights of the convolution that a transposed convolution is, see `oriented`."""
    inputs, outputs, *sizes = kernel.shape
    order = [0, 2, 1, *range(3, 3 + len(sizes))]
    kernel = permute(t, t.reshape(kernel, (groups, inputs // groups, outputs, *sizes)), order)
    kernel = t.reshape(kernel, (groups * outputs, inputs // groups, *sizes))
    for axis, size in enumerate(sizes, 2):
        kernel = take(t, kernel, axis, list(reversed(range(size))))
    return kernel


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


@dataclass(frozen=True)
class _Window:
    """The windows of a pooling in one dimension."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    def missing(self, size: int, outputs: int) -> int:
        """Return how many elements the last of `outputs` windows lacks, which `ceil_mode` permits."""
        end = (outputs - 1) * self.stride + self.dilation * (self.kernel - 1) + 1 - self.padding
        return max(end - size - self.padding, 0)

    def counts(self, size: int, outputs: int, *, with_padding: bool) -> torch.Tensor:
        """Return of how many elements each of `outputs` windows is the mean."""
        border = self.padding if with_padding else 0
        starts = [at * self.stride - self.padding for at in range(outputs)]
        ends = [min(start + self.kernel, size + border) for start in starts]
        return torch.tensor([end - max(start, -border) for start, end in zip(starts, ends, strict=True)])


def _windows(rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> list[_Window]:
    """Return the windows of each dimension. Without a stride, they do not overlap."""
    given = (
        [item] if isinstance(item, int) else item for item in (kernel, stride or kernel, padding, dilation)
    )
    return [_Window(*sizes) for sizes in zip(*(_each(item, rank) for item in given), strict=True)]


def _pooled(t: Translator, x: Value, windows: list[_Window], node: dict[str, Any]) -> Value:
    """Add the pooling of the dimensions after that of channels, two at a time."""
    if len(windows) == 3:
        channels, depth, *sizes = x.shape
        x = _pooled(t, t.reshape(x, (channels * depth, *sizes)), windows[1:], node)
        x, sizes = t.reshape(x, (channels, depth, prod(x.shape[1:]))), list(x.shape[1:])
        x = _pooled(t, x, [windows[0], _Window(1, 1, 0)], node)
        return t.reshape(x, (*x.shape[:2], *sizes))
    shape = [
        (size + 2 * window.padding - window.dilation * (window.kernel - 1) - 1) // window.stride + 1
        for size, window in zip(x.shape[1:], windows, strict=True)
    ]
    names = ["kernel", "stride", "padding"] + ([] if node["op"] == "average_pool" else ["dilation"])
    node = node | {name: [getattr(window, name) for window in windows] for name in names}
    return t.graph.node(node, [x], (x.shape[0], *shape))


@translates("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, kernel, stride, padding, dilation, _ = completed(args, None, None, [], 0, 1, False)
    rank = 3 if "3d" in t.name else 2
    windows = _windows(rank, kernel, stride, padding, dilation)
    value = _folded(t, t.traced(x).value, rank)
    for axis, (window, outputs) in enumerate(zip(windows, layout.sample[-rank:], strict=True), 1):
        # A last window that is not complete: what it lacks is never the largest.
        value = with_borders(t, value, axis, 0, window.missing(value.shape[axis], outputs), -inf)
    return [Traced(t.reshape(_pooled(t, value, windows, {"op": "max_pool"}), layout.sample), layout), None]


@translates("avg_pool2d", "avg_pool3d")
def _average_pool(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, kernel, stride, padding, _, counts_padding, divisor = completed(
        args, None, None, [], 0, False, True, None
    )
    rank = 3 if "3d" in t.name else 2
    windows, outputs = _windows(rank, kernel, stride, padding), layout.sample[-rank:]
    value = _folded(t, t.traced(x).value, rank)
    sizes = value.shape[1:]
    missing = [window.missing(*both) for window, *both in zip(windows, sizes, outputs, strict=True)]
    is_plain = divisor is None and not any(missing)
    for axis, extra in enumerate(missing, 1):
        value = with_borders(t, value, axis, 0, extra, 0)
    node = {"op": "average_pool", "counts_padding": counts_padding or not is_plain}
    value = _pooled(t, value, windows, node)
    if not is_plain:
        # A mean over complete windows, times their elements divided by those that count.
        counts = torch.tensor(divisor or 1)
        for window, *both in zip(windows, sizes, outputs, strict=True) if divisor is None else ():
            counts = counts[..., None] * window.counts(*both, with_padding=counts_padding)
        factors = prod(window.kernel for window in windows) / counts
        value = binary(t, "mul", value, t.constant(factors))
    return Traced(t.reshape(value, layout.sample), layout)


@translates(
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"),
    *("adaptive_avg_pool3d", "_adaptive_avg_pool3d"),
)
def _adaptive_average(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0]).value
    return Traced(_resampled(t, x, layout.sample[-_rank(t) :], F.adaptive_avg_pool1d), layout)


@translates("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_maximum(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    value, rank = t.traced(args[0]).value, _rank(t)
    value = _folded(t, value, rank)
    for axis, wanted in enumerate(layout.sample[-rank:], 1):
        size = value.shape[axis]
        if size % wanted == 0:
            before, after = value.shape[:axis], value.shape[axis + 1 :]
            image = t.reshape(value, (prod(before), size, prod(after)))
            windows = _windows(2, [size // wanted, 1], None, 0)
            image = _pooled(t, image, windows, {"op": "max_pool"})
            value = t.reshape(image, (*before, wanted, *after))
            continue
        bounds = [(at * size // wanted, -(-(at + 1) * size // wanted)) for at in range(wanted)]
        parts = [part(t, value, axis, start, end) for start, end in bounds]
        value = join(t, [reduce(t, item, [axis], "max", keep=True) for item in parts], axis)
    return [Traced(t.reshape(value, layout.sample), layout), None]


def _rank(t: Translator) -> int:
    """Return the number of dimensions that the name of an operator has, such as `adaptive_max_pool2d`."""
    return next(rank for rank in (1, 2, 3) if f"{rank}d" in t.name)


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


@translates("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
def _interpolate(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, is_aligned = t.traced(args[0]).value, bool(args[2])
    rank = _rank(t)
    _check_scales(args, x, layout.sample, rank)

    def resample(rows: torch.Tensor, size: int) -> torch.Tensor:
        if "bicubic" not in t.name:
            return F.interpolate(rows, size, mode="linear", align_corners=is_aligned)
        image = F.interpolate(rows[:, :, None], (1, size), mode="bicubic", align_corners=is_aligned)
        return image[:, :, 0]

    return Traced(_resampled(t, x, layout.sample[-rank:], resample), layout)


@translates(
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d"),
)
def _nearest(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    value, rank = t.traced(args[0]).value, _rank(t)
    _check_scales(args, value, layout.sample, rank)
    mode = "nearest-exact" if "exact" in t.name else "nearest"
    for axis in range(len(value.shape) - rank, len(value.shape)):
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
