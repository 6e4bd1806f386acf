"""Operators that sort: by the number of elements that come before each element.

x [.., n] ── compare [.., n, n] ── sum ──> rank of each element
rank ── compare [.., n, n] ── sum ──> index of each rank ── gather ──> sorted elements
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import Fixed, Operand, Traced, UnsupportedModelError
from millrace.torch.operators.elementwise import binary
from millrace.torch.operators.functions import compare, log_add_exp, select
from millrace.torch.operators.reductions import reduce
from millrace.torch.operators.registry import completed, translates
from millrace.torch.operators.shapes import join, part, permute, with_borders
from millrace.torch.translator import Translator

LARGE = 1e30
"""A number that elements are smaller than."""

Function: TypeAlias = Callable[[Translator, Value, Value], Value]

MAX_SORTED = 512
"""Maximum elements of a dimension that is sorted, because all pairs of them are compared."""


def sorted_indices(t: Translator, x: Value, axis: int, *, descending: bool) -> Value:
    """Add the index of each element of a dimension in sorted order. Equal elements keep their order."""
    count = x.shape[axis]
    if count > MAX_SORTED:
        raise UnsupportedModelError(
            f"sorting of {count} elements: at most {MAX_SORTED} are sorted; use amax, amin or topk"
        )
    order = [at for at in range(len(x.shape)) if at != axis] + [axis]
    rows = permute(t, t.cast(x, "f32"), order)
    column, row = (*rows.shape, 1), (*rows.shape[:-1], 1, count)
    one, other = t.reshape(rows, column), t.reshape(rows, row)
    positions = torch.arange(count, dtype=torch.int32)
    is_earlier = t.constant(positions[None, :] < positions[:, None])
    is_equal = {"op": "logical", "function": "and"}
    pairs = (*rows.shape, count)
    ties = t.graph.node(is_equal, [compare(t, "eq", other, one), t.expand(is_earlier, pairs)], pairs, "bool")
    is_before = compare(t, "gt" if descending else "lt", other, one)
    is_before = t.graph.node({"op": "logical", "function": "or"}, [is_before, ties], pairs, "bool")
    rank = reduce(t, t.cast(is_before, "f32"), [len(pairs) - 1], "sum", keep=False)
    has_rank = compare(t, "eq", t.reshape(rank, row), t.constant(positions[:, None].float()))
    numbers = select(t, has_rank, t.constant(positions.float()), t.number(0.0))
    index = t.cast(reduce(t, numbers, [len(pairs) - 1], "sum", keep=False), "i32")
    return permute(t, index, [order.index(at) for at in range(len(order))])


def elements_at(t: Translator, x: Value, axis: int, index: Value) -> Value:
    """Add the elements of a dimension at computed indices, of which each position has its own."""
    node = {"op": "gather", "axis": axis}
    return t.cast(t.graph.node(node, [t.cast(x, "f32"), index], index.shape), x.dtype)


@translates("sort", "sort.stable")
def _sort(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, dim, descending = completed([t.traced(args[0]), *args[1:]], None, -1, False)
    axis = x.layout.dimension(kwargs.get("dim", dim))
    descending = bool(kwargs.get("descending", descending))
    index = sorted_indices(t, x.value, axis, descending=descending)
    return [Traced(elements_at(t, x.value, axis, index), layout), Traced(index, layout)]


@translates("kthvalue", "median.dim")
def _kth_smallest(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0])
    is_median = t.name.startswith("median")
    dim = args[1] if is_median else completed(args, None, None, -1)[2]
    axis = x.layout.dimension(dim)
    place = (x.value.shape[axis] - 1) // 2 if is_median else args[1] - 1
    index = part(t, sorted_indices(t, x.value, axis, descending=False), axis, place, place + 1)
    value = elements_at(t, x.value, axis, index)
    return [Traced(t.reshape(item, layout.sample), layout) for item in (value, index)]


@translates("prod.dim_int")
def _product_of_elements(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0])
    axis, value = x.layout.dimension(args[1]), t.cast(x.value, "f32")
    while (count := value.shape[axis]) > 1:
        half = count // 2
        pairs = [part(t, value, axis, start, start + half) for start in (0, half)]
        rest = part(t, value, axis, count - 1, count) if count % 2 else None
        value = binary(t, "mul", *pairs)
        if rest is not None:
            first = binary(t, "mul", part(t, value, axis, 0, 1), rest)
            value = join(t, [first, part(t, value, axis, 1, half)], axis) if half > 1 else first
    return Traced(t.cast(t.reshape(value, layout.sample), t.dtype), layout)


@translates("cumprod")
def _cumulative_product(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0])
    value = _accumulated(t, t.cast(x.value, "f32"), x.layout.dimension(args[1]), _binary("mul"), 1.0)
    return Traced(t.cast(value, t.dtype), layout)


@translates("cummax", "cummin")
def _cumulative_extreme(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0])
    axis, value = x.layout.dimension(args[1]), t.cast(x.value, "f32")
    function, neutral = ("min", LARGE) if t.name.startswith("cummin") else ("max", -LARGE)
    extremes = _accumulated(t, value, axis, _binary(function), neutral)
    # The index is that of the last element that was an extreme.
    numbers = torch.arange(value.shape[axis]).float().reshape(-1, *(1 for _ in value.shape[axis + 1 :]))
    known = select(t, compare(t, "eq", value, extremes), t.constant(numbers), t.number(0.0))
    index = _accumulated(t, known, axis, _binary("max"), 0.0)
    return [Traced(t.cast(extremes, t.dtype), layout), Traced(t.cast(index, "i32"), layout)]


@translates("logcumsumexp")
def _cumulative_log_sum(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0])
    return Traced(_accumulated(t, x.value, x.layout.dimension(args[1]), log_add_exp, -LARGE), layout)


def _accumulated(t: Translator, x: Value, axis: int, function: Function, neutral: float) -> Value:
    """Add a function of each element of a dimension and of all before it."""
    reach, count = 1, x.shape[axis]
    while reach < count:
        moved = with_borders(t, part(t, x, axis, 0, count - reach), axis, reach, 0, neutral)
        x = function(t, x, moved)
        reach *= 2
    return x


def _binary(function: str) -> Function:
    return lambda t, left, right: binary(t, function, left, right)


@translates("bucketize", "searchsorted")
def _bucket(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, bounds = args[:2] if t.name.startswith("bucketize") else args[1::-1]
    if not isinstance(bounds, Fixed) or bounds.tensor.dim() != 1:
        raise UnsupportedModelError(f"{t.name.split('.')[0]} with other bounds than a fixed list of numbers")
    is_right = kwargs.get("right", False) or kwargs.get("side") == "right"
    value = t.cast(t.value(x, layout), "f32")
    # The number of bounds before an element.
    element = t.reshape(value, (*value.shape, 1))
    is_before = compare(t, "ge" if is_right else "gt", element, t.constant(bounds.tensor.float()))
    count = reduce(t, t.cast(is_before, "f32"), [len(value.shape)], "sum", keep=False)
    return Traced(t.cast(count, "i32"), layout)
