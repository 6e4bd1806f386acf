"""Operators on complex numbers: each is translated to operators on their real and imaginary parts.

The parts of PyTorch's gradient of a complex number are the derivatives of the two parts, so that a complex
parameter is trained like a real one with a last dimension of two.
"""

from __future__ import annotations

from typing import Any

import torch

from millrace.torch.layout import Layout
from millrace.torch.operands import Complex, ComplexParameter, Fixed, Operand, Parameter, Traced
from millrace.torch.operators.elementwise import unary
from millrace.torch.operators.functions import compare, select
from millrace.torch.operators.registry import TRANSLATIONS, Translation, completed, registers_in
from millrace.torch.operators.shapes import part
from millrace.torch.translator import Translator

COMPLEX_TRANSLATIONS: dict[str, Translation] = {}
"""Translations of operators with complex arguments or results, by name."""

translates_complex = registers_in(COMPLEX_TRANSLATIONS)


def is_complex(operand: Operand) -> bool:
    """Return whether an operand has complex numbers."""
    if isinstance(operand, Fixed):
        return bool(operand.tensor.is_complex())
    return isinstance(operand, Complex | ComplexParameter | complex)


def parts_of(t: Translator, operand: Operand) -> Complex:
    """Return an operand, complex or real, as its parts."""
    if isinstance(operand, Complex):
        return operand
    if isinstance(operand, complex):
        return Complex(operand.real, operand.imag)
    if isinstance(operand, Fixed) and operand.tensor.is_complex():
        numbers = torch.view_as_real(operand.tensor.resolve_conj())
        return Complex(*(Fixed(numbers[..., at].contiguous(), operand.layout) for at in (0, 1)))
    if isinstance(operand, ComplexParameter):
        axis, layout = len(operand.shape), Layout(operand.shape)
        pairs = t.traced(Parameter(operand.name, (*operand.shape, 2))).value
        return Complex(*(Traced(part(t, pairs, axis, at, at + 1, drop=True), layout) for at in (0, 1)))
    return Complex(operand, _zeros(t, operand))


def _zeros(t: Translator, operand: Operand) -> Operand:
    """Return zeros, as many as there are elements of a real operand."""
    if isinstance(operand, int | float):
        return 0.0
    if isinstance(operand, Fixed):
        return Fixed(torch.zeros_like(operand.tensor), operand.layout)
    x = t.traced(operand)
    return Traced(t.expand(t.number(0.0), x.value.shape), x.layout)


def _real(t: Translator, name: str, layout: Layout, *args: Any, **kwargs: Any) -> Operand:
    """Translate an operator on real numbers."""
    return TRANSLATIONS[name](t, layout, list(args), kwargs)


def _partwise(name: str, first: int = 0, count: int = 1) -> Translation:
    """Return a translation that applies an operator to the real parts, and to the imaginary parts.

    Of the arguments, `count` from the `first` one on are numbers; a list among them has several.
    """
    last = first + count

    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        numbers = [
            [parts_of(t, item) for item in argument] if isinstance(argument, list) else parts_of(t, argument)
            for argument in args[first:last]
        ]

        def of_part(part_name: str) -> Operand:
            parts = [
                [getattr(item, part_name) for item in number]
                if isinstance(number, list)
                else getattr(number, part_name)
                for number in numbers
            ]
            return _real(t, name, layout, *args[:first], *parts, *args[last:], **kwargs)

        real, imaginary = of_part("real"), of_part("imaginary")
        if isinstance(real, list):
            return [Complex(*both) for both in zip(real, imaginary, strict=True)]
        return Complex(real, imaginary)

    return translation


def _multiplied(t: Translator, layout: Layout, name: str, left: Operand, right: Operand) -> Complex:
    """Return a product of complex numbers, by the operator `name` for real ones. A factor may be real."""

    def multiply(a: Operand, b: Operand) -> Operand:
        return _real(t, name, layout, a, b)

    if not is_complex(right):
        a = parts_of(t, left)
        return Complex(multiply(a.real, right), multiply(a.imaginary, right))
    b = parts_of(t, right)
    if not is_complex(left):
        return Complex(multiply(left, b.real), multiply(left, b.imaginary))
    a = parts_of(t, left)
    return Complex(
        _real(t, "sub", layout, multiply(a.real, b.real), multiply(a.imaginary, b.imaginary)),
        _real(t, "add", layout, multiply(a.real, b.imaginary), multiply(a.imaginary, b.real)),
    )


