"""Describes the training of a Keras model as params and uploads, which `Appliance.train` submits.

The files are those of `millrace.torch.training`. What the call does not say is taken from `model.compile`:
the loss and the optimizer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import keras
import torch

from millrace.keras import data as datas
from millrace.keras import model as models
from millrace.keras.data import Structure
from millrace.keras.network import Network, traced_network
from millrace.keras.optimizer import optimizer_params
from millrace.keras.restore import annotation_of
from millrace.loader import PythonDataset, is_dataset
from millrace.submission import ModuleOptions, ParamsWithFiles
from millrace.torch.arrays import UnsupportedDataError
from millrace.torch.operands import UnsupportedModelError
from millrace.torch.schedule import UnsupportedOptimizerError
from millrace.torch.traced_model import TracedModel
from millrace.torch.training import Files, completed_params, params_of

log = logging.getLogger("millrace")


def describe(model: Any, options: ModuleOptions, max_steps: int | None, mode: str | None) -> ParamsWithFiles:
    """Trace a Keras model and describe its training by params.

    Raises `UnsupportedModelError`, `UnsupportedOptimizerError` or `UnsupportedDataError` if the appliance
    can't train it, and `UnsupportedDataError` if an argument is missing.
    """
    check_options(options, max_steps)
    files = Files()
    structure, example, inputs = inputs_of(options, files)
    optimizer = options.get("optimizer") or getattr(model, "optimizer", None)
    with models.in_float32(model) as is_mixed:
        traced, network = trace_model(model, structure, example, options.get("loss"))
    section = optimizer_section(optimizer, network, traced, max_steps)
    is_linear = section["optimizer_type"] in ("SGD", "Lion") and "max_gradient_norm" not in section
    if not is_linear and _has_sparse_gradients(model):
        log.warning(
            "Keras on TensorFlow squares the gradients of a token that occurs several times in a batch one "
            "by one; the appliance squares their sum, as Keras on JAX and PyTorch: embeddings differ"
        )
    completed: ModuleOptions = {"mixed_precision": is_mixed, **options}
    params = params_of(inputs, section, completed, max_steps or 0, mode)
    return files.described(network, traced, params, trained=model, annotations=annotation_of(network.weights))


def describe_with_params(model: Any, options: ModuleOptions, params: Mapping[str, Any]) -> ParamsWithFiles:
    """Trace a Keras model and describe its training by params that have all settings but model and data.

    Raises the errors of `describe`.
    """
    files = Files()
    structure, example, inputs = inputs_of(options, files)
    with models.in_float32(model) as is_mixed:
        traced, network = trace_model(model, structure, example, options.get("loss"))
    completed = completed_params(params, inputs, mixed_precision=is_mixed)
    return files.described(
        network, traced, completed, trained=model, annotations=annotation_of(network.weights)
    )


def trace_model(
    model: Any, structure: Structure, example: Mapping[str, torch.Tensor], loss: Any = None
) -> tuple[TracedModel, Network]:
    """Trace a Keras model with its loss, on the backend that Keras runs on.

    Raises `UnsupportedModelError` if the appliance can't train the model.
    """
    computed = models.LossOfModel(model, loss)
    batch = [keras.ops.convert_to_tensor(item.numpy()) for item in example.values()]
    computed.build(*structure.assembled(batch))
    models.check(model)
    network = _network_of(computed, structure, example)
    return traced_network(network, example), network


def _network_of(
    loss: models.LossOfModel, structure: Structure, example: Mapping[str, torch.Tensor]
) -> Network:
    backend = keras.backend.backend()
    if backend == "torch":
        from millrace.keras.torch_backend import TorchNetwork

        return TorchNetwork(loss, structure)
    if backend == "tensorflow":
        from millrace.keras.tensorflow_backend import network_of_model

        return network_of_model(loss, structure, example)
    if backend == "jax":
        from millrace.keras.jax_backend import JaxNetwork

        return JaxNetwork(loss, structure, example)
    raise UnsupportedModelError(f"Keras runs on {backend}: set KERAS_BACKEND to tensorflow, jax or torch")


def _has_sparse_gradients(model: Any) -> bool:
    """Return whether Keras computes the gradients of embeddings as lists of rows, with duplicates."""
    is_embedding = (type(layer).__name__.endswith("Embedding") for layer in models.layers_of(model))
    return keras.backend.backend() == "tensorflow" and any(is_embedding)


def check_options(options: ModuleOptions, max_steps: int | None) -> None:
    """Reject options that are missing, and those that only modules of PyTorch have.

    Raises `UnsupportedDataError`.
    """
    for name, given in (("max_steps", max_steps), ("batch_size", options.get("batch_size"))):
        if given is None:
            raise UnsupportedDataError(f"{name} is missing: the training of a model needs it")
    if options.get("call") is not None:
        raise UnsupportedDataError("call is for modules of PyTorch: give a loss, or a tf.function")
    if options.get("scheduler") is not None:
        raise UnsupportedDataError(
            "scheduler is for optimizers of PyTorch: give the optimizer one of keras.optimizers.schedules"
        )


def inputs_of(
    options: ModuleOptions, files: Files
) -> tuple[Structure, dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
    """Return the structure of the data, an example batch, and the inputs of the params by their section."""
    data, example = options.get("data"), options.get("example")
    if is_dataset(data):
        return _inputs_of_datasets(options, files)
    is_here = data is not None and not isinstance(data, str | PathLike) and not _is_input(data)
    given = data if is_here else example
    if data is not None and given is None:
        raise UnsupportedDataError(
            "example is missing: data on the appliance need an example (x, y) of at least two samples"
        )
    structure, arrays = (Structure(None), {}) if given is None else datas.read(given)
    section, _ = files.input("train", arrays if is_here else data, options.get("num_workers"))
    inputs = {"train_input": section}
    if (eval_data := options.get("eval_data")) is not None:
        if not isinstance(eval_data, str | PathLike) and not _is_input(eval_data):
            of_eval, eval_data = datas.read(eval_data)
            if of_eval != structure:
                raise UnsupportedDataError("eval_data have other inputs or labels than data")
        inputs["eval_input"], _ = files.input("eval", eval_data)
    return structure, {name: array[:2] for name, array in arrays.items()}, inputs


def _inputs_of_datasets(
    options: ModuleOptions, files: Files
) -> tuple[Structure, dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
    """Return what `inputs_of` returns, for datasets whose samples are x or (x, y)."""
    inputs, examples = {}, []
    for name in ("data", "eval_data"):
        if (data := options.get(name)) is None:
            continue
        if not is_dataset(data):
            raise UnsupportedDataError("data and eval_data must both be datasets, or both be arrays")
        dataset = data if isinstance(data, PythonDataset) else PythonDataset(data)
        named = replace(dataset, names=dataset.names or ("x", "y"))
        section = "train" if name == "data" else "eval"
        inputs[f"{section}_input"], example = files.input(section, named, options.get("num_workers"))
        examples.append(example)
    example = examples[0]
    if any(list(other) != list(example) for other in examples):
        raise UnsupportedDataError("eval_data have other inputs or labels than data")
    if list(example) not in (["x"], ["x", "y"]):
        raise UnsupportedDataError(
            f"samples of the dataset have {', '.join(example)}: return x or (x, y) from __getitem__"
        )
    return Structure(*example), example, inputs


def _is_input(data: Any) -> bool:
    return isinstance(data, Mapping) and "data_processor" in data


def optimizer_section(
    optimizer: Any, network: Network, traced: TracedModel, max_steps: int | None
) -> dict[str, Any]:
    """Return the section `optimizer` of the params.

    Raises `UnsupportedOptimizerError` if there is none, or the appliance does not have it.
    """
    if optimizer is None:
        raise UnsupportedOptimizerError(
            "the optimizer is missing: give one, or call model.compile(optimizer, loss)"
        )
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UnsupportedOptimizerError(
            f"{type(optimizer).__name__} is no optimizer of Keras: use one of keras.optimizers"
        )
    return optimizer_params(optimizer, network.weights, traced, steps=max_steps or 0)
