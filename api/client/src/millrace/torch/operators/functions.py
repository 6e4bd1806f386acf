"""Functions of one and of two numbers that are composed of others."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from typing import Any, TypeAlias

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import Operand, Traced
from millrace.torch.operators.elementwise import binary, unary
from millrace.torch.operators.registry import TRANSLATIONS, Translation, completed, translates
from millrace.torch.translator import Translator

Function: TypeAlias = Callable[[Translator, Value], Value]


def compare(t: Translator, relation: str, left: Value, right: Value) -> Value:
    """Add a comparison of two values."""
    shape = t.broadcast(left, right)
    return t.graph.node({"op": "compare", "relation": relation}, [left, right], shape, "bool")


def select(t: Translator, condition: Value, left: Value, right: Value) -> Value:
    """Add a selection from two values."""
    shape = t.broadcast(condition, left, right)
    return t.graph.node({"op": "select"}, [condition, left, right], shape, left.dtype)


def plus(t: Translator, x: Value, number: float) -> Value:
    """Add the sum of a value and a number."""
    return binary(t, "add", x, t.number(number))


def times(t: Translator, x: Value, number: float) -> Value:
    """Add the product of a value and a number."""
    return x if number == 1 else binary(t, "mul", x, t.number(number))


def log_add_exp(t: Translator, left: Value, right: Value) -> Value:
    """Add the logarithm of the sum of the exponentials of two values."""
    distance = unary(t, "abs", binary(t, "sub", left, right))
    rest = _log1p(t, unary(t, "exp", unary(t, "neg", distance)))
    return binary(t, "add", binary(t, "max", left, right), rest)


def _log1p(t: Translator, x: Value) -> Value:
    return unary(t, "log", plus(t, x, 1.0))


def _expm1(t: Translator, x: Value) -> Value:
    return plus(t, unary(t, "exp", x), -1.0)


def _trunc(t: Translator, x: Value) -> Value:
    return binary(t, "mul", unary(t, "sign", x), unary(t, "floor", unary(t, "abs", x)))


def _ceil(t: Translator, x: Value) -> Value:
    return unary(t, "neg", unary(t, "floor", unary(t, "neg", x)))


def _hyperbolic(function: str) -> Function:
    def add(t: Translator, x: Value) -> Value:
        both = [unary(t, "exp", x), unary(t, "exp", unary(t, "neg", x))]
        return times(t, binary(t, function, both[0], both[1]), 0.5)

    return add


def _asinh(t: Translator, x: Value) -> Value:
    size = unary(t, "abs", x)
    root = unary(t, "sqrt", plus(t, unary(t, "square", x), 1.0))
    return binary(t, "mul", unary(t, "sign", x), unary(t, "log", binary(t, "add", size, root)))


def _acosh(t: Translator, x: Value) -> Value:
    root = unary(t, "sqrt", plus(t, unary(t, "square", x), -1.0))
    return unary(t, "log", binary(t, "add", x, root))


def _atanh(t: Translator, x: Value) -> Value:
    both = _log1p(t, x), _log1p(t, unary(t, "neg", x))
    return times(t, binary(t, "sub", *both), 0.5)


FUNCTIONS: dict[str, Function] = {
    "log1p": _log1p,
    "expm1": _expm1,
    "trunc": _trunc,
    "isnan": lambda t, x: compare(t, "ne", x, x),
    "isinf": lambda t, x: compare(t, "eq", unary(t, "abs", x), t.number(inf)),
    "signbit": lambda t, x: compare(t, "lt", x, t.number(0.0)),
    "ceil": _ceil,
    "tan": lambda t, x: binary(t, "div", unary(t, "sin", x), unary(t, "cos", x)),
    "sinh": _hyperbolic("sub"),
    "cosh": _hyperbolic("add"),
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
    "erfc": lambda t, x: binary(t, "sub", t.number(1.0), unary(t, "erf", x)),
    "exp2": lambda t, x: unary(t, "exp", times(t, x, log(2))),
    "log2": lambda t, x: times(t, unary(t, "log", x), 1 / log(2)),
    "log10": lambda t, x: times(t, unary(t, "log", x), 1 / log(10)),
}


def composed(function: Function) -> Translation:
    """Return the translation of a function of one number."""

    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        return Traced(t.cast(function(t, t.cast(t.value(args[0], layout), "f32")), t.dtype), layout)

    return translation


def of_two(function: Callable[[Translator, Value, Value], Value]) -> Translation:
    """Return the translation of a function of two numbers."""

    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        left, right = (t.cast(t.value(item, layout), "f32") for item in args[:2])
        return Traced(t.cast(t.expand(function(t, left, right), layout.sample), t.dtype), layout)

    return translation


def _hypot(t: Translator, left: Value, right: Value) -> Value:
    squares = (unary(t, "square", item) for item in (left, right))
    return unary(t, "sqrt", binary(t, "add", *squares))


def _copysign(t: Translator, left: Value, right: Value) -> Value:
    size, is_negative = unary(t, "abs", left), compare(t, "lt", right, t.number(0.0))
    return select(t, is_negative, unary(t, "neg", size), size)


def _ldexp(t: Translator, left: Value, right: Value) -> Value:
    return binary(t, "mul", left, unary(t, "exp", times(t, right, log(2))))


@translates("elu")
def _elu(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, alpha, scale, input_scale = completed([t.value(args[0], layout), *args[1:]], None, 1.0, 1.0, 1.0)
    # The exponential of a positive number could be infinite, and its gradient with it.
    below = _expm1(t, times(t, binary(t, "min", x, t.number(0.0)), input_scale))
    is_above = compare(t, "gt", x, t.number(0.0))
    return Traced(times(t, select(t, is_above, x, times(t, below, alpha)), scale), layout)


@translates("leaky_relu")
def _leaky_relu(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, slope = completed([t.value(args[0], layout), *args[1:]], None, 0.01)
    return Traced(select(t, compare(t, "gt", x, t.number(0.0)), x, times(t, x, slope)), layout)


@translates("softplus")
def _softplus(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, beta, threshold = completed([t.value(args[0], layout), *args[1:]], None, 1.0, 20.0)
    scaled = times(t, x, beta)
    most = binary(t, "min", scaled, t.number(threshold))
    curve = times(t, _log1p(t, unary(t, "exp", most)), 1 / beta)
    return Traced(select(t, compare(t, "gt", scaled, t.number(threshold)), x, curve), layout)


def rounded(t: Translator, x: Value) -> Value:
    """Add the nearest whole numbers; halves are rounded to even ones."""
    shifted = plus(t, x, 0.5)
    nearest = unary(t, "floor", shifted)
    half = times(t, nearest, 0.5)
    is_odd = compare(t, "ne", half, unary(t, "floor", half))
    even = select(t, is_odd, plus(t, nearest, -1.0), nearest)
    return select(t, compare(t, "eq", shifted, nearest), even, nearest)


@translates("round", "round.decimals")
def _round(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    unit = 10.0 ** kwargs.get("decimals", 0)
    x = times(t, t.cast(t.value(args[0], layout), "f32"), unit)
    return Traced(t.cast(times(t, rounded(t, x), 1 / unit), t.dtype), layout)


@translates("remainder", "fmod")
def _remainder(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    left, right = (t.cast(t.value(item, layout), "f32") for item in args[:2])
    quotient = binary(t, "div", left, right)
    whole = unary(t, "floor", quotient) if t.name.startswith("remainder") else _trunc(t, quotient)
    return Traced(t.cast(binary(t, "sub", left, binary(t, "mul", whole, right)), t.dtype), layout)


@translates("div.Tensor_mode", "div.Scalar_mode", "floor_divide")
def _rounded_quotient(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    left, right = (t.cast(t.value(item, layout), "f32") for item in args[:2])
    quotient = binary(t, "div", left, right)
    if kwargs.get("rounding_mode", "floor") == "floor":
        quotient = unary(t, "floor", quotient)
    elif kwargs["rounding_mode"] == "trunc":
        quotient = _trunc(t, quotient)
    return Traced(t.cast(quotient, t.dtype), layout)


@translates("feature_dropout")
def _feature_dropout(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, rate = t.value(args[0], layout), args[1]
    # The channels of each image, of which a sample may have several.
    first = len(x.shape) - layout.rank + 2
    channels = (*x.shape[:first], *(1 for _ in x.shape[first:]))
    ones = t.expand(t.number(1.0), channels)
    kept = t.graph.node({"op": "dropout", "rate": rate}, [ones], channels)
    return Traced(binary(t, "mul", x, kept), layout)


TRANSLATIONS.update({name: composed(function) for name, function in FUNCTIONS.items()})
for _name, _function in {"hypot": _hypot, "copysign": _copysign, "ldexp": _ldexp}.items():
    TRANSLATIONS[_name] = of_two(_function)