def _product(name: str) -> Translation:
    def translation(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
        return _multiplied(t, layout, name, *args[:2])

    return translation


@translates_complex("linear")
def _linear(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, weight, bias = completed(args, None, None, None)
    product = _multiplied(t, layout, "linear", x, weight)
    return product if bias is None else _partwise("add", count=2)(t, layout, [product, bias], {})


@translates_complex("addmm")
def _product_and_sum(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    product = _multiplied(t, layout, "mm", *args[1:3])
    return _partwise("add", count=2)(t, layout, [product, args[0]], {})


def _squared_magnitude(t: Translator, layout: Layout, x: Complex) -> Operand:
    squares = (_real(t, "mul", layout, item, item) for item in (x.real, x.imaginary))
    return _real(t, "add", layout, *squares)


@translates_complex("div", "true_divide")
def _quotient(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    left, right = args[:2]
    if not is_complex(right):
        return _partwise("div")(t, layout, [left, right], {})
    b = parts_of(t, right)
    size = _squared_magnitude(t, layout, b)
    product = _multiplied(t, layout, "mul", left, _conjugate(t, layout, [b], {}))
    return _partwise("div")(t, layout, [product, size], {})


@translates_complex("reciprocal")
def _reciprocal(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return _quotient(t, layout, [1.0, args[0]], {})


@translates_complex("_conj", "conj", "conj_physical", "_conj_physical")
def _conjugate(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = parts_of(t, args[0])
    return Complex(x.real, _real(t, "neg", layout, x.imaginary))


@translates_complex("clone", "alias", "contiguous", "lift_fresh_copy", "resolve_conj", "resolve_neg")
def _identity(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return args[0]


@translates_complex("_to_copy", "to")
def _convert(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    dtype = kwargs.get("dtype")
    x = parts_of(t, args[0])
    # PyTorch discards the imaginary parts, too, with a warning.
    return x if dtype is None or dtype.is_complex else _real(t, "_to_copy", layout, x.real, dtype=dtype)


@translates_complex("full_like")
def _filled(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    numbers = complex(args[1])
    return Complex(*(_real(t, "full_like", layout, None, number) for number in (numbers.real, numbers.imag)))


@translates_complex("view_as_complex")
def _from_pairs(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return Complex(*(_real(t, "select", layout, args[0], -1, at) for at in (0, 1)))


@translates_complex("view_as_real")
def _to_pairs(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = parts_of(t, args[0])
    return _real(t, "stack", layout, [x.real, x.imaginary], -1)


@translates_complex("complex")
def _from_parts(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    return Complex(args[0], args[1])


@translates_complex("polar")
def _from_polar(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    size, angle = args[:2]
    turned = (_real(t, function, layout, angle) for function in ("cos", "sin"))
    return Complex(*(_real(t, "mul", layout, size, item) for item in turned))


@translates_complex("exp")
def _exponential(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = parts_of(t, args[0])
    return _from_polar(t, layout, [_real(t, "exp", layout, x.real), x.imaginary], {})


@translates_complex("real", "imag")
def _one_part(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = parts_of(t, args[0])
    return x.real if t.name.startswith("real") else x.imaginary


@translates_complex("abs")
def _magnitude(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    squared = t.value(_squared_magnitude(t, layout, parts_of(t, args[0])), layout)
    # The gradient at 0 is 0, as in PyTorch. That of the root is not finite there.
    is_zero = compare(t, "eq", squared, t.number(0.0))
    root = unary(t, "sqrt", select(t, is_zero, t.number(1.0), squared))
    return Traced(select(t, is_zero, t.number(0.0), root), layout)


@translates_complex("sgn")
def _sign(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    size = _magnitude(t, layout, args[:1], {}).value
    is_zero = compare(t, "eq", size, t.number(0.0))
    divisor = Traced(select(t, is_zero, t.number(1.0), size), layout)
    return _quotient(t, layout, [args[0], divisor], {})


@translates_complex("angle")
def _angle(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x = parts_of(t, args[0])
    return _real(t, "atan2", layout, x.imaginary, x.real)


@translates_complex("log")
def _logarithm(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    size = _real(t, "log", layout, _magnitude(t, layout, args, {}))
    return Complex(size, _angle(t, layout, args, {}))


@translates_complex("pow")
def _power(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, exponent = args[:2]
    if not isinstance(exponent, int) or not 1 <= exponent <= 8:
        raise NotImplementedError(f"a complex number to the power {exponent}")
    product = parts_of(t, x)
    for _ in range(exponent - 1):
        product = _multiplied(t, layout, "mul", product, x)
    return product


STRUCTURAL = [
    *("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "permute", "transpose", "t"),
    *("expand", "slice", "select", "split", "split_with_sizes", "repeat", "flip", "constant_pad_nd"),
    *("unfold", "gather", "index_select", "index", "neg", "sum", "mean", "cumsum", "stop_gradient"),
]
"""Operators that treat both parts alike."""
OF_TWO = ["add", "sub", "copy", "slice_scatter", "select_scatter"]
"""Operators that treat both parts of two operands alike."""

COMPLEX_TRANSLATIONS.update({name: _partwise(name) for name in (*STRUCTURAL, "cat", "stack")})
COMPLEX_TRANSLATIONS.update({name: _partwise(name, count=2) for name in OF_TWO})
COMPLEX_TRANSLATIONS["where"] = _partwise("where", 1, 2)
COMPLEX_TRANSLATIONS.update({name: _product(name) for name in ("mul", "mm", "bmm", "matmul")})
