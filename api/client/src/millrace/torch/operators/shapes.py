"""Operators that move elements: views, parts, joins, padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch

from millrace.torch.document import Value
from millrace.torch.layout import Layout, MixesSamplesError
from millrace.torch.operands import (
    Fixed,
    LabelLosses,
    Loss,
    Losses,
    Operand,
    Parameter,
    ParameterView,
    Ratio,
    Traced,
    UnsupportedModelError,
)
from millrace.torch.operators.registry import completed, translates
from millrace.torch.translator import Translator, without_elements


def permute(t: Translator, x: Value, order: list[int]) -> Value:
    """Add a permutation of dimensions."""
    if order == sorted(order):
        return x
    return t.graph.node({"op": "permute", "order": order}, [x], tuple(x.shape[at] for at in order), x.dtype)


def on_last(t: Translator, x: Value, axis: int, function: Callable[[Value], Value]) -> Value:
    """Add a function of a value whose last dimension is `axis`, and move that dimension back."""
    order = [at for at in range(len(x.shape)) if at != axis] + [axis]
    return permute(t, function(permute(t, x, order)), [order.index(at) for at in range(len(order))])


def part(
    t: Translator, x: Value, axis: int, start: int, end: int, step: int = 1, *, drop: bool = False
) -> Value:
    """Add a part of a dimension. `drop` removes the dimension of a part of one element."""
    size = len(range(start, end, step))
    shape = x.shape[:axis] + (() if drop else (size,)) + x.shape[axis + 1 :]
    if shape == x.shape:
        return x
    node: dict[str, Any] = {"op": "slice", "axis": axis, "start": start, "end": end}
    node |= {"step": step} if step != 1 else {}
    node |= {"drop": True} if drop else {}
    return t.graph.node(node, [x], shape, x.dtype)


def join(t: Translator, parts: list[Value], axis: int) -> Value:
    """Add the concatenation of values along one dimension."""
    joined, *rest = [part for part in parts if part.shape[axis] > 0]
    while rest:
        now, rest = rest[:2], rest[2:]
        size = joined.shape[axis] + sum(item.shape[axis] for item in now)
        shape = (*joined.shape[:axis], size, *joined.shape[axis + 1 :])
        joined = t.graph.node({"op": "concatenate", "axis": axis}, [joined, *now], shape, joined.dtype)
    return joined


@translates("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten")
def _view(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    operand = args[0]
    if isinstance(operand, Parameter | ParameterView):
        view = t.parameter_view(operand, lambda strides: strides.view(layout.sizes))
        if view is not None:
            return view
    if isinstance(operand, Loss | Losses | Ratio):
        return operand
    if isinstance(operand, LabelLosses):
        return replace(operand, layout=operand.layout.reshaped(layout))
    x = t.traced(operand)
    layout = x.layout.reshaped(layout)
    return Traced(t.reshape(x.value, layout.sample), layout)


@translates("permute", "transpose", "t")
def _permute(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    order = list(args[1]) if len(args) > 1 else [1, 0]
    parameter = args[0]
    if isinstance(parameter, Parameter) and len(parameter.shape) == 2 and order[0] in (1, -1):
        return Parameter(parameter.name, parameter.shape[::-1], not parameter.transposed)
    if isinstance(parameter, Parameter | ParameterView):
        return t.parameter_view(parameter, lambda strides: strides.permute(order))
    x = t.traced(args[0])
    return Traced(permute(t, x.value, x.layout.order(order)), layout)


@translates("expand")
def _expand(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return Traced(t.expand(t.value(args[0], layout), layout.sample), layout)


def _is_whole(start: Any, end: Any, step: Any) -> bool:
    return start in (0, None) and step in (1, None) and (not isinstance(end, int) or end >= 1 << 62)


@translates("slice")
def _slice(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, dim, start, end, step = completed([t.traced(args[0]), *args[1:]], None, 0, None, None, 1)
    if x.layout.index(dim) == x.layout.axis and _is_whole(start, end, step):
        return x
    start, end, _ = slice(start, end, 1).indices(x.layout.sizes[x.layout.index(dim)])
    return Traced(part(t, x.value, x.layout.dimension(dim), start, end, step), layout)


@translates("select")
def _select(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    if isinstance(args[0], Losses):
        return args[0].items[args[2]]
    x, dim, index = t.traced(args[0]), args[1], args[2]
    index %= x.layout.sizes[x.layout.index(dim)]
    return Traced(part(t, x.value, x.layout.dimension(dim), index, index + 1, drop=True), layout)


@translates("split_with_sizes", "split")
def _split(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, sizes, dim = completed([t.traced(args[0]), *args[1:]], None, None, 0)
    axis = x.layout.dimension(dim)
    total = x.value.shape[axis]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]

    def part_of(end: int, size: int) -> Operand:
        layout = x.layout.with_size(dim, size)
        if size == 0:
            return without_elements(layout, torch.float32)
        return Traced(part(t, x.value, axis, end - size, end), layout)

    return [part_of(end, size) for end, size in zip(ends, sizes, strict=True)]


@translates("cat")
def _concatenate(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    items, dim = completed(args, None, 0)
    if any(isinstance(item, Loss | Losses) for item in items):
        return Losses(
            tuple(loss for item in items for loss in (item.items if isinstance(item, Losses) else [item]))
        )
    axis = layout.dimension(dim)
    parts = []
    # Parts without elements are left out. PyTorch allows an empty vector among tensors of a higher rank, with
    # which caches of transformers begin.
    for item in (item for item in items if not (isinstance(item, Fixed) and item.tensor.numel() == 0)):
        value = t.cast(t.value(item, layout), t.dtype)
        parts.append(t.expand(value, (*layout.sample[:axis], value.shape[axis], *layout.sample[axis + 1 :])))
    return Traced(join(t, parts, axis), layout)


@translates("constant_pad_nd")
def _pad(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, amounts, fill = completed([t.traced(args[0]), *args[1:]], None, None, 0)
    value = x.value
    for at in range(len(amounts) // 2):
        before, after = amounts[2 * at], amounts[2 * at + 1]
        if before == after == 0:
            continue
        axis = x.layout.dimension(-1 - at)
        value = part(t, value, axis, max(-before, 0), value.shape[axis] - max(-after, 0))
        value = with_borders(t, value, axis, max(before, 0), max(after, 0), fill)
    return Traced(value, layout)


def with_borders(t: Translator, x: Value, axis: int, before: int, after: int, fill: float) -> Value:
    """Add elements before and after those of a dimension."""
    if before == after == 0:
        return x
    if fill == 0:
        shape = (*x.shape[:axis], before + x.shape[axis] + after, *x.shape[axis + 1 :])
        return t.graph.node(
            {"op": "pad", "axis": axis, "before": before, "after": after}, [x], shape, x.dtype
        )
    sides = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in (before, after)]
    first, last = (t.expand(t.number(fill, x.dtype), side) if prod(side) else None for side in sides)
    return join(t, [item for item in (first, x, last) if item is not None], axis)


@translates("copy")
def _copy(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return Traced(t.cast(t.expand(t.value(args[1], layout), layout.sample), t.dtype), layout)


@translates("slice_scatter")
def _assign_slice(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    whole, new, dim, start, end, step = completed(args, None, None, 0, None, None, 1)
    if layout.index(dim) == layout.axis:
        if not _is_whole(start, end, step):
            raise MixesSamplesError("it assigns to a part of a batch")
        return Traced(t.cast(t.expand(t.value(new, layout), layout.sample), t.dtype), layout)
    start, end, _ = slice(start, end, 1).indices(layout.sizes[layout.index(dim)])
    of_part = layout.with_size(dim, len(range(start, end, step)))
    value, x = t.expand(t.value(new, of_part), of_part.sample), t.value(whole, layout)
    axis = layout.dimension(dim)
    if step == 1:
        return Traced(_replaced(t, x, value, layout, axis, start), layout)
    for at in range(value.shape[axis]):
        x = _replaced(t, x, part(t, value, axis, at, at + 1), layout, axis, start + at * step)
    return Traced(x, layout)


@translates("select_scatter")
def _assign_element(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    whole, new, dim, index = args
    index %= layout.sizes[layout.index(dim)]
    axis = layout.dimension(dim)
    shape = (*layout.sample[:axis], 1, *layout.sample[axis + 1 :])
    value = t.traced(new).value
    value = t.reshape(value, shape) if prod(value.shape) == prod(shape) else t.expand(value, shape)
    return Traced(_replaced(t, t.value(whole, layout), value, layout, axis, index), layout)


def _replaced(t: Translator, x: Value, new: Value, layout: Layout, axis: int, start: int) -> Value:
    """Return x with the elements from `start` on of one dimension replaced by those of `new`."""
    x, new = t.expand(t.cast(x, t.dtype), layout.sample), t.cast(new, t.dtype)
    size, end = x.shape[axis], start + new.shape[axis]
    parts = [new]
    if start > 0:
        parts.insert(0, part(t, x, axis, 0, start))
    if end < size:
        parts.append(part(t, x, axis, end, size))
    return join(t, parts, axis)


@translates("stack")
def _stack(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    items, dim = completed(args, None, 0)
    if any(isinstance(item, Loss) for item in items):
        if not all(isinstance(item, Loss) for item in items):
            raise UnsupportedModelError("losses and other values in one tensor: add them")
        return Losses(tuple(items))
    axis = layout.dimension(dim)
    one = (*layout.sample[:axis], 1, *layout.sample[axis + 1 :])
    of_item = Layout(
        tuple(size for at, size in enumerate(layout.sizes) if at != layout.index(dim)),
        None if layout.axis is None else layout.axis - (layout.index(dim) < layout.axis),
        layout.merged,
        layout.outer,
    )
    values = [t.cast(t.expand(t.value(item, of_item), of_item.sample), t.dtype) for item in items]
    return Traced(join(t, [t.reshape(value, one) for value in values], axis), layout)


@translates("repeat")
def _repeat(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, repeats = t.traced(args[0]), args[1]
    sizes = (1,) * (len(repeats) - x.layout.rank) + x.layout.sizes
    own_axis = None if x.layout.axis is None else x.layout.axis + len(repeats) - x.layout.rank
    if own_axis is not None and (repeats[own_axis] != 1 or own_axis != layout.axis):
        raise MixesSamplesError("it repeats the samples of a batch")
    value, axis = x.value, 0
    kept = [at for at in range(len(repeats)) if at != layout.axis or layout.merged > 1]
    value = t.reshape(value, tuple(sizes[at] for at in kept))
    for axis, at in enumerate(kept):
        if at != layout.axis and repeats[at] != 1:
            before, size, after = value.shape[:axis], value.shape[axis], value.shape[axis + 1 :]
            value = t.reshape(value, (prod(before), 1, size * prod(after)))
            value = t.expand(value, (value.shape[0], repeats[at], value.shape[2]))
            value = t.reshape(value, (*before, repeats[at] * size, *after))
    return Traced(value, layout)


@translates("unfold")
def _windows(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, dim, size, step = t.traced(args[0]), *args[1:]
    axis = x.layout.dimension(dim)
    count = layout.sample[axis]
    columns = [part(t, x.value, axis, at, at + (count - 1) * step + 1, step) for at in range(size)]
    columns = [t.reshape(item, (*item.shape, 1)) for item in columns]
    return Traced(join(t, columns, len(x.value.shape)), layout)
