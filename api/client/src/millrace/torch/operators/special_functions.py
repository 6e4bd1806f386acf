"""Inverse trigonometric functions and those of the gamma function, composed of functions that graphs have.

Their errors are those of a few roundings of f32, also in the gradients.
"""

from __future__ import annotations

from math import log, pi

from millrace.torch.document import Value
from millrace.torch.operators.elementwise import binary, total, unary
from millrace.torch.operators.functions import compare, composed, of_two, plus, select, times
from millrace.torch.operators.registry import TRANSLATIONS
from millrace.torch.translator import Translator

GAMMA_SHIFT = 8
"""The asymptotic series of the gamma function are used for numbers that are larger than this."""


def _polynomial(t: Translator, x: Value, coefficients: list[float]) -> Value:
    """Return a polynomial; the coefficient of the highest power is the first one."""
    value = t.number(coefficients[0])
    for coefficient in coefficients[1:]:
        value = plus(t, binary(t, "mul", value, x), coefficient)
    return value


def _series_of_atan(t: Translator, x: Value) -> Value:
    """Return the arctangent of numbers between -1 and 1."""
    # atan(x) = 2 atan(x / (1 + sqrt(1 + x^2))) halves the angle, here twice. Then 0.2 is the largest number,
    # and terms from x^11 on are below the rounding of f32.
    for _ in range(2):
        root = unary(t, "sqrt", plus(t, unary(t, "square", x), 1.0))
        x = binary(t, "div", x, plus(t, root, 1.0))
    series = _polynomial(t, unary(t, "square", x), [1 / 9, -1 / 7, 1 / 5, -1 / 3, 1.0])
    return times(t, binary(t, "mul", x, series), 4.0)


def _atan2(t: Translator, y: Value, x: Value) -> Value:
    sizes = unary(t, "abs", y), unary(t, "abs", x)
    is_steep = compare(t, "gt", *sizes)
    small, large = select(t, is_steep, sizes[1], sizes[0]), select(t, is_steep, sizes[0], sizes[1])
    # Where both are 0, the angle is 0, and has no gradient.
    is_zero = compare(t, "eq", large, t.number(0.0))
    angle = _series_of_atan(t, binary(t, "div", small, select(t, is_zero, t.number(1.0), large)))
    angle = select(t, is_steep, plus(t, unary(t, "neg", angle), pi / 2), angle)
    is_left = compare(t, "lt", x, t.number(0.0))
    angle = select(t, is_left, plus(t, unary(t, "neg", angle), pi), angle)
    return select(t, compare(t, "lt", y, t.number(0.0)), unary(t, "neg", angle), angle)


def _atan(t: Translator, x: Value) -> Value:
    is_steep = compare(t, "gt", unary(t, "abs", x), t.number(1.0))
    # The reciprocal of 0 would have a gradient that is no number.
    turned = unary(t, "reciprocal", select(t, is_steep, x, t.number(1.0)))
    angle = _series_of_atan(t, select(t, is_steep, turned, x))
    right = times(t, unary(t, "sign", x), pi / 2)
    return select(t, is_steep, binary(t, "sub", right, angle), angle)


def _asin(t: Translator, x: Value) -> Value:
    root = unary(t, "sqrt", plus(t, unary(t, "neg", unary(t, "square", x)), 1.0))
    return times(t, _series_of_atan(t, binary(t, "div", x, plus(t, root, 1.0))), 2.0)


def _acos(t: Translator, x: Value) -> Value:
    return plus(t, unary(t, "neg", _asin(t, x)), pi / 2)


def _shifted(t: Translator, x: Value) -> tuple[Value, Value, Value]:
    """Return whether numbers are small, small numbers (others as 1), and all, with a shift of small ones."""
    is_small = compare(t, "lt", x, t.number(float(GAMMA_SHIFT)))
    small = select(t, is_small, x, t.number(1.0))
    return is_small, small, select(t, is_small, plus(t, x, float(GAMMA_SHIFT)), x)


def _lgamma(t: Translator, x: Value) -> Value:
    """Return Stirling's series, less the logarithms by which gamma(x + n) is larger than gamma(x)."""
    is_small, small, z = _shifted(t, x)
    inverse = unary(t, "reciprocal", z)
    series = _polynomial(t, unary(t, "square", inverse), [1 / 1260, -1 / 360, 1 / 12])
    main = binary(t, "mul", plus(t, z, -0.5), unary(t, "log", z))
    stirling = binary(t, "add", binary(t, "sub", main, z), binary(t, "mul", inverse, series))
    product = unary(t, "abs", small)
    for step in range(1, GAMMA_SHIFT):
        product = binary(t, "mul", product, unary(t, "abs", plus(t, small, float(step))))
    less = select(t, is_small, unary(t, "log", product), t.number(0.0))
    return binary(t, "sub", plus(t, stirling, log(2 * pi) / 2), less)


def _digamma(t: Translator, x: Value) -> Value:
    is_small, small, z = _shifted(t, x)
    inverse = unary(t, "reciprocal", z)
    square = unary(t, "square", inverse)
    series = binary(t, "mul", square, _polynomial(t, square, [1 / 252, -1 / 120, 1 / 12]))
    result = binary(t, "sub", binary(t, "sub", unary(t, "log", z), times(t, inverse, 0.5)), series)
    steps = [unary(t, "reciprocal", plus(t, small, float(step))) for step in range(GAMMA_SHIFT)]
    return binary(t, "sub", result, select(t, is_small, total(t, steps), t.number(0.0)))


SPECIAL_FUNCTIONS = {"atan": _atan, "asin": _asin, "acos": _acos, "lgamma": _lgamma, "digamma": _digamma}
TRANSLATIONS.update({name: composed(function) for name, function in SPECIAL_FUNCTIONS.items()})
TRANSLATIONS["atan2"] = of_two(_atan2)
