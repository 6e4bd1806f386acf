"""The graph of a module, and how the module's parameters are its tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class TracedModel:
    """The graph of a module with its loss."""

    document: dict[str, Any]
    """The document of the graph."""
    transposed: dict[str, bool]
    """For each tensor of the graph, which has the name of its parameter: whether it is transposed there.

    The transposed weight of a transposed convolution is that of the convolution with the same gradients.
    """

    def save(self, path: str | Path) -> None:
        """Write the document to a file."""
        Path(path).write_text(json.dumps(self.document))

    def save_weights(self, model: torch.nn.Module, path: str | Path) -> None:
        """Write the weights of the module for `checkpoint import --from safetensors`."""
        save_file({name: data.detach().clone() for name, data in self.tensors(model).items()}, path)

    def tensors(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Return the tensors of the graph, computed from the parameters of the module."""
        shapes = {tensor["name"]: tensor["shape"] for tensor in self.document["tensors"]}
        return {
            name: oriented(as_real(model.get_parameter(name)).cpu(), shapes[name], transposed=transposed)
            for name, transposed in self.transposed.items()
        }

    def load_weights(self, model: torch.nn.Module, path: str | Path) -> None:
        """Give the module the weights that `checkpoint export --to safetensors` wrote.

        Raises `ValueError` if names or shapes differ; the module then keeps its weights.
        """
        weights = load_file(path)
        if weights.keys() != self.transposed.keys():
            names = ", ".join(sorted(weights.keys() ^ self.transposed.keys()))
            raise ValueError(f"{path} is not of this module: only one of them has {names}")
        shapes = {tensor["name"]: tensor["shape"] for tensor in self.document["tensors"]}
        for name, weight in weights.items():
            if list(weight.shape) != shapes[name]:
                raise ValueError(
                    f"{path} is not of this module: {name} has shape {tuple(weight.shape)}, "
                    f"not {tuple(shapes[name])}"
                )
        with torch.no_grad():
            for name, transposed in self.transposed.items():
                parameter = as_real(model.get_parameter(name))
                parameter.copy_(oriented(weights[name], list(parameter.shape), transposed=transposed))


def as_real(parameter: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as real ones with a last dimension of two, in the same memory."""
    return torch.view_as_real(parameter) if parameter.is_complex() else parameter


def oriented(weight: torch.Tensor, shape: list[int], *, transposed: bool) -> torch.Tensor:
    """Return the weight of a parameter as a tensor of the graph with this shape, or the other way round."""
    if transposed and len(shape) == 2:
        weight = weight.reshape(shape[::-1]).t()
    elif transposed and weight.dim() == 2:
        weight = weight.t()
    elif transposed:
        # Inputs and outputs of each group are exchanged, and the kernel is reversed.
        groups = shape[0] // weight.shape[1]
        weight = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        weight = weight.flip(list(range(2, weight.dim())))
    return weight.reshape(shape).contiguous()
