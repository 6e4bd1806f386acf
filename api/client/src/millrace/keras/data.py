"""Data of a training as users give them to `fit`: x, or (x, y), of arrays, lists or dicts of arrays.

The arrays have these names, which are those of the files on the appliance:

    (images, labels)                          x, y
    ([left, right], {"class": a, "box": b})   x_0, x_1, y_class, y_box
    ({"ids": ids, "mask": mask}, labels)      ids, mask, y
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from millrace.torch.arrays import UnsupportedDataError, arrays_of


@dataclass(frozen=True)
class Structure:
    """How the arrays of a batch are given to a model: names in place of arrays."""

    x: Any
    y: Any = None

    def names(self) -> list[str]:
        """Return the names of all arrays."""
        return [*_leaves(self.x), *_leaves(self.y)]

    def assembled(self, batch: Sequence[Any]) -> tuple[Any, Any]:
        """Return x and y of a batch, whose tensors have the order of `names`."""
        tensors = dict(zip(self.names(), batch, strict=True))
        return _replace_by_tensors(self.x, tensors), _replace_by_tensors(self.y, tensors)


def read(data: Any) -> tuple[Structure, dict[str, torch.Tensor]]:
    """Return the structure of data and their arrays by name.

    Raises `UnsupportedDataError` if the data have another form, or the arrays different numbers of samples.
    """
    given = data if isinstance(data, tuple) else (data,)
    if len(given) not in (1, 2):
        what = "with weights of samples are" if len(given) == 3 else f"of {len(given)} parts are"
        raise UnsupportedDataError(f"data {what} not supported: give (x, y)")
    arrays: dict[str, torch.Tensor] = {}
    parts = [_replace_by_names(part, name, arrays) for part, name in zip(given, ("x", "y"), strict=False)]
    return Structure(*parts), arrays_of(arrays)


def _replace_by_names(part: Any, name: str, arrays: dict[str, torch.Tensor]) -> Any:
    """Return a part of data with names in place of its arrays, which are added to `arrays`."""
    if isinstance(part, Mapping):
        prefix = "" if name == "x" else f"{name}_"
        return {key: _replace_by_names(item, f"{prefix}{key}", arrays) for key, item in part.items()}
    if isinstance(part, list | tuple) and any(hasattr(item, "shape") for item in part):
        return [_replace_by_names(item, f"{name}_{at}", arrays) for at, item in enumerate(part)]
    if part is None:
        return None
    if name in arrays:
        raise UnsupportedDataError(f"two arrays of the data have the name {name}: rename one")
    arrays[name] = tensor_of(part, name)
    return name


def tensor_of(array: Any, name: str) -> torch.Tensor:
    """Return an array as Keras takes it: numbers in float32."""
    is_array = hasattr(array, "shape") or isinstance(array, list | tuple)
    if not is_array or hasattr(array, "element_spec"):
        raise UnsupportedDataError(
            f"data of type {type(array).__name__} can't be uploaded; give x or (x, y) of arrays, or the path "
            "of such arrays on the appliance"
        )
    data = np.asarray(array.detach().cpu() if isinstance(array, torch.Tensor) else array)
    if data.dtype.kind == "f" or data.dtype.name == "bfloat16":
        data = data.astype(np.float32, copy=False)
    elif data.dtype.kind in "bu":
        data = data.astype(np.int64 if data.dtype.itemsize > 2 else np.int32)
    elif data.dtype.kind != "i":
        raise UnsupportedDataError(f"{name} is of type {data.dtype}: use numbers")
    return torch.from_numpy(np.ascontiguousarray(data))


def _leaves(part: Any) -> list[str]:
    if part is None:
        return []
    if isinstance(part, str):
        return [part]
    items = part.values() if isinstance(part, Mapping) else part
    return [name for item in items for name in _leaves(item)]


def _replace_by_tensors(part: Any, tensors: Mapping[str, Any]) -> Any:
    if part is None:
        return None
    if isinstance(part, str):
        return tensors[part]
    if isinstance(part, Mapping):
        return {key: _replace_by_tensors(item, tensors) for key, item in part.items()}
    return [_replace_by_tensors(item, tensors) for item in part]
