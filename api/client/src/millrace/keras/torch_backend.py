"""Keras models on PyTorch: the model is called with the parameters of the network."""

from __future__ import annotations

from typing import Any

import keras
import torch

from millrace.keras import model as models
from millrace.keras.data import Structure
from millrace.keras.network import Network


class TorchNetwork(Network):
    """Computes the loss of a Keras model on PyTorch."""

    def __init__(self, loss: models.LossOfModel, structure: Structure) -> None:
        paths = [layer.path or layer.name for layer in models.layers_of(loss.model)]
        super().__init__(models.weights_of(loss.model), paths)
        # Not as a module: its parameters are those of the network.
        self._computation = (loss, structure)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        loss, structure = self._computation
        variables = [weight.variable for weight in self.weights]
        mapping = list(zip(variables, self.values(), strict=True))
        stateful = loss.model.non_trainable_variables
        call = keras.layers.Layer.__call__

        def call_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
            return self.compute_in_scope(layer.path or layer.name, None, lambda: call(layer, *args, **kwargs))

        with (
            keras.device("cpu"),
            models.tracing(loss.model, _dropout),
            models.named_forward(loss.user_functions()),
            models.replaced(keras.layers.Layer, "__call__", call_layer),
            models.replaced(torch, "as_tensor", _as_tensor),
            keras.StatelessScope(mapping, collect_losses=True) as scope,
        ):
            total: torch.Tensor = loss(*structure.assembled(batch))
        given = {id(variable): value for variable, value in mapping}
        models.check_states(stateful, lambda item: _is_changed(scope, item, given.get(id(item))))
        return total


_TO_TENSOR = torch.as_tensor


def _as_tensor(data: Any, **kwargs: Any) -> torch.Tensor:
    """Return data as a tensor. PyTorch's function fixes the size of the batch."""
    items = data if isinstance(data, list | tuple) else [data]
    is_size = any(isinstance(item, torch.SymInt) for item in items)
    return (torch.tensor if is_size else _TO_TENSOR)(data, **kwargs)


def _is_changed(scope: Any, variable: Any, given: Any) -> bool:
    value = scope.get_current_value(variable)
    return value is not None and value is not given


def _dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    if noise_shape is None:
        return torch.nn.functional.dropout(inputs, rate)
    sizes = [size if given is None else given for size, given in zip(inputs.shape, noise_shape, strict=True)]
    return inputs * torch.nn.functional.dropout(torch.ones(sizes), rate)
