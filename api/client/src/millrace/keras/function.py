"""Describes the training of a `tf.function` that returns a loss.

@tf.function
def loss(x, labels):
    logits = tf.nn.relu(x @ w1) @ w2
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

job = appliance.train(loss, data={"x": x, "labels": labels}, optimizer=keras.optimizers.Adam(), ...)
job.follow()
job.update(loss)                 # assigns the variables
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import tensorflow as tf
import torch

from millrace.keras import data as datas
from millrace.keras.network import traced_network
from millrace.keras.restore import annotation_of
from millrace.keras.tensorflow_backend import GraphNetwork, concrete_function, operations_of, variables_of
from millrace.keras.training import check_options, optimizer_section
from millrace.keras.weights import Weight, is_numeric, kernel_order, unique_names
from millrace.submission import ModuleOptions, ParamsWithFiles
from millrace.torch.arrays import UnsupportedDataError, arrays_of
from millrace.torch.traced_model import TracedModel
from millrace.torch.training import Files, params_of

CONVOLUTIONS = frozenset({"Conv2D", "DepthwiseConv2dNative", "Conv2DBackpropInput"})


def describe_function(
    function: Any, options: ModuleOptions, max_steps: int | None, mode: str | None
) -> ParamsWithFiles:
    """Trace a function and describe its training by params.

    Raises `UnsupportedModelError`, `UnsupportedOptimizerError` or `UnsupportedDataError` if the appliance
    can't train it, and `UnsupportedDataError` if an argument is missing.
    """
    check_options(options, max_steps)
    if options.get("loss") is not None:
        raise UnsupportedDataError("loss is for models: the function itself returns the loss")
    files = Files()
    data = options.get("data")
    is_here = data is not None and not isinstance(data, str | PathLike)
    given = data if is_here else options.get("example")
    if data is not None and given is None:
        raise UnsupportedDataError(
            "example is missing: data on the appliance need an example of two samples, by their names"
        )
    arrays = _arrays(given, function) if given is not None else {}
    section, _ = files.input("train", arrays if is_here else data)
    inputs = {"train_input": section}
    if (eval_data := options.get("eval_data")) is not None:
        is_path = isinstance(eval_data, str | PathLike)
        inputs["eval_input"], _ = files.input("eval", eval_data if is_path else _arrays(eval_data, function))
    example = {name: array[:2] for name, array in arrays.items()}
    traced, network = trace_function(function, example)
    params = params_of(
        inputs,
        optimizer_section(options.get("optimizer"), network, traced, max_steps),
        options,
        max_steps or 0,
        mode,
    )
    return files.described(
        network, traced, params, trained=function, annotations=annotation_of(network.weights)
    )


def trace_function(function: Any, example: Mapping[str, torch.Tensor]) -> tuple[TracedModel, GraphNetwork]:
    """Trace a function of TensorFlow that returns the loss of a batch with the arrays of the example.

    Raises `UnsupportedModelError` if the appliance can't train it.
    """
    names, parameters = list(example), _parameters(function)

    def call(*batch: Any) -> Any:
        if set(names) <= set(parameters):
            return function(**dict(zip(names, batch, strict=True)))
        return function(*batch)

    concrete = concrete_function(tf.function(call, autograph=False), example)
    network = GraphNetwork(concrete, _weights(concrete), lambda item: "seed_generator_state" in item.name)
    return traced_network(network, example), network


def weights_of_function(function: Any) -> list[Weight]:
    """Return the variables of a function that was called or traced, in the order in which it uses them.

    Raises `UnsupportedDataError` if it was not.
    """
    concrete = function._list_all_concrete_functions()
    if not concrete:
        raise UnsupportedDataError("the function has no variables yet: call it once with a batch")
    return [weight for weight in _weights(concrete[-1]) if is_numeric(weight)]


def _weights(concrete: Any) -> list[Weight]:
    variables: Sequence[Any] = [item for item in variables_of(concrete) if item is not None]
    has_images = any(op.type in CONVOLUTIONS for op in operations_of(concrete.graph))
    names = unique_names(item.name for item in variables)
    return [
        Weight(name, item, item.trainable, kernel_order(4) if has_images and len(item.shape) == 4 else None)
        for name, item in zip(names, variables, strict=True)
    ]


def _parameters(function: Any) -> list[str]:
    """Return the names of the parameters of a function."""
    return [name for name in inspect.signature(function.python_function).parameters if name != "self"]


def _arrays(data: Any, function: Any) -> dict[str, torch.Tensor]:
    """Return the arrays of a mapping of names to arrays, or of a tuple, by the names of the parameters."""
    if isinstance(data, tuple):
        names = _parameters(function)
        if len(names) < len(data):
            raise UnsupportedDataError(
                f"data of {len(data)} arrays for a function of {len(names)} parameters"
            )
        data = dict(zip(names, data, strict=False))
    if not isinstance(data, Mapping):
        raise UnsupportedDataError(
            f"data of type {type(data).__name__} can't be uploaded; give a mapping of names to arrays, or "
            "the path of such arrays on the appliance"
        )
    return arrays_of({str(name): datas.tensor_of(array, str(name)) for name, array in data.items()})
