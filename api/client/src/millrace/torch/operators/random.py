"""Random numbers. In evaluations they are their mean."""

from __future__ import annotations

from typing import Any

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import Operand, Traced, Uniform
from millrace.torch.operators.elementwise import binary, unary
from millrace.torch.operators.functions import compare, plus, times
from millrace.torch.operators.registry import completed, translates
from millrace.torch.translator import Translator


@translates("rand", "rand_like")
def _uniform(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return Uniform(layout)


@translates("uniform")
def _uniform_between(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    _, start, end = completed(args, None, 0.0, 1.0)
    return Traced(plus(t, times(t, t.random("uniform", layout), end - start), start), layout)


@translates("randn", "randn_like")
def _normal(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return Traced(t.random("normal", layout), layout)


@translates("normal.float_float")
def _normal_numbers(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return Traced(plus(t, times(t, t.random("normal", layout), args[1]), args[0]), layout)


@translates("normal_functional")
def _filled_normal(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return _normal_numbers(t, layout, completed(args, None, 0.0, 1.0)[1:], {})


@translates("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor")
def _normal_by_tensors(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    mean, deviation = (t.value(item, layout) for item in completed(args, 0.0, 1.0))
    return Traced(binary(t, "add", binary(t, "mul", t.random("normal", layout), deviation), mean), layout)


@translates("exponential")
def _exponential(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    _, rate = completed(args, None, 1.0)
    return Traced(times(t, unary(t, "log", t.random("uniform", layout)), -1.0 / rate), layout)


@translates("randint", "randint_like")
def _integers(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    low, high = args[:2] if "low" in t.name else (0, args[0])
    if t.name.startswith("randint_like"):
        low, high = args[1:3] if "low" in t.name else (0, args[1])
    numbers = unary(t, "floor", times(t, t.random("uniform", layout), high - low))
    return Traced(t.cast(plus(t, numbers, low), t.dtype), layout)


@translates("bernoulli", "bernoulli.p")
def _bernoulli(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    """Add random numbers that are 1 with a probability, and 0 otherwise.

    In evaluations they are the probability: in a module that divides by it, nothing is dropped.
    """
    if len(args) < 2:
        probability = t.value(args[0], layout)
        return Traced(_is_below(t, t.random("uniform", layout), probability), layout)
    if args[1] <= 0:
        return Traced(t.expand(t.number(0.0), layout.sample), layout)
    ones = t.expand(t.number(1.0), layout.sample)
    kept = t.graph.node({"op": "dropout", "rate": 1.0 - args[1]}, [ones], ones.shape)
    return Traced(times(t, kept, args[1]), layout)


def _is_below(t: Translator, numbers: Value, limit: Value) -> Value:
    return t.cast(compare(t, "lt", numbers, limit), "f32")
