"""Data of a training as arrays: one for each input of the module, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from millrace.errors import MillraceError


class UnsupportedDataError(MillraceError):
    """The appliance can't read the data: what is wrong with them, and what to give instead."""


def arrays_of(data: Any) -> dict[str, torch.Tensor]:
    """Return the arrays of a mapping of names to arrays, or of a `TensorDataset`, without copying them.

    The tensors of a `TensorDataset` are called `input_0`, `input_1`, ..., and the last one `labels`.

    Raises `UnsupportedDataError` if the data have another type, or the arrays different numbers of samples.
    """
    if isinstance(data, TensorDataset):
        inputs = [f"input_{at}" for at in range(len(data.tensors) - 1)]
        arrays = dict(zip([*inputs, "labels"], data.tensors, strict=True))
    elif isinstance(data, Mapping):
        arrays = {str(name): torch.as_tensor(array) for name, array in data.items()}
    else:
        raise UnsupportedDataError(
            f"data of type {type(data).__name__} can't be uploaded; give a mapping of names to arrays, a "
            "torch.utils.data.TensorDataset, the path of such arrays on the appliance, or a dataset with "
            "__len__ and __getitem__"
        )
    lengths = {name: array.shape[0] if array.dim() else 0 for name, array in arrays.items()}
    if not lengths or len(set(lengths.values())) != 1 or min(lengths.values()) < 2:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items()) or "there are none"
        raise UnsupportedDataError(f"arrays need the same number of samples, at least two: {found}")
    return arrays


def example_of(arrays: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the first two samples, as an example for tracing."""
    return {name: array[:2] for name, array in arrays.items()}


def write_arrays(arrays: Mapping[str, torch.Tensor], directory: Path) -> dict[str, Path]:
    """Write the arrays as the files NAME.npy that `ArrayDataProcessor` reads; return their paths by name.

    Raises `UnsupportedDataError` if an array has another type than float32 or integers of 32 bits, or a name
    that no file can have.
    """
    directory.mkdir()
    written = {}
    for name, array in arrays.items():
        if not name.replace("_", "").replace(".", "").isalnum() or name.startswith("."):
            raise UnsupportedDataError(f"{name!r} is no name of an input: use letters, digits and _")
        path = directory / f"{name}.npy"
        np.save(path, _array_to_store(name, array.detach().cpu()))
        written[path.name] = path
    return written


def _array_to_store(name: str, array: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array with a type that the appliance reads."""
    if array.dtype != torch.float32:
        array = _as_int32(name, array)
    stored: np.ndarray[Any, Any] = array.numpy()
    return stored


def _as_int32(name: str, array: torch.Tensor) -> torch.Tensor:
    if array.is_floating_point() or array.is_complex():
        raise UnsupportedDataError(f"{name} is of type {array.dtype}: convert it to torch.float32")
    bounds = torch.iinfo(torch.int32)
    if (
        array.dtype == torch.int64
        and array.numel()
        and not bounds.min <= array.min() <= array.max() <= bounds.max
    ):
        raise UnsupportedDataError(f"{name} has integers that need more than 32 bits")
    return array.to(torch.int32)
