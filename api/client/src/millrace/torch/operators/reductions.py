"""Reductions over dimensions of a sample, and the means over a batch that losses are."""

from __future__ import annotations

from math import prod
from typing import Any

from millrace.torch.document import Value
from millrace.torch.layout import Layout, MixesSamplesError
from millrace.torch.operands import LabelLosses, Loss, Losses, Operand, Ratio, Traced
from millrace.torch.operators.elementwise import binary, mean_loss, unary
from millrace.torch.operators.registry import TRANSLATIONS, Translation, completed, translates
from millrace.torch.operators.shapes import on_last
from millrace.torch.translator import Translator

REDUCTIONS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min"}


def reduce(t: Translator, x: Value, axes: list[int], reduction: str, *, keep: bool) -> Value:
    """Add a reduction over dimensions, which are kept with a size of 1 or removed."""
    if not axes:
        return x
    sizes = enumerate(x.shape)
    shape = tuple(1 if at in axes else size for at, size in sizes if keep or at not in axes)
    node: dict[str, Any] = {"op": "reduce", "reduction": reduction, "axes": sorted(axes)}
    return t.graph.node(node | ({"keep": True} if keep else {}), [x], shape)


def _dims(x: Traced | LabelLosses, given: Any) -> list[int]:
    dims = [given] if isinstance(given, int) else list(given or [])
    return [x.layout.index(dim) for dim in dims] or list(range(x.layout.rank))


def _reduction(name: str) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        operand, given, keep = completed(args, None, None, False)
        if isinstance(operand, Loss | Ratio) and name in ("mean", "sum"):
            return operand
        if isinstance(operand, Losses) and name in ("mean", "sum"):
            return operand.total().times(1.0 if name == "sum" else 1.0 / len(operand.items))
        is_loss = isinstance(operand, LabelLosses) and name in ("mean", "sum")
        if is_loss and len(_dims(operand, given)) == operand.layout.rank:
            return operand.mean if name == "mean" else operand.mean.as_sum(prod(operand.layout.sample))
        x = t.traced(operand)
        dims = _dims(x, given)
        if x.layout.axis in dims and name in ("mean", "sum") and len(dims) == x.layout.rank:
            loss = mean_loss(t, x)
            return loss if name == "mean" else loss.as_sum(prod(x.value.shape))
        if x.layout.axis in dims:
            raise MixesSamplesError(
                f"its {name} is over the samples of a batch; only a loss may be a mean over all of them"
            )
        axes = [x.layout.dimension(dim) for dim in dims]
        value = reduce(t, t.cast(x.value, "f32"), axes, REDUCTIONS[name], keep=keep)
        return Traced(t.cast(value, t.dtype), layout)

    return translation


@translates("any", "all")
def _truth(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, given, keep = completed([t.traced(args[0]), *args[1:]], None, None, False)
    axes = [x.layout.dimension(dim) for dim in _dims(x, given)]
    reduction = "max" if t.name.startswith("any") else "min"
    numbers = t.cast(t.cast(x.value, "bool"), "f32")
    return Traced(t.cast(reduce(t, numbers, axes, reduction, keep=keep), "bool"), layout)


@translates("var_mean")
def _variance_and_mean(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, given = completed([t.traced(args[0]), *args[1:]], None, None)
    axes = [x.layout.dimension(dim) for dim in _dims(x, given)]
    mean = reduce(t, x.value, axes, "mean", keep=bool(kwargs.get("keepdim", False)))
    return [_variance(t, layout, args, kwargs), Traced(mean, layout)]


@translates("var")
def _variance(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, given = completed([t.traced(args[0]), *args[1:]], None, None)
    axes = [x.layout.dimension(dim) for dim in _dims(x, given)]
    correction = kwargs.get("correction", 1)
    mean = reduce(t, x.value, axes, "mean", keep=True)
    squares = unary(t, "square", binary(t, "sub", x.value, mean))
    result = reduce(t, squares, axes, "mean", keep=bool(kwargs.get("keepdim", False)))
    count = prod(x.value.shape[axis] for axis in axes)
    if correction:
        result = binary(t, "mul", result, t.number(count / (count - correction)))
    return Traced(result, layout)


@translates("cumsum")
def _cumulative_sum(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = t.traced(args[0])
    node = {"op": "cumulative_sum", "axis": x.layout.dimension(args[1])}
    return Traced(t.cast(t.graph.node(node, [t.cast(x.value, "f32")], x.value.shape), t.dtype), layout)


def _softmax(*, is_log: bool) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        x = t.traced(args[0])
        node = {"op": "softmax"} | ({"log": True} if is_log else {})

        def of_rows(rows: Value) -> Value:
            return t.graph.node(node, [rows], rows.shape)

        return Traced(on_last(t, x.value, x.layout.dimension(args[1]), of_rows), layout)

    return translation


TRANSLATIONS.update({name: _reduction(name) for name in REDUCTIONS})
TRANSLATIONS["_softmax"], TRANSLATIONS["_log_softmax"] = _softmax(is_log=False), _softmax(is_log=True)
