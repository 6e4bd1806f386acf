"""A model of Keras, or a function of TensorFlow, as a module of PyTorch that computes its loss.

It is exported and translated like any other module, by `millrace.torch.trace`: the same operators, and the
same check that no sample depends on another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from millrace.keras.weights import Weight, is_numeric
from millrace.torch.locations import GENERATED, library_directories
from millrace.torch.operands import UnsupportedModelError
from millrace.torch.trace import trace
from millrace.torch.traced_model import TracedModel

SCOPES = "scopes"
"""The attribute of a network that has a module for each part of the model."""


class Network(torch.nn.Module):
    """Computes the loss of a batch. Its parameters are the variables of the model with numbers."""

    def __init__(self, weights: Sequence[Weight], paths: Iterable[str]) -> None:
        super().__init__()
        self.weights = [weight for weight in weights if is_numeric(weight)]
        for weight in self.weights:
            parameter = torch.nn.Parameter(weight.read(), requires_grad=weight.is_trained)
            self.register_parameter(weight.name, parameter)
        # PyTorch records modules only that exist before.
        self.scopes = torch.nn.ModuleDict({_scope_name(path): _Scope() for path in paths})

    def values(self) -> list[torch.Tensor]:
        """Return the parameters with the dimensions of the variables, in the order of `weights`."""
        return [weight.restored(getattr(self, weight.name)) for weight in self.weights]

    def compute_in_scope(
        self, path: str, source_line: tuple[str, int] | None, call: Callable[[], Any]
    ) -> Any:
        """Compute a part of the model; its operators have this path, and this line of the user's code."""
        scope: Any = self.scopes[_scope_name(path)] if _scope_name(path) in self.scopes else _Scope()
        return scope(call if source_line is None else _call_at_line(call, *source_line))

    @abstractmethod
    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""


def _scope_name(path: str) -> str:
    return path.replace(".", "_") or "root"


class _Scope(torch.nn.Module):
    """A part of a model. PyTorch records the modules of operators."""

    def forward(self, call: Callable[[], Any]) -> Any:
        """Compute the part."""
        return call()


def _call_at_line(call: Callable[[], Any], file: str, line: int) -> Callable[[], Any]:
    """Return a function that calls `call` from this line of the user's code, for what PyTorch records.

    It records functions of this name only.
    """

    def forward() -> Any:
        return call()

    # The call is in the line after the first one.
    forward.__code__ = forward.__code__.replace(co_filename=file, co_firstlineno=line - 1)
    return forward


def user_frame(frames: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    """Return the innermost file and line that are the user's, of frames from the outermost one on."""
    libraries = library_directories()
    for file, line in reversed(frames):
        if line and not GENERATED.match(file) and not file.startswith(libraries):
            return file, line
    return None


def traced_network(network: Network, batch: Mapping[str, torch.Tensor]) -> TracedModel:
    """Trace a network; the operators have the paths of the model's parts.

    Raises `UnsupportedModelError` if the appliance can't train the model.
    """
    try:
        traced = trace(network, batch)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(str(error).replace(f"{SCOPES}.", "", 1)) from error
    for node in traced.document["nodes"]:
        node["path"] = node["path"].removeprefix(f"{SCOPES}.").replace("/", ".")
    return traced
