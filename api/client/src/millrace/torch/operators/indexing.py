"""Operators that choose elements by their indices: gather, index, flip, argmax, one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import torch

from millrace.torch.document import Value
from millrace.torch.layout import Layout, MixesSamplesError
from millrace.torch.operands import Fixed, Operand, Parameter, Traced, UnsupportedModelError
from millrace.torch.operators.elementwise import unary
from millrace.torch.operators.functions import compare
from millrace.torch.operators.registry import completed, translates
from millrace.torch.operators.shapes import join, part, permute
from millrace.torch.operators.sorting import elements_at, sorted_indices
from millrace.torch.operators.unsupported import message
from millrace.torch.translator import BATCH, Translator, sample_elements

MAX_RUNS = 3
"""Indices of at most so many contiguous runs are slices."""

MAX_TOP = 8
"""Maximum k of a `topk` that is computed by one maximum after the other; others are sorted."""


def take(t: Translator, x: Value, axis: int, indices: Sequence[int]) -> Value:
    """Add the elements of a dimension at fixed indices."""
    size = x.shape[axis]
    indices = [index % size for index in indices]
    starts = [at for at, index in enumerate(indices) if at == 0 or index != indices[at - 1] + 1]
    if len(starts) <= MAX_RUNS:
        ends = [*starts[1:], len(indices)]
        runs = [(indices[start], end - start) for start, end in zip(starts, ends, strict=True)]
        return join(t, [part(t, x, axis, first, first + count) for first, count in runs], axis)
    column = torch.tensor(indices, dtype=torch.int32).reshape(-1, *(1 for _ in x.shape[axis + 1 :]))
    return gather_elements(t, x, axis, t.constant(column))


def gather_elements(t: Translator, x: Value, axis: int, index: Value) -> Value:
    """Add the elements of a dimension at computed indices, which are broadcast to the other dimensions."""
    count = index.shape[axis - len(x.shape)]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    values = [t.cast(x, "f32"), t.expand(t.cast(index, "i32"), shape)]
    return t.cast(t.graph.node({"op": "gather", "axis": axis}, values, shape), x.dtype)


@translates("gather")
def _gather(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0])
    axis, value = x.layout.dimension(args[1]), t.expand(x.value, _with_batch(x, layout))
    index = t.expand(t.value(args[2], layout), layout.sample)
    for at, size in enumerate(index.shape):
        if at != axis:
            value = part(t, value, at, 0, size)
    return Traced(gather_elements(t, value, axis, index), layout)


def _with_batch(x: Traced, layout: Layout) -> tuple[int, ...]:
    """Return the dimensions per sample of x, which is the same for each sample if it has no batch."""
    if x.layout.axis is not None or layout.axis is None:
        return x.value.shape
    raise MixesSamplesError("it chooses elements of a tensor for each of its samples")


@translates("index_select")
def _index_select(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, dim, index = args
    rank = len(x.shape) if isinstance(x, Parameter) else x.layout.rank
    return _index(t, layout, [x, [None] * (dim % rank) + [index]], {})


@translates("index")
def _index(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    operand = args[0]
    given = [(dim, _as_indices(index)) for dim, index in enumerate(args[1]) if index is not None]
    if isinstance(operand, Parameter) and len(operand.shape) == 2 and [dim for dim, _ in given] == [0]:
        index = t.traced(given[0][1])
        node, params = {"op": "embedding"}, [t.tensor(operand, "embedding")]
        rows = (*index.value.shape, operand.shape[1])
        return Traced(t.graph.node(node, [t.cast(index.value, "i32")], rows, params=params), layout)
    x = t.traced(operand)
    if x.layout.axis == 0 and given[0][0] == 0:
        return Traced(t.reshape(_of_each_sample(t, x, given), layout.sample), layout)
    if all(isinstance(index, Fixed) for _, index in given):
        return Traced(t.reshape(_at_fixed(t, x, given), layout.sample), layout)
    if len(given) > 1 or x.layout.axis is not None:
        raise UnsupportedModelError("an index that depends on data, other than one index for each sample")
    dim, index = given[0]
    value = _at(t, x.value, dim, t.traced(index).value)
    return Traced(t.reshape(value, layout.sample), layout)


def _as_indices(index: Operand) -> Operand:
    """Return the indices that a mask stands for."""
    if isinstance(index, Fixed) and index.tensor.dtype == torch.bool and index.tensor.dim() == 1:
        indices = index.tensor.nonzero().flatten()
        return Fixed(indices, Layout(tuple(indices.shape)))
    if isinstance(index, Traced | Fixed):
        dtype = index.value.dtype if isinstance(index, Traced) else index.tensor.dtype
        if dtype in ("bool", torch.bool):
            raise UnsupportedModelError(
                "an index by a mask, which makes a tensor whose size depends on data: use torch.where"
            )
    return index


def _of_each_sample(t: Translator, x: Traced, given: list[tuple[int, Operand]]) -> Value:
    """Add the elements at one index of each sample, as in `x[torch.arange(batch), index]`."""
    numbers = given[0][1]
    is_range = isinstance(numbers, Fixed) and numbers.layout.axis is not None
    if not is_range or numbers.tensor.flatten().tolist() != list(range(BATCH)):
        raise MixesSamplesError("it chooses samples of a batch")
    if [dim for dim, _ in given[1:]] != [1]:
        raise UnsupportedModelError("an index of each sample and of more than the dimension after it")
    index = given[1][1]
    if isinstance(index, Fixed):
        indices = sample_elements(index)
        return take(t, x.value, 0, indices.flatten().tolist())
    return _at(t, x.value, 0, t.traced(index).value)


def _at(t: Translator, x: Value, axis: int, index: Value) -> Value:
    """Add the elements of a dimension at computed indices; their dimensions replace it."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    column = t.reshape(index, (prod(index.shape), *(1 for _ in after)))
    return t.reshape(gather_elements(t, x, axis, column), (*before, *index.shape, *after))


