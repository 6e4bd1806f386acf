"""Gives a model the weights that a job has trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from millrace.keras.weights import Weight, is_numeric, to_numpy
from millrace.torch.arrays import UnsupportedDataError
from millrace.torch.traced_model import oriented
from millrace.torch.training import TRANSPOSED_ANNOTATION

VARIABLES_ANNOTATION = "client.millrace.dev/variables"
"""Annotation of a job: the names of the tensors in the order of the variables of its model, as a JSON list.

The same model has other names in another program: Keras numbers layers of the same kind.
"""


def annotation_of(weights: Sequence[Weight]) -> dict[str, str]:
    """Return the annotation that `update` needs."""
    return {VARIABLES_ANNOTATION: json.dumps([weight.name for weight in weights])}


def update(model: Any, tensors: Mapping[str, torch.Tensor], annotations: Mapping[str, str]) -> None:
    """Assign the trained tensors of a job to the variables of its model.

    Raises `UnsupportedDataError` if the model has other variables; it then keeps its weights.
    """
    weights = _weights_of(model)
    names = json.loads(annotations[VARIABLES_ANNOTATION])
    transposed = set(json.loads(annotations.get(TRANSPOSED_ANNOTATION, "[]")))
    if len(names) != len(weights):
        raise UnsupportedDataError(
            f"the job has trained a model of {len(names)} variables, and this one has {len(weights)}: give "
            "the model that was trained"
        )
    arrays: list[tuple[Weight, np.ndarray[Any, Any]]] = []
    for name, weight in zip(names, weights, strict=True):
        if name not in tensors:
            continue
        shape = list(weight.read().shape)
        try:
            data = oriented(tensors[name], shape, transposed=name in transposed)
        except RuntimeError as error:
            raise UnsupportedDataError(
                f"the variable {weight.name} has the shape {tuple(weight.variable.shape)}, which is not that "
                "of the trained one: give the model that was trained"
            ) from error
        arrays.append((weight, weight.restored(data).detach().numpy()))
    for weight, array in arrays:
        weight.variable.assign(array.astype(to_numpy(weight.variable).dtype))


def _weights_of(model: Any) -> list[Weight]:
    if hasattr(model, "get_concrete_function"):
        from millrace.keras.function import weights_of_function

        return weights_of_function(model)
    from millrace.keras.model import weights_of

    if not model.built:
        raise UnsupportedDataError(
            "the model is not built: call it with a batch, or build it with the shape of one"
        )
    return [weight for weight in weights_of(model) if is_numeric(weight)]
