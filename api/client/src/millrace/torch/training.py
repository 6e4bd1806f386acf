"""Describes the training of a module as params and uploads, which `Appliance.train` submits.

graph.json            the traced module with its loss      model.graph
weights.safetensors   its weights                          runconfig.checkpoint_path
train/NAME.npy        the data, unless on the appliance    train_input.data_dir
train/manifest.json   or the package of a dataset
eval/...
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

from millrace.loader import PythonDataset, is_dataset, pack
from millrace.submission import ModuleOptions, ParamsWithFiles
from millrace.torch.arrays import UnsupportedDataError, arrays_of, example_of, write_arrays
from millrace.torch.data_loader import without_data_loader
from millrace.torch.optimizer import optimizer_params
from millrace.torch.trace import trace
from millrace.torch.traced_model import TracedModel, as_real, oriented
from millrace.uploads import Blob

GRAPH_FILE = "graph.json"
WEIGHTS_FILE = "weights.safetensors"
TRANSPOSED_ANNOTATION = "client.millrace.dev/transposed"
"""Annotation of a job: the tensors of its graph that are transposed parameters, as a JSON list of names."""


def state_of(
    model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], annotations: Mapping[str, str]
) -> dict[str, Any]:
    """Return the state of the module with the trained tensors of a job; buffers are those of the module.

    Raises `UnsupportedDataError` if the tensors are not those of the module.
    """
    transposed = set(json.loads(annotations.get(TRANSPOSED_ANNOTATION, "[]")))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if unknown := sorted(tensors.keys() - parameters.keys()):
        raise UnsupportedDataError(
            f"the module has no parameter {unknown[0]}: give the module that was trained"
        )

    def of_parameter(name: str, tensor: torch.Tensor) -> torch.Tensor:
        parameter = parameters[name]
        data = oriented(tensor, list(as_real(parameter).shape), transposed=name in transposed)
        return torch.view_as_complex(data) if parameter.is_complex() else data

    trained = {id(parameters[name]): of_parameter(name, tensor) for name, tensor in tensors.items()}
    # Tied parameters have several names.
    ids = {name: id(parameter) for name, parameter in parameters.items()}
    return {name: trained.get(ids.get(name, 0), value) for name, value in model.state_dict().items()}


def describe(
    model: torch.nn.Module, options: ModuleOptions, max_steps: int | None, mode: str | None
) -> ParamsWithFiles:
    """Trace a module and describe its training by params.

    Raises `UnsupportedModelError`, `UnsupportedOptimizerError` or `UnsupportedDataError` if the appliance
    can't train it, and `UnsupportedDataError` if an argument is missing.
    """
    options = without_data_loader(options)
    steps, batch_size, optimizer = max_steps, options.get("batch_size"), options.get("optimizer")
    for name, given in (("max_steps", steps), ("batch_size", batch_size), ("optimizer", optimizer)):
        if given is None:
            raise UnsupportedDataError(f"{name} is missing: the training of a module needs it")
    assert steps is not None and optimizer is not None
    files = Files()
    traced, inputs = _traced(model, options, files)
    section = optimizer_params(optimizer, model, traced, scheduler=options.get("scheduler"), steps=steps)
    return files.described(model, traced, params_of(inputs, section, options, steps, mode))


def params_of(
    inputs: Mapping[str, dict[str, Any]],
    optimizer: dict[str, Any],
    options: ModuleOptions,
    steps: int,
    mode: str | None,
) -> dict[str, Any]:
    """Return the params of a training, from their inputs and the section of the optimizer."""
    shuffle = options.get("shuffle", inputs["train_input"].get("shuffle", True))
    params: dict[str, Any] = {
        "train_input": inputs["train_input"] | {"shuffle": shuffle},
        "model": {"graph": GRAPH_FILE, "mixed_precision": options.get("mixed_precision", False)},
        "optimizer": optimizer,
        "runconfig": {"max_steps": steps, "checkpoint_path": WEIGHTS_FILE},
    }
    if "eval_input" in inputs:
        params["eval_input"] = inputs["eval_input"]
        params["runconfig"]["mode"] = "train_and_eval"
    for section in params.keys() & {"train_input", "eval_input"}:
        params[section]["batch_size"] = options["batch_size"]
    params["runconfig"] |= ({"mode": mode} if mode else {}) | dict(options.get("runconfig") or {})
    _check_streams(params, inputs)
    return params


def _check_streams(params: Mapping[str, Any], inputs: Mapping[str, dict[str, Any]]) -> None:
    """Reject params that data without numbers and without an end can't have."""
    run, message = params["runconfig"], "are only iterated over"
    # Packages of such data, and no others, say that they are not shuffled.
    streams = {name: params[name] for name, section in inputs.items() if section.get("shuffle") is False}
    if any(section.get("shuffle") for section in streams.values()):
        raise UnsupportedDataError(f"the data {message} and can't be shuffled: shuffle them in the iterator")
    endless = [name for name, section in streams.items() if section.get("num_samples") is None]
    if "eval_input" in endless and run.get("eval_steps") is None:
        raise UnsupportedDataError(f"eval_data {message} and have no end: give runconfig={{'eval_steps': N}}")
    if "train_input" in endless and run.get("max_epochs") is not None:
        raise UnsupportedDataError(f"the data {message} and have no end: give max_steps, not max_epochs")


