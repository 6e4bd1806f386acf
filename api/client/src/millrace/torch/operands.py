"""What the arguments of traced operators stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from millrace.errors import MillraceError
from millrace.torch.document import Value
from millrace.torch.layout import Layout


class UnsupportedModelError(MillraceError):
    """A module can't be traced: what it does, where, and what to write instead."""


@dataclass(frozen=True)
class Fixed:
    """A tensor that depends on no input and no parameter, as computed for a batch of two samples."""

    tensor: Any
    layout: Layout


@dataclass(frozen=True)
class Parameter:
    """A parameter as the module has it, or transposed."""

    name: str
    shape: tuple[int, ...]
    transposed: bool = False


@dataclass(frozen=True)
class Traced:
    """A computed value, with the layout of the traced tensor."""

    value: Value
    layout: Layout


@dataclass(frozen=True)
class Term:
    """A part of the loss: the mean of a sum, times a factor."""

    emit: Callable[[float], None]
    """Adds the operator of the sum, with this factor."""
    scaling: str
    """What the sum is divided by: `num_tokens`, the labels that count, or `batch_size`, the samples."""
    factor: float = 1.0


@dataclass(frozen=True)
class Loss:
    """The sum of terms."""

    terms: tuple[Term, ...]

    def times(self, factor: float) -> Loss:
        """Return the loss times a number."""
        return Loss(tuple(Term(term.emit, term.scaling, term.factor * factor) for term in self.terms))


Operand: TypeAlias = Any
"""A `Fixed`, `Parameter`, `Traced` or `Loss`, a number, a size, None, or a list of these."""
