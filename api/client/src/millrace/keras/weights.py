"""The variables of a model as tensors of a graph.

A variable keeps its dimensions in the graph, except for the kernel of a convolution: Keras and TensorFlow
have its channels at the end, a graph at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Weight:
    """A variable of Keras or of TensorFlow."""

    name: str
    """The name of its tensor, unique in the model: its path in Keras, such as `encoder/dense/kernel`."""
    variable: Any
    is_trained: bool
    order: tuple[int, ...] | None = None
    """The dimensions of the variable in the order in which the graph has them, if that is another one."""

    def read(self) -> torch.Tensor:
        """Return a copy of the variable with the dimensions of the graph."""
        data = torch.from_numpy(np.array(to_numpy(self.variable)))
        return data if self.order is None else data.permute(self.order).contiguous()

    def restored(self, data: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the graph with the dimensions of the variable."""
        if self.order is None:
            return data
        return data.permute([self.order.index(at) for at in range(len(self.order))])


def is_numeric(weight: Weight) -> bool:
    """Return whether a variable can be a tensor of a graph: one of numbers in float32."""
    dtype = weight.variable.dtype
    return str(getattr(dtype, "name", dtype)) == "float32"


def to_numpy(variable: Any) -> np.ndarray[Any, Any]:
    """Return the elements of a variable, without copying them if possible."""
    if hasattr(variable, "_value"):  # of Keras, on any backend
        import keras

        return np.asarray(keras.ops.convert_to_numpy(variable))
    return np.asarray(variable.numpy())


def kernel_order(rank: int) -> tuple[int, ...]:
    """Return the order of the dimensions of a kernel: the last two first, exchanged."""
    return (rank - 1, rank - 2, *range(rank - 2))


def unique_names(names: Iterable[str]) -> list[str]:
    """Return names for tensors: without the characters that have a meaning in a document, each only once."""
    found: list[str] = []
    for name in names:
        plain = name.removesuffix(":0").replace(".", "_") or "variable"
        # Attributes of every module.
        plain = f"{plain}_" if hasattr(torch.nn.Module, plain) or plain in _RESERVED else plain
        count, unique = 1, plain
        while unique in found:
            unique, count = f"{plain}_{count}", count + 1
        found.append(unique)
    return found


_RESERVED = frozenset({"training", "scopes", "weights"})
