"""What the arguments of traced operators stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

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
    """A parameter: its elements in the order of the module with these dimensions, or those transposed."""

    name: str
    shape: tuple[int, ...]
    transposed: bool = False


@dataclass(frozen=True)
class ParameterView:
    """A parameter whose dimensions were divided, merged and permuted, before any element is computed from it.

    Later changes may make a `Parameter` of it again, such as a kernel that is permuted back.
    """

    name: str
    strides: Any
    """A tensor without data that has the shape and the strides of the view."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the view."""
        return tuple(self.strides.shape)

    @classmethod
    def of(cls, parameter: Parameter) -> ParameterView:
        """Return a parameter as a view."""
        if not parameter.transposed:
            return cls(parameter.name, torch.empty(parameter.shape, device="meta"))
        return cls(parameter.name, torch.empty(parameter.shape[::-1], device="meta").t())

    def simplified(self) -> Parameter | ParameterView:
        """Return the view as a parameter if it is one."""
        if self.strides.is_contiguous():
            return Parameter(self.name, self.shape)
        if self.strides.dim() == 2 and self.strides.t().is_contiguous():
            return Parameter(self.name, self.shape, transposed=True)
        return self


@dataclass(frozen=True)
class BatchSize:
    """A tensor of one or more numbers that are computed from the size of the batch."""

    tensor: torch.Tensor
    """The tensor for a batch of two samples."""
    next: torch.Tensor
    """The tensor for a batch of three samples."""


@dataclass(frozen=True)
class LabelLosses:
    """The cross-entropy of each label, before anything is computed from it.

    Their mean over the batch is a loss, for which they are not computed one by one.
    """

    emit: Callable[[], Value]
    """Adds the operators that compute them."""
    mean: Loss
    """Their mean over the batch."""
    layout: Layout


@dataclass(frozen=True)
class Traced:
    """A computed value, with the layout of the traced tensor."""

    value: Value
    layout: Layout


@dataclass(frozen=True)
class Complex:
    """Complex numbers: tensors of their real and imaginary parts, with the same shape."""

    real: Operand
    imaginary: Operand


@dataclass(frozen=True)
class ComplexParameter:
    """A parameter of complex numbers. Its tensor has real numbers, and a last dimension of two."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Term:
    """A part of the loss: the mean of a sum, times a factor."""

    emit: Callable[[float, Value | None], None]
    """Adds the operator of the sum, with this factor, and with a weight if it has a divisor of its own."""
    of_samples: Callable[[], Value]
    """Adds the operators that compute the sum of each sample, without a factor; returns the sums."""
    scaling: str
    """What the sum is divided by: `num_tokens`, the labels that count, or `batch_size`, the samples.

    `divisor` is another sum over the batch, and `sum` a sum that is not divided yet.
    """
    factor: float = 1.0
    labels: Value | None = None
    """The labels of a cross-entropy."""
    elements: Value | None = None
    """The elements of a sample whose mean this is, if it is one."""
    counted: Value | None = None
    """The labels whose number the sum is divided by, if it is."""
    only_counts: bool = False
    """Whether this is 0, and only says which labels the sum of all terms is divided by the number of."""
    divisor: Loss | None = None
    """The sum over the batch that the sum is divided by, if it has one of its own."""


@dataclass(frozen=True)
class Loss:
    """The sum of terms."""

    terms: tuple[Term, ...]

    def times(self, factor: float) -> Loss:
        """Return the loss times a number."""
        return Loss(tuple(replace(term, factor=term.factor * factor) for term in self.terms))

    def as_sum(self, elements: int) -> Loss:
        """Return the sum whose mean over the batch this is, of `elements` elements of each sample."""
        return Loss(tuple(replace(term, scaling="sum", factor=term.factor * elements) for term in self.terms))

    def by_samples(self, multiple: int) -> Loss:
        """Return the loss, a sum over the batch, divided by a multiple of the number of samples."""
        if any(term.scaling != "sum" for term in self.terms):
            raise UnsupportedModelError("a loss that is a mean already is divided by the size of the batch")
        return Loss(
            tuple(replace(term, scaling="batch_size", factor=term.factor / multiple) for term in self.terms)
        )


@dataclass(frozen=True)
class Ratio:
    """A sum over the batch divided by another one, times a factor."""

    dividend: Loss
    divisor: Loss
    factor: float = 1.0

    def times(self, factor: float) -> Ratio:
        """Return the ratio times a number."""
        return replace(self, factor=self.factor * factor)

    def as_loss(self) -> Loss:
        """Return the ratio as terms that have its divisor."""
        terms = (*self.dividend.terms, *self.divisor.terms)
        scalings = {term.scaling for term in terms}
        if len(scalings) > 1 or not scalings <= {"sum", "batch_size"}:
            raise UnsupportedModelError(
                "a division by a sum over the batch: divide a sum by a sum to which no number is added, or a "
                "mean by a mean"
            )
        factor, divisor = self.factor, self.divisor
        return Loss(
            tuple(
                replace(term, scaling="divisor", factor=term.factor * factor, divisor=divisor)
                for term in self.dividend.terms
            )
        )


@dataclass(frozen=True)
class Losses:
    """Several losses in one tensor, as of `torch.stack`."""

    items: tuple[Loss, ...]

    def total(self) -> Loss:
        """Return the sum of the losses."""
        return Loss(tuple(term for loss in self.items for term in loss.terms))


@dataclass(frozen=True)
class Uniform:
    """Random numbers from `start` to `start` + 1."""

    layout: Layout
    start: float = 0.0


Operand: TypeAlias = Any
"""A tensor as one of these classes, a number, a size, None, or a list of these."""
