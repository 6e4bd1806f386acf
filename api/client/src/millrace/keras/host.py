"""Values of a model while it is computed by PyTorch: tensors, and arrays of NumPy.

Constants and sizes are arrays. The size of the batch is a symbol, so that an array of sizes may have objects
as elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from millrace.torch.operands import UnsupportedModelError


@dataclass(frozen=True)
class Uniform:
    """Random numbers from 0 to 1."""

    shape: Sequence[Any]


@dataclass(frozen=True)
class DropoutMask:
    """A random mask that is false with the probability `rate`."""

    rate: float
    shape: Sequence[Any]

    def numbers(self) -> torch.Tensor:
        """Return the mask as numbers; in evaluations they are the probability."""
        return F.dropout(torch.ones([*self.shape]), self.rate) * (1.0 - self.rate)


def is_numpy(value: Any) -> bool:
    """Return whether a value is an array of NumPy."""
    return isinstance(value, np.ndarray)


def tensor(value: Any) -> torch.Tensor:
    """Return a value as a tensor."""
    if isinstance(value, DropoutMask):
        return value.numbers()
    if isinstance(value, Uniform):
        raise UnsupportedModelError("random numbers other than those of dropout")
    if isinstance(value, torch.Tensor):
        return value
    if not is_numpy(value):
        raise UnsupportedModelError("elements that are moved from a sample to another")
    if value.dtype == object:
        if value.shape == ():
            return torch.tensor(value.item())
        raise UnsupportedModelError("it computes with the size of the batch, on which no sample may depend")
    if value.dtype.kind not in "fiub":
        raise UnsupportedModelError(f"values of type {value.dtype}: use numbers")
    return torch.from_numpy(np.array(value))


def number(value: Any) -> Any:
    """Return an array of one number as a number, anything else as it is."""
    return value.item() if is_numpy(value) and value.shape == () else value


def sizes(value: Any) -> list[Any]:
    """Return an array of sizes or axes as a list."""
    if not is_numpy(value):
        raise UnsupportedModelError("a size or an axis that depends on data: use fixed ones")
    return [item if isinstance(item, torch.SymInt) else int(item) for item in value.reshape(-1).tolist()]


def array(items: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return sizes as an array."""
    is_fixed = all(isinstance(item, int) for item in items)
    return np.array(list(items), dtype=np.int64 if is_fixed else object)