def _at_fixed(t: Translator, x: Traced, given: list[tuple[int, Fixed]]) -> Value:
    """Add the elements at fixed indices of one or of adjacent dimensions."""
    axes = [x.layout.dimension(dim) for dim, _ in given]
    tensors = [sample_elements(index) for _, index in given]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise UnsupportedModelError("indices of dimensions that are not adjacent")
    rank = max(tensor.dim() for tensor in tensors)
    # The dimension of the result that each index has, if it has only one and they have the same order.
    padded = [tensor.reshape((1,) * (rank - tensor.dim()) + tensor.shape).shape for tensor in tensors]
    wide = [[at for at, size in enumerate(shape) if size > 1] for shape in padded]
    result_axes = [at for dims in wide for at in dims]
    if all(len(dims) == 1 for dims in wide) and result_axes == sorted(set(result_axes)):
        value = x.value
        for axis, tensor in zip(axes, tensors, strict=True):
            value = take(t, value, axis, tensor.flatten().tolist())
        return value
    sizes = [x.value.shape[axis] for axis in axes]
    position = torch.zeros((), dtype=torch.int64)
    for tensor, size in zip(tensors, sizes, strict=True):
        position = position * size + tensor % size
    flat = (*x.value.shape[: axes[0]], prod(sizes), *x.value.shape[axes[-1] + 1 :])
    return take(t, t.reshape(x.value, flat), axes[0], position.flatten().tolist())


@translates("index_put", "_unsafe_index_put")
def _assignment(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    whole, indices, new, is_sum = completed(args, None, None, None, False)[:4]
    if len(indices) > 1 or not isinstance(indices[0], Traced) or is_sum:
        raise UnsupportedModelError(message("index_put"))
    mask, number = indices[0], t.traced(new).value
    if mask.value.dtype != "bool" or prod(number.shape) != 1:
        raise UnsupportedModelError(message("index_put"))
    # As many dimensions as the tensor, whose first ones the mask has.
    trailing = (1,) * (layout.rank - mask.layout.rank)
    condition = t.reshape(mask.value, (*mask.value.shape, *trailing))
    x = t.expand(t.cast(t.value(whole, layout), t.dtype), layout.sample)
    values = [condition, t.cast(t.reshape(number, ()), t.dtype), x]
    return Traced(t.graph.node({"op": "select"}, values, layout.sample, t.dtype), layout)


@translates("flip")
def _flip(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0])
    value = x.value
    for dim in args[1]:
        axis = x.layout.dimension(dim)
        value = take(t, value, axis, list(reversed(range(value.shape[axis]))))
    return Traced(value, layout)


