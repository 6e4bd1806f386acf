"""Where the samples of a batch are in a tensor that PyTorch computes.

A traced tensor has the size of the batch, or a multiple of it, as the size of one dimension. A value of a
graph has no such dimension; its shape is that of a sample:

    traced           sample
    (N, T, H)        (T, H)
    (T, N, H)        (T, H)
    (N * T, H)       (T, H)     the batch is merged with the dimension after it
    (T * N, H)       (T, H)     ... or with the one before it: `outer` is T
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any


class MixesSamplesError(Exception):
    """An operator computes elements of one sample from another sample."""


def _multiple_of_batch(size: Any) -> int | None:
    """Return how many times the batch a traced size is; None for a size without it."""
    if isinstance(size, int):
        return None
    expression = size.node.expr
    symbols = list(expression.free_symbols)
    if any(str(symbol).startswith("u") for symbol in symbols):
        raise MixesSamplesError("a size depends on data: use torch.where in place of an index by a mask")
    quotient = expression / symbols[0] if len(symbols) == 1 else None
    if quotient is None or not quotient.is_Integer:
        raise MixesSamplesError(f"a dimension has the size {expression}, which is no multiple of the batch")
    return int(quotient)


@dataclass(frozen=True)
class Layout:
    """The shape of a traced tensor."""

    sizes: tuple[int, ...]
    """The dimensions; that of the batch without its size."""
    axis: int | None = None
    """The dimension of the batch, if there is one."""
    merged: int = 1
    """The factor of the batch in the size of its dimension."""
    outer: int = 1
    """The part of the factor that counts before the batch."""

    @classmethod
    def of(cls, shape: Any) -> Layout:
        """Return the layout of a traced shape."""
        multiples = [_multiple_of_batch(size) for size in shape]
        axes = [axis for axis, multiple in enumerate(multiples) if multiple is not None]
        if len(axes) > 1:
            raise MixesSamplesError(
                "it combines each sample of a batch with each other, as contrastive losses do: let each "
                "sample contain what it is compared with"
            )
        if not axes:
            return cls(tuple(int(size) for size in shape))
        merged = multiples[axes[0]] or 1
        sizes = tuple(merged if at == axes[0] else int(size) for at, size in enumerate(shape))
        return cls(sizes, axes[0], merged)

    @property
    def rank(self) -> int:
        """The number of traced dimensions."""
        return len(self.sizes)

    @property
    def sample(self) -> tuple[int, ...]:
        """The dimensions per sample."""
        if self.axis is None or self.merged > 1:
            return self.sizes
        return self.sizes[: self.axis] + self.sizes[self.axis + 1 :]

    def index(self, dim: int) -> int:
        """Return a traced dimension as a number from 0 on."""
        return dim % max(self.rank, 1)

    def dimension(self, dim: int) -> int:
        """Return the dimension per sample of a traced dimension, which must not be that of the batch."""
        dim = self.index(dim)
        if dim == self.axis:
            raise MixesSamplesError("it computes over the samples of a batch")
        return dim if self.axis is None or self.merged > 1 or dim < self.axis else dim - 1

    def order(self, dims: list[int]) -> list[int]:
        """Return the order per sample of all traced dimensions in another order."""
        dims = [self.index(dim) for dim in dims]
        if self.axis is None or self.merged > 1:
            return dims
        return [self.dimension(dim) for dim in dims if dim != self.axis]

    def with_size(self, dim: int, size: int) -> Layout:
        """Return the layout with another size of a dimension, which must not be that of the batch."""
        dim = self.index(dim)
        sizes = (*self.sizes[:dim], size, *self.sizes[dim + 1 :])
        return Layout(sizes, self.axis, self.merged, self.outer)

    def reshaped(self, after: Layout) -> Layout:
        """Return the layout of the same elements in the same order with the dimensions of `after`."""
        if self.axis is None or after.axis is None:
            if self.axis is None and after.axis is None:
                return after
            raise MixesSamplesError("it removes the dimension of the batch")
        elements = self.outer * prod(self.sizes[: self.axis])
        outer, rest = divmod(elements, prod(after.sizes[: after.axis]))
        if rest or outer == 0 or after.merged % outer:
            raise MixesSamplesError("it divides the dimensions before that of the batch in another way")
        return Layout(after.sizes, after.axis, after.merged, outer)

    def broadcast_to(self, batch: Layout) -> tuple[int, ...]:
        """Return the dimensions per sample of a tensor of this layout that is broadcast to `batch`."""
        at = None if batch.axis is None else batch.axis - (batch.rank - self.rank)
        if self.axis is not None:
            if self.axis != at:
                raise MixesSamplesError("it combines tensors whose batches are different dimensions")
            if self.merged > 1 and batch.merged > 1 and self.outer != batch.outer:
                raise MixesSamplesError("it combines tensors in which samples are in another order")
            return self.sizes if batch.merged > 1 else self.sizes[: self.axis] + self.sizes[self.axis + 1 :]
        if at is None or at < 0 or batch.merged > 1:
            return self.sizes
        if self.sizes[at] != 1:
            raise MixesSamplesError(
                "it combines a batch with a tensor that has an element for each of its samples"
            )
        return self.sizes[:at] + self.sizes[at + 1 :]
