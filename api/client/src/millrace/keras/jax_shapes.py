"""Primitives of JAX that move elements, and those of images, computed by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from millrace.keras.host import is_numpy, number, tensor
from millrace.keras.jax_primitives import Equation, dtype_of, translates
from millrace.torch.operands import UnsupportedModelError


@translates("broadcast_in_dim")
def _broadcast(e: Equation) -> Any:
    x, shape = e.inputs[0], e.sizes(e.params["shape"])
    dims = list(e.params["broadcast_dimensions"])
    is_fixed = all(isinstance(size, int) for size in shape)
    if is_numpy(x) and (is_fixed or x.dtype == object):
        sizes: list[Any] = [1] * len(shape)
        for at, size in zip(dims, x.shape, strict=True):
            sizes[at] = size
        return np.broadcast_to(x.reshape(sizes), shape)
    x = tensor(x)
    wide: list[Any] = [1] * len(shape)
    for at, size in zip(dims, x.shape, strict=True):
        wide[at] = size
    x = x.reshape(wide)
    is_same = all(old is new or old == new for old, new in zip(wide, shape, strict=True))
    return x if is_same else x.expand(shape)


@translates("reshape")
def _reshape(e: Equation) -> Any:
    x, shape = e.inputs[0], e.sizes(e.params["new_sizes"])
    return x.reshape(shape)


@translates("squeeze")
def _squeeze(e: Equation) -> Any:
    x, dims = e.inputs[0], e.params["dimensions"]
    return x.reshape([size for at, size in enumerate(x.shape) if at not in dims])


@translates("expand_dims")
def _expand_dims(e: Equation) -> Any:
    x = e.inputs[0]
    for at in sorted(e.params["dimensions"]):
        x = np.expand_dims(x, at) if is_numpy(x) else x.unsqueeze(at)
    return x


@translates("transpose")
def _transpose(e: Equation) -> Any:
    x, order = e.inputs[0], e.params["permutation"]
    return np.transpose(x, order) if is_numpy(x) else x.permute(order)


@translates("rev")
def _reverse(e: Equation) -> Any:
    x, dims = e.inputs[0], list(e.params["dimensions"])
    return np.flip(x, tuple(dims)) if is_numpy(x) else x.flip(dims)


@translates("concatenate")
def _concatenate(e: Equation) -> Any:
    axis = e.params["dimension"]
    if all(is_numpy(item) for item in e.inputs):
        return np.concatenate(e.inputs, axis)
    return torch.cat([tensor(item) for item in e.inputs], axis)


@translates("stack")
def _stack(e: Equation) -> Any:
    axis = e.params.get("axis", e.params.get("dimension", 0))
    if all(is_numpy(item) for item in e.inputs):
        return np.stack(e.inputs, axis)
    return torch.stack([tensor(item) for item in e.inputs], axis)


@translates("unstack")
def _unstack(e: Equation) -> Any:
    return list(torch.unbind(tensor(e.inputs[0]), e.params.get("axis", 0)))


@translates("split")
def _split(e: Equation) -> Any:
    return list(torch.split(tensor(e.inputs[0]), e.sizes(e.params["sizes"]), e.params["axis"]))


@translates("iota")
def _iota(e: Equation) -> Any:
    shape, at = e.sizes(e.params["shape"]), e.params["dimension"]
    sizes = [size if axis == at else 1 for axis, size in enumerate(shape)]
    if all(isinstance(size, int) for size in shape):
        row = np.arange(shape[at], dtype=np.dtype(e.params["dtype"])).reshape(sizes)
        return np.broadcast_to(row, shape)
    return torch.arange(shape[at], dtype=dtype_of(e.params["dtype"])).reshape(sizes).expand(shape)


@translates("pad")
def _pad(e: Equation) -> Any:
    x, fill = tensor(e.inputs[0]), number(e.inputs[1])
    amounts = [(e.size(low), e.size(high), e.size(inner)) for low, high, inner in e.params["padding_config"]]
    for axis, (_, _, inner) in enumerate(amounts):
        if inner:
            x = dilate(x, axis, inner + 1)
    flat = [amount for low, high, _ in reversed(amounts) for amount in (low, high)]
    while flat and all(isinstance(item, int) and item == 0 for item in flat[-2:]):
        flat = flat[:-2]
    return F.pad(x, flat, value=fill) if flat else x


def dilate(x: torch.Tensor, axis: int, step: int) -> torch.Tensor:
    """Return a tensor with zeros between the elements of a dimension, `step` - 1 each."""
    if step == 1:
        return x
    size = x.shape[axis]
    wide = torch.stack([x, *(torch.zeros_like(x) for _ in range(step - 1))], axis + 1)
    return wide.flatten(axis, axis + 1).narrow(axis, 0, (size - 1) * step + 1)


@translates("slice")
def _slice(e: Equation) -> Any:
    x = e.inputs[0]
    starts, ends = e.sizes(e.params["start_indices"]), e.sizes(e.params["limit_indices"])
    steps = e.params["strides"] or [1] * len(starts)
    index = tuple(
        slice(None)
        if step == 1 and isinstance(start, int) and start == 0 and (end is size or end == size)
        else slice(start, end, step)
        for start, end, step, size in zip(starts, ends, steps, x.shape, strict=True)
    )
    return x[index]


@translates("dynamic_slice")
def _dynamic_slice(e: Equation) -> Any:
    x, counts = e.inputs[0], e.sizes(e.params["slice_sizes"])
    index: list[Any] = []
    for start, count, size in zip(e.inputs[1 : 1 + len(counts)], counts, x.shape, strict=True):
        if count is size or not isinstance(count, int) or count == size:
            index.append(slice(None))
        elif is_numpy(start):
            first = min(max(int(start), 0), size - count)
            index.append(slice(first, first + count))
        else:
            raise UnsupportedModelError("a slice whose start depends on data: use keras.ops.take")
    return x[tuple(index)]


@translates("gather")
def _gather(e: Equation) -> Any:
    x, indices = e.inputs
    numbers, counts = e.params["dimension_numbers"], e.sizes(e.params["slice_sizes"])
    collapsed, mapped = list(numbers.collapsed_slice_dims), list(numbers.start_index_map)
    x = tensor(x)
    if is_numpy(indices) and indices.ndim == 1 and not numbers.operand_batching_dims:
        # A slice with a fixed start.
        for axis, start in zip(mapped, indices.tolist(), strict=True):
            x = x.narrow(axis, min(max(int(start), 0), x.shape[axis] - counts[axis]), counts[axis])
        return x.reshape([size for at, size in enumerate(x.shape) if at not in collapsed])
    is_whole = [count is size or count == size for count, size in zip(counts, x.shape, strict=True)]
    rest = [whole for at, whole in enumerate(is_whole) if at not in mapped]
    if numbers.operand_batching_dims or len(mapped) != 1 or collapsed != mapped or not all(rest):
        raise UnsupportedModelError(
            "an index other than one of a dimension: use keras.ops.take, or a product with keras.ops.one_hot"
        )
    axis = mapped[0]
    # The dimensions of the indices are where those of the elements are not.
    rank = len(e.outputs[0].aval.shape)
    of_indices = [at for at in range(rank) if at not in numbers.offset_dims]
    positions = tensor(indices)[..., 0].long()
    if axis == 0 and x.dim() == 2:
        found = F.embedding(positions, x)
        at = 0
    else:
        found, at = x[(slice(None),) * axis + (positions,)], axis
    wanted = list(range(at, at + positions.dim()))
    return found if of_indices == wanted else found.movedim(wanted, of_indices)


def _channels_first(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(-1, 1)


def _pooled(e: Equation) -> tuple[torch.Tensor, list[int], list[int], list[int]]:
    """Return an image with channels first, and kernel, stride and padding of its pooling."""
    x = tensor(e.inputs[0])
    kernel, stride = e.sizes(e.params["window_dimensions"]), list(e.params["window_strides"])
    amounts = [(e.size(low), e.size(high)) for low, high in e.params["padding"]]
    ends = (kernel[0], kernel[-1], stride[0], stride[-1])
    dilations = {*e.params["base_dilation"], *e.params["window_dilation"]}
    if ends != (1, 1, 1, 1) or amounts[0] != (0, 0) or amounts[-1] != (0, 0) or dilations != {1}:
        raise UnsupportedModelError("pooling other than of images with channels last")
    borders = [amount for pair in reversed(amounts[1:-1]) for amount in pair]
    return _channels_first(x), kernel[1:-1], stride[1:-1], borders


@translates("reduce_window_max")
def _max_pool(e: Equation) -> Any:
    x, kernel, stride, borders = _pooled(e)
    x = F.pad(x, borders, value=-torch.inf) if any(borders) else x
    pool = F.max_pool1d if len(kernel) == 1 else F.max_pool2d
    return pool(x, kernel, stride).movedim(1, -1)


@translates("reduce_window_sum")
def _sum_pool(e: Equation) -> Any:
    x, kernel, stride, borders = _pooled(e)
    x = F.pad(x, borders) if any(borders) else x
    if len(kernel) == 1:
        pooled = F.avg_pool2d(x.unsqueeze(2), [1, *kernel], [1, *stride]).squeeze(2)
    else:
        pooled = F.avg_pool2d(x, kernel, stride)
    return pooled.movedim(1, -1) * float(np.prod(kernel))


@translates("conv_general_dilated")
def _convolution(e: Equation) -> Any:
    x, kernel = (tensor(item) for item in e.inputs)
    numbers = e.params["dimension_numbers"]
    if e.params["batch_group_count"] != 1:
        raise UnsupportedModelError("a convolution with groups of samples")
    image, weight = x.permute(numbers.lhs_spec), kernel.permute(numbers.rhs_spec)
    for axis, step in enumerate(e.params["lhs_dilation"], 2):
        image = dilate(image, axis, step)
    amounts = [(e.size(low), e.size(high)) for low, high in e.params["padding"]]
    borders = [amount for pair in reversed(amounts) for amount in pair]
    image = F.pad(image, borders) if any(borders) else image
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(amounts)]
    stride, dilation = e.params["window_strides"], e.params["rhs_dilation"]
    result = function(image, weight, None, stride, 0, dilation, e.params["feature_group_count"])
    order = list(numbers.out_spec)
    return result.permute([order.index(at) for at in range(len(order))])