@translates("one_hot")
def _one_hot(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    index, classes = t.traced(args[0]), layout.sizes[-1]
    node = {"op": "one_hot", "classes": classes}
    value = t.graph.node(node, [t.cast(index.value, "i32")], (*index.value.shape, classes))
    return Traced(t.cast(value, t.dtype), layout)


def _index_of_largest(t: Translator, x: Value, axis: int) -> Value:
    """Add the index of the first of the largest elements of a dimension, which has a size of 1."""
    without = (*x.shape[:axis], *x.shape[axis + 1 :])
    index = t.graph.node({"op": "arg_max", "axis": axis}, [x], without, "i32")
    return t.reshape(index, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))


@translates("argmax", "argmin")
def _argmax(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, dim = completed([t.traced(args[0]), *args[1:]], None, None)[:2]
    if dim is None:
        raise MixesSamplesError("it computes over the samples of a batch")
    axis, value = x.layout.dimension(dim), t.cast(x.value, "f32")
    value = unary(t, "neg", value) if t.name.startswith("argmin") else value
    return Traced(t.reshape(_index_of_largest(t, value, axis), layout.sample), layout)


@translates("diagonal")
def _diagonal(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, offset, first, second = completed([t.traced(args[0]), *args[1:]], None, 0, 0, 1)
    axes = [x.layout.dimension(dim) for dim in (first, second)]
    rest = [at for at in range(len(x.value.shape)) if at not in axes]
    value = permute(t, x.value, [*rest, *axes])
    *others, rows, columns = value.shape
    places = [row * columns + row + offset for row in range(rows) if 0 <= row + offset < columns]
    flat = t.reshape(value, (*others, rows * columns))
    # Elements of a diagonal have the same distance.
    return Traced(part(t, flat, len(others), places[0], places[-1] + 1, columns + 1), layout)


@translates("max.dim", "min.dim")
def _extreme(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, axis = t.traced(args[0]), 0
    axis, value = x.layout.dimension(args[1]), t.cast(x.value, "f32")
    is_minimum = t.name.startswith("min")
    index = _index_of_largest(t, unary(t, "neg", value) if is_minimum else value, axis)
    value = t.reshape(gather_elements(t, value, axis, index), layout.sample)
    index = t.reshape(index, layout.sample)
    return [Traced(t.cast(value, t.dtype), layout), Traced(index, layout)]


@translates("topk")
def _topk(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, count, dim, is_largest = completed([t.traced(args[0]), *args[1:]], None, None, -1, True)[:4]
    axis, rest = x.layout.dimension(dim), t.cast(x.value, "f32")
    if not is_largest or count > MAX_TOP:
        index = part(t, sorted_indices(t, rest, axis, descending=is_largest), axis, 0, count)
        return [Traced(elements_at(t, x.value, axis, index), layout), Traced(index, layout)]
    positions = torch.arange(rest.shape[axis], dtype=torch.int32).reshape(
        -1, *(1 for _ in rest.shape[axis + 1 :])
    )
    values, indices = [], []
    for _ in range(count):
        index = _index_of_largest(t, rest, axis)
        values.append(gather_elements(t, rest, axis, index))
        indices.append(index)
        is_chosen = compare(t, "eq", t.constant(positions), index)
        rest = t.graph.node({"op": "select"}, [is_chosen, t.number(-inf), rest], rest.shape)
    return [Traced(join(t, items, axis), layout) for items in (values, indices)]