def describe_with_params(
    model: torch.nn.Module, options: ModuleOptions, params: Mapping[str, Any]
) -> ParamsWithFiles:
    """Trace a module and describe its training by params that have all settings but model and data.

    Raises the errors of `describe`.
    """
    options = without_data_loader(options)
    files = Files()
    if is_dataset(options.get("data")) and "num_workers" not in options:
        train_input = dict(params.get("train_input") or {})
        options = {**options, "num_workers": train_input.pop("num_workers", 0)}
        params = {**params, "train_input": train_input}
    traced, inputs = _traced(model, options, files)
    return files.described(model, traced, completed_params(params, inputs))


def completed_params(
    params: Mapping[str, Any], inputs: Mapping[str, dict[str, Any]], **model: Any
) -> dict[str, Any]:
    """Return params with model and data; `model` has defaults of the keys of the model."""
    given = {name: dict(params.get(name) or {}) for name in ("model", "runconfig", *inputs)}
    completed = {
        **params,
        **{name: section | given[name] for name, section in inputs.items()},
        "model": model | given["model"] | {"graph": GRAPH_FILE},
        "runconfig": {"checkpoint_path": WEIGHTS_FILE} | given["runconfig"],
    }
    _check_streams(completed, inputs)
    return completed


def _traced(
    model: torch.nn.Module, options: ModuleOptions, files: Files
) -> tuple[TracedModel, dict[str, dict[str, Any]]]:
    """Return the traced module, and the inputs of the params by their section."""
    workers = options.get("num_workers") or None
    train_input, arrays = files.input("train", options.get("data"), workers)
    inputs = {"train_input": train_input}
    if options.get("eval_data") is not None:
        inputs["eval_input"], _ = files.input("eval", options["eval_data"], workers)
    example = options.get("example") or (example_of(arrays) if arrays else None)
    if example is None:
        raise UnsupportedDataError(
            "example is missing: data on the appliance need an example of at least two samples, a mapping of "
            "the names of their arrays to tensors"
        )
    traced = trace(model, example, options.get("loss"), call=options.get("call") or _call(options, example))
    return traced, inputs


class Files:
    """Files that are uploaded, in a directory that exists as long as they are needed."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="millrace-")
        self.uploads: dict[str, Path] = {}
        self.summary: list[str] = []

    def input(
        self, name: str, data: Any, workers: int | None = None
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return an input of the params, and its first samples, or all, if they are uploaded."""
        if data is None:
            raise UnsupportedDataError("data is missing: give arrays, or the path of arrays on the appliance")
        if isinstance(data, Mapping) and "data_processor" in data:
            return dict(data), {}
        if is_dataset(data) and not isinstance(data, TensorDataset):
            return self._dataset(name, data, workers)
        if workers is not None:
            raise UnsupportedDataError("num_workers is for datasets with __getitem__, not for arrays")
        section = {"data_processor": "ArrayDataProcessor", "data_dir": name}
        if isinstance(data, (str, os.PathLike)):
            return section | {"data_dir": os.fspath(data)}, {}
        arrays = arrays_of(data)
        written = write_arrays(arrays, Path(self.directory.name, name))
        self.uploads |= {f"{name}/{file}": path for file, path in written.items()}
        return section, arrays

    def _dataset(
        self, name: str, data: Any, workers: int | None
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Pack a dataset; return the input of the params, and two samples."""
        dataset = data if isinstance(data, PythonDataset) else PythonDataset(data)
        if workers is not None:
            dataset.workers = workers
        package = pack(dataset, Path(self.directory.name, name))
        self.uploads |= {f"{name}/{file}": path for file, path in package.files.items()}
        self.summary += package.summary
        example = {name: torch.from_numpy(array) for name, array in package.example.items()}
        section = {"data_processor": "PythonDataProcessor", "data_dir": name}
        # The order of an iterator is its own.
        return section | ({"shuffle": False} if package.is_stream else {}), example

    def described(
        self,
        model: torch.nn.Module,
        traced: TracedModel,
        params: dict[str, Any],
        *,
        trained: Any = None,
        annotations: Mapping[str, str] | None = None,
    ) -> ParamsWithFiles:
        """Write document and weights, and return everything that is sent.

        `trained` is what the user trains, if that is not the module, and `annotations` are further ones.
        """
        for name in (GRAPH_FILE, WEIGHTS_FILE):
            self.uploads[name] = Path(self.directory.name, name)
        traced.save(self.uploads[GRAPH_FILE])
        traced.save_weights(model, self.uploads[WEIGHTS_FILE])
        transposed = [name for name, transposed in traced.transposed.items() if transposed]
        return ParamsWithFiles(
            params=params,
            uploads={name: Blob.of_file(path) for name, path in self.uploads.items()},
            annotations={TRANSPOSED_ANNOTATION: json.dumps(transposed), **(annotations or {})},
            module=model if trained is None else trained,
            directory=self.directory,
            summary=self.summary,
        )


def _call(options: ModuleOptions, example: Mapping[str, torch.Tensor]) -> Callable[..., Any] | None:
    """Return the call of a module that computes its own loss, from inputs by their names."""
    if options.get("loss") is not None:
        return None
    names = list(example)

    def call(model: torch.nn.Module, *batch: Any) -> Any:
        return model(**dict(zip(names, batch, strict=True)))

    return call


def load_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a downloaded checkpoint by their names."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(Path(directory, "parameters").glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors
