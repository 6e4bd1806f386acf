"""Operators of TensorFlow that move elements, and those of images, computed by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from millrace.keras.host import array, is_numpy, number, sizes, tensor
from millrace.keras.tensorflow_operators import Function, translates
from millrace.torch.operands import UnsupportedModelError


@translates("Shape")
def _shape(f: Function) -> Any:
    return array(f.inputs[0].shape)


@translates("ShapeN")
def _shapes(f: Function) -> Any:
    return [array(item.shape) for item in f.inputs]


@translates("Size")
def _size(f: Function) -> Any:
    return np.prod(array(f.inputs[0].shape)).reshape(())


@translates("Rank")
def _rank(f: Function) -> Any:
    return np.array(len(f.inputs[0].shape))


@translates("BroadcastArgs")
def _broadcast_sizes(f: Function) -> Any:
    return array(torch.broadcast_shapes(*(sizes(item) for item in f.inputs)))


@translates("Reshape")
def _reshape(f: Function) -> Any:
    value, shape = f.inputs[0], sizes(f.inputs[1])
    return value.reshape(shape) if is_numpy(value) else tensor(value).reshape(shape)


@translates("Transpose")
def _transpose(f: Function) -> Any:
    value, order = f.inputs[0], sizes(f.inputs[1])
    return value.transpose(order) if is_numpy(value) else tensor(value).permute(order)


@dataclass(frozen=True)
class SpaceToBatch:
    """A tensor whose elements TensorFlow distributes over more samples, to convolve them with a dilation."""

    x: torch.Tensor
    dilation: tuple[int, ...]
    """The dilation of each dimension after that of samples."""


@translates("SpaceToBatchND")
def _space_to_batch(f: Function) -> Any:
    value, block = tensor(f.inputs[0]), sizes(f.inputs[1])
    amounts = np.asarray(f.inputs[2]).tolist()
    flat = [0, 0] * (value.dim() - 1 - len(block)) + [
        int(item) for pair in reversed(amounts) for item in pair
    ]
    return SpaceToBatch(F.pad(value, flat), tuple(block))


@translates("BatchToSpaceND")
def _batch_to_space(f: Function) -> Any:
    divided, block, crops = f.inputs[0], sizes(f.inputs[1]), np.asarray(f.inputs[2]).tolist()
    if not isinstance(divided, SpaceToBatch) or divided.dilation != tuple(block):
        raise UnsupportedModelError("elements that are moved from a sample to another")
    value = divided.x
    for axis, (before, after) in enumerate(crops, 1):
        value = value.narrow(axis, int(before), value.shape[axis] - int(before) - int(after))
    return value


@translates("ExpandDims")
def _expand_dims(f: Function) -> Any:
    value, axis = f.inputs[0], int(number(f.inputs[1]))
    if isinstance(value, SpaceToBatch) and axis % (value.x.dim() + 1) == 1:
        return SpaceToBatch(value.x.unsqueeze(1), (1, *value.dilation))
    return np.expand_dims(value, axis) if is_numpy(value) else tensor(value).unsqueeze(axis)


@translates("Squeeze")
def _squeeze(f: Function) -> Any:
    value, axes = f.inputs[0], list(f.attribute("squeeze_dims"))
    if isinstance(value, SpaceToBatch) and [axis % value.x.dim() for axis in axes] == [1]:
        return SpaceToBatch(value.x.squeeze(1), value.dilation[1:])
    if is_numpy(value):
        return np.squeeze(value, tuple(axes) if axes else None)
    value = tensor(value)
    rank = value.dim()
    axes = axes or [at for at, size in enumerate(value.shape) if isinstance(size, int) and size == 1]
    removed = {axis % rank for axis in axes}
    return value.reshape([size for at, size in enumerate(value.shape) if at not in removed])


@translates("Pack")
def _pack(f: Function) -> Any:
    axis = f.attribute("axis")
    if all(is_numpy(item) for item in f.inputs):
        if all(item.shape == () for item in f.inputs):
            found = np.stack(f.inputs, axis)
            return array(found.tolist()) if found.dtype == object else found
        return np.stack(f.inputs, axis)
    return torch.stack([tensor(item) for item in f.inputs], axis)


@translates("Unpack")
def _unpack(f: Function) -> Any:
    value, axis = f.inputs[0], f.attribute("axis")
    if is_numpy(value):
        return list(np.moveaxis(value, axis, 0))
    return list(torch.unbind(tensor(value), axis))


@translates("ConcatV2")
def _concatenate(f: Function) -> Any:
    *items, axis = f.inputs
    axis = int(number(axis))
    if all(is_numpy(item) for item in items):
        return np.concatenate(items, axis)
    return torch.cat([tensor(item) for item in items], axis)


@translates("Split")
def _split(f: Function) -> Any:
    axis, value = int(number(f.inputs[0])), f.inputs[1]
    parts = f.attribute("num_split")
    if is_numpy(value):
        return np.split(value, parts, axis)
    value = tensor(value)
    return list(torch.split(value, value.shape[axis] // parts, axis))


@translates("SplitV")
def _split_by_sizes(f: Function) -> Any:
    value, parts, axis = tensor(f.inputs[0]), sizes(f.inputs[1]), int(number(f.inputs[2]))
    if -1 in parts:
        parts[parts.index(-1)] = value.shape[axis] - sum(parts) - 1
    return list(torch.split(value, parts, axis))


@translates("Slice")
def _slice(f: Function) -> Any:
    value, starts, counts = f.inputs[0], sizes(f.inputs[1]), sizes(f.inputs[2])
    ends = [
        None if count is size or (isinstance(count, int) and count == -1) else start + count
        for start, count, size in zip(starts, counts, value.shape, strict=True)
    ]
    index = tuple(slice(start, end) for start, end in zip(starts, ends, strict=True))
    return value[index] if is_numpy(value) else tensor(value)[index]


@translates("StridedSlice")
def _strided_slice(f: Function) -> Any:
    value = f.inputs[0]
    starts, ends, steps = (sizes(item) for item in f.inputs[1:4])
    masks = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    begin, end, ellipsis, new, shrink = (f.attribute(name) for name in masks)
    index: list[Any] = []
    for at, (start, stop, step) in enumerate(zip(starts, ends, steps, strict=True)):
        bit = 1 << at
        if ellipsis & bit:
            index.append(Ellipsis)
        elif new & bit:
            index.append(None)
        elif shrink & bit:
            index.append(start)
        else:
            index.append(slice(None if begin & bit else start, None if end & bit else stop, step))
    if is_numpy(value):
        return np.asarray(value[tuple(index)])
    return _indexed(tensor(value), index)


def _indexed(value: torch.Tensor, index: Sequence[Any]) -> torch.Tensor:
    """Return a part of a tensor. PyTorch has no negative steps."""
    taken = sum(item is not None and item is not Ellipsis for item in index)
    axis, found = 0, []
    for item in index:
        if item is Ellipsis:
            axis += value.dim() - taken
        elif isinstance(item, slice) and item.step is not None and item.step < 0:
            if (item.start, item.stop, item.step) != (None, None, -1):
                raise UnsupportedModelError("a part with a negative step other than x[::-1]")
            value, item = value.flip(axis), slice(None)
        axis += item is not None and item is not Ellipsis
        found.append(item)
    return value[tuple(found)]


@translates("Tile")
def _tile(f: Function) -> Any:
    value, counts = f.inputs[0], sizes(f.inputs[1])
    return np.tile(value, counts) if is_numpy(value) else tensor(value).repeat(counts)


@translates("BroadcastTo")
def _broadcast(f: Function) -> Any:
    value, shape = f.inputs[0], sizes(f.inputs[1])
    if is_numpy(value) and all(isinstance(size, int) for size in shape):
        return np.broadcast_to(value, shape)
    return tensor(value).expand(shape)


@translates("Pad", "PadV2")
def _pad(f: Function) -> Any:
    value, amounts = tensor(f.inputs[0]), np.asarray(f.inputs[1]).tolist()
    fill = number(f.inputs[2]) if len(f.inputs) > 2 else 0
    flat = [int(amount) for pair in reversed(amounts) for amount in pair]
    while flat and flat[-2:] == [0, 0]:
        flat = flat[:-2]
    return F.pad(value, flat, value=fill) if flat else value


@translates("ReverseV2")
def _reverse(f: Function) -> Any:
    return tensor(f.inputs[0]).flip(sizes(f.inputs[1]))


@translates("Roll")
def _roll(f: Function) -> Any:
    return torch.roll(tensor(f.inputs[0]), sizes(f.inputs[1]), sizes(f.inputs[2]))


@translates("MatrixBandPart")
def _band(f: Function) -> Any:
    value, lower, upper = f.inputs[0], int(number(f.inputs[1])), int(number(f.inputs[2]))
    band = tensor(value)
    if band.dtype == torch.bool:
        ones = torch.ones(band.shape[-2:])
        ones = ones if lower < 0 else ones.triu(-lower)
        ones = ones if upper < 0 else ones.tril(upper)
        band = band & (ones > 0)
    else:
        band = band if lower < 0 else band.triu(-lower)
        band = band if upper < 0 else band.tril(upper)
    return band
