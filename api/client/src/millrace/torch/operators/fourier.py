"""Discrete Fourier transforms, as products with matrices of sines and cosines."""

from __future__ import annotations

from math import pi, prod, sqrt
from typing import Any

import torch

from millrace.torch.document import Value
from millrace.torch.layout import Layout
from millrace.torch.operands import Complex, Operand, Traced
from millrace.torch.operators.complex_numbers import parts_of, translates_complex
from millrace.torch.operators.elementwise import binary
from millrace.torch.operators.layers import matmul
from millrace.torch.operators.shapes import on_last
from millrace.torch.translator import Translator


def _cosines_and_sines(rows: int, columns: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of the angles 2 pi i j / size, of shape [rows, columns]."""
    # The product is reduced as an integer: the angle of a large one would be rounded.
    turns = torch.arange(rows)[:, None] * torch.arange(columns)[None, :] % size
    angles = turns.to(torch.float64) * (2 * pi / size)
    return angles.cos(), angles.sin()


def _scale(norm: int, sizes: list[int]) -> float:
    """Return the factor of a normalization: none (0), by the root of the size (1), by the size (2)."""
    return {0: 1.0, 1: 1 / sqrt(prod(sizes)), 2: 1 / prod(sizes)}[norm]


def _times(t: Translator, x: Traced, dim: int, matrix: torch.Tensor) -> Traced:
    """Multiply a dimension by a matrix of shape [size, new size]."""

    def product(value: Value) -> Value:
        # One product of matrices, as the matrix would be repeated for each of several.
        rows = t.reshape(value, (prod(value.shape[:-1]), matrix.shape[0]))
        result = matmul(t, rows, t.constant(matrix.to(torch.float32)))
        return t.reshape(result, (*value.shape[:-1], matrix.shape[1]))

    value = on_last(t, x.value, x.layout.dimension(dim), product)
    return Traced(value, x.layout.with_size(dim, matrix.shape[1]))


def _sum(t: Translator, function: str, left: Traced, right: Traced) -> Traced:
    return Traced(binary(t, function, left.value, right.value), left.layout)


def _transformed(t: Translator, x: Complex, dim: int, *, forward: bool, factor: float = 1.0) -> Complex:
    """Transform one dimension of complex numbers."""
    size = x.real.layout.sizes[x.real.layout.index(dim)]
    cosines, sines = _cosines_and_sines(size, size, size)
    cosines, sines = cosines * factor, sines * (-factor if forward else factor)
    a, b = x.real, x.imaginary
    return Complex(
        _sum(t, "sub", _times(t, a, dim, cosines), _times(t, b, dim, sines)),
        _sum(t, "add", _times(t, a, dim, sines), _times(t, b, dim, cosines)),
    )


@translates_complex("_fft_c2c")
def _complex_to_complex(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, dims, norm, forward = _traced_parts(t, args[0]), *args[1:4]
    factor = _scale(norm, [layout.sizes[layout.index(dim)] for dim in dims])
    for at, dim in enumerate(dims):
        x = _transformed(t, x, dim, forward=forward, factor=factor if at == 0 else 1.0)
    return x


@translates_complex("_fft_r2c")
def _real_to_complex(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, (*others, last), norm, _ = t.traced(args[0]), *args[1:4]
    size = x.layout.sizes[x.layout.index(last)]
    factor = _scale(norm, [x.layout.sizes[x.layout.index(dim)] for dim in (*others, last)])
    cosines, sines = _cosines_and_sines(size, layout.sizes[layout.index(last)], size)
    result = Complex(_times(t, x, last, cosines * factor), _times(t, x, last, sines * -factor))
    for dim in others:
        result = _transformed(t, result, dim, forward=True)
    return result


@translates_complex("_fft_c2r")
def _complex_to_real(t: Translator, layout: Layout, args: list[Any], kwargs: dict[str, Any]) -> Operand:
    x, (*others, last), norm, size = _traced_parts(t, args[0]), *args[1:4]
    factor = _scale(norm, [layout.sizes[layout.index(dim)] for dim in (*others, last)])
    for dim in others:
        x = _transformed(t, x, dim, forward=False)
    frequencies = x.real.layout.sizes[x.real.layout.index(last)]
    cosines, sines = _cosines_and_sines(frequencies, size, size)
    # Frequencies that are left out are conjugates of the others, but for 0 and half the size.
    counts = torch.full((frequencies, 1), 2.0 * factor, dtype=torch.float64)
    counts[0] = factor
    if size % 2 == 0 and frequencies == size // 2 + 1:
        counts[-1] = factor
    real, imaginary = _times(t, x.real, last, cosines * counts), _times(t, x.imaginary, last, sines * counts)
    return _sum(t, "sub", real, imaginary)


def _traced_parts(t: Translator, operand: Operand) -> Complex:
    """Return complex numbers as parts that are traced."""
    x = parts_of(t, operand)
    return Complex(t.traced(x.real), t.traced(x.imaginary))
