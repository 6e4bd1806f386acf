"""Operators that assign elements to computed indices, by a comparison of each index with each position."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from millrace.torch.layout import Layout
from millrace.torch.operands import Operand, Traced, UnsupportedModelError
from millrace.torch.operators.elementwise import binary
from millrace.torch.operators.functions import compare, select
from millrace.torch.operators.reductions import reduce
from millrace.torch.operators.registry import translates
from millrace.torch.operators.shapes import part, permute
from millrace.torch.translator import Translator

MAX_PAIRS = 1 << 24
"""Maximum pairs of an index and a position per sample, which are compared."""


@translates("scatter.src", "scatter.value", "scatter_add", "index_add")
def _scatter(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    whole, dim, index, new = args[:4]
    x = t.cast(t.expand(t.value(whole, layout), layout.sample), t.dtype)
    axis, count = layout.dimension(dim), layout.sample[layout.dimension(dim)]
    if t.name.startswith("index_add"):
        # One index for all other dimensions, in which the new elements have the size of the whole.
        of_index = layout.with_size(dim, index.layout.sizes[0])
        sizes = [1 if at != layout.index(dim) else of_index.sizes[at] for at in range(layout.rank)]
        flat = t.traced(index)
        index = Traced(t.expand(t.reshape(flat.value, _sample_of(sizes, layout)), of_index.sample), of_index)
    indices = t.traced(index)
    of_index = layout.with_size(dim, indices.layout.sizes[layout.index(dim)])
    if indices.layout.sizes != of_index.sizes:
        raise UnsupportedModelError("scatter with indices of a part of the other dimensions: use torch.where")
    positions = t.value(index, of_index)
    if count * prod(positions.shape) > MAX_PAIRS:
        raise UnsupportedModelError(
            f"scatter of {prod(positions.shape)} elements to {count} positions: use torch.gather or F.one_hot"
        )
    order = [at for at in range(len(x.shape)) if at != axis] + [axis]
    rows = permute(t, positions, order)
    numbers = torch.arange(count, dtype=torch.int32)[:, None]
    # For each position and each index.
    is_hit = compare(t, "eq", t.constant(numbers), t.reshape(rows, (*rows.shape[:-1], 1, rows.shape[-1])))
    hits = t.cast(is_hit, "f32")
    if isinstance(new, int | float):
        values = t.number(new)
    else:
        given = t.traced(new)
        values = t.expand(t.value(new, given.layout), given.layout.sample)
        for at, size in enumerate(positions.shape):
            values = part(t, values, at, 0, size)
        values = permute(t, t.cast(values, "f32"), order)
        values = t.reshape(values, (*values.shape[:-1], 1, values.shape[-1]))
    last = len(hits.shape) - 1
    is_sum = "add" in t.name
    if not is_sum:
        # Of several elements for one position, the last one counts.
        number = t.graph.node({"op": "cumulative_sum", "axis": last}, [hits], hits.shape)
        total = reduce(t, hits, [last], "sum", keep=True)
        is_last = compare(t, "eq", number, total)
        is_hit = t.graph.node({"op": "logical", "function": "and"}, [is_hit, is_last], hits.shape, "bool")
    chosen = reduce(t, select(t, is_hit, values, t.number(0.0)), [last], "sum", keep=False)
    back = [order.index(at) for at in range(len(order))]
    chosen = permute(t, chosen, back)
    if is_sum:
        factor = kwargs.get("alpha", 1)
        chosen = chosen if factor == 1 else binary(t, "mul", chosen, t.number(factor))
        return Traced(t.cast(binary(t, "add", t.cast(x, "f32"), chosen), t.dtype), layout)
    any_hit = permute(t, compare(t, "gt", reduce(t, hits, [last], "max", keep=False), t.number(0.0)), back)
    return Traced(t.cast(select(t, any_hit, chosen, t.cast(x, "f32")), t.dtype), layout)


def _sample_of(sizes: list[int], layout: Layout) -> tuple[int, ...]:
    """Return the dimensions per sample of a shape with those of a layout."""
    return tuple(size for at, size in enumerate(sizes) if at != layout.axis or layout.merged > 1)
