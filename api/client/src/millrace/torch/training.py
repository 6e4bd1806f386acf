"""Describes the training of a module as params and uploads, which `Appliance.train` submits.

graph.json            the traced module with its loss      model.graph
weights.safetensors   its weights                          runconfig.checkpoint_path
train/NAME.npy        the data, unless on the appliance    train_input.data_dir
eval/NAME.npy
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from millrace.submission import ModuleOptions
from millrace.torch.arrays import UnsupportedDataError, arrays_of, example_of, write_arrays
from millrace.torch.optimizer import optimizer_params
from millrace.torch.trace import TracedModel, oriented, trace
from millrace.uploads import Blob

GRAPH_FILE = "graph.json"
WEIGHTS_FILE = "weights.safetensors"
TRANSPOSED_ANNOTATION = "client.millrace.dev/transposed"
"""Annotation of a job: the tensors of its graph that are transposed parameters, as a JSON list of names."""


@dataclass(frozen=True)
class Training:
    """A module as it is sent to an appliance."""

    model: torch.nn.Module
    traced: TracedModel
    params: dict[str, Any]
    uploads: dict[str, Blob]
    """What the params name, by the names that they have."""
    files: tempfile.TemporaryDirectory[str] = field(repr=False)
    """The uploads, until they are not needed any more."""

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the job, from which `state_of` finds its way back to the module."""
        names = [name for name, transposed in self.traced.transposed.items() if transposed]
        return {TRANSPOSED_ANNOTATION: json.dumps(names)}


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
    trained = {
        id(parameters[name]): oriented(tensor, list(parameters[name].shape), transposed=name in transposed)
        for name, tensor in tensors.items()
    }
    # Tied parameters have several names.
    places = {name: id(parameter) for name, parameter in parameters.items()}
    return {name: trained.get(places.get(name, 0), value) for name, value in model.state_dict().items()}


def describe(
    model: torch.nn.Module, options: ModuleOptions, max_steps: int | None, mode: str | None
) -> Training:
    """Trace a module and write the files that a job needs.

    Raises `UnsupportedModelError`, `UnsupportedOptimizerError` or `UnsupportedDataError` if the appliance
    can't train it, and `UnsupportedDataError` if an argument is missing.
    """
    steps, batch_size, optimizer = max_steps, options.get("batch_size"), options.get("optimizer")
    for name, given in (("max_steps", steps), ("batch_size", batch_size), ("optimizer", optimizer)):
        if given is None:
            raise UnsupportedDataError(f"{name} is missing: the training of a module needs it")
    assert steps is not None and optimizer is not None
    files = tempfile.TemporaryDirectory(prefix="millrace-")
    uploads: dict[str, Path] = {}
    train_input, arrays = _input("train", options.get("data"), Path(files.name), uploads)
    example = options.get("example") or (example_of(arrays) if arrays else None)
    if example is None:
        raise UnsupportedDataError(
            "example is missing: data on the appliance need an example of at least two samples, a mapping of "
            "the names of their arrays to tensors"
        )
    traced = trace(model, example, options.get("loss"), call=options.get("call") or _call(options, example))
    train_input |= {"batch_size": batch_size, "shuffle": options.get("shuffle", True)}
    params: dict[str, Any] = {
        "train_input": train_input,
        "model": {
            "graph": GRAPH_FILE,
            "mixed_precision": options.get("mixed_precision", False),
        },
        "optimizer": optimizer_params(
            optimizer, model, traced, scheduler=options.get("scheduler"), steps=steps
        ),
        "runconfig": {
            "max_steps": steps,
            "checkpoint_path": WEIGHTS_FILE,
            **({"mode": mode} if mode else {}),
            **(options.get("runconfig") or {}),
        },
    }
    if options.get("eval_data") is not None:
        eval_input, _ = _input("eval", options.get("eval_data"), Path(files.name), uploads)
        params["eval_input"] = eval_input | {"batch_size": batch_size}
        params["runconfig"].setdefault("mode", "train_and_eval")
    for name, write in (
        (GRAPH_FILE, lambda path: Path(path).write_text(json.dumps(traced.document))),
        (WEIGHTS_FILE, lambda path: _save_weights(traced, model, path)),
    ):
        uploads[name] = Path(files.name, name)
        write(uploads[name])
    blobs = {name: Blob.of_file(path) for name, path in uploads.items()}
    return Training(model, traced, params, blobs, files)


def _save_weights(traced: TracedModel, model: torch.nn.Module, path: Path) -> None:
    save_file({name: data.detach().clone() for name, data in traced.tensors(model).items()}, path)


def _call(options: ModuleOptions, example: Mapping[str, torch.Tensor]) -> Callable[..., Any] | None:
    """Return the call of a module that computes its own loss, from inputs by their names."""
    if options.get("loss") is not None:
        return None
    names = list(example)

    def call(model: torch.nn.Module, *batch: Any) -> Any:
        output = model(**dict(zip(names, batch, strict=True)))
        # Models of transformers return their loss with other values.
        return output if isinstance(output, torch.Tensor) else output["loss"]

    return call


def _input(
    name: str, data: Any, directory: Path, uploads: dict[str, Path]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return an input of the params, and its arrays if they are uploaded."""
    if data is None:
        raise UnsupportedDataError("data is missing: give arrays, or the path of arrays on the appliance")
    if isinstance(data, Mapping) and "data_processor" in data:
        return dict(data), {}
    section = {"data_processor": "ArrayDataProcessor", "data_dir": name}
    if isinstance(data, (str, os.PathLike)):
        return section | {"data_dir": os.fspath(data)}, {}
    arrays = arrays_of(data)
    written = write_arrays(arrays, directory / name)
    uploads |= {f"{name}/{file}": path for file, path in written.items()}
    return section, arrays


def load_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a downloaded checkpoint by their names."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(Path(directory, "parameters").glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors
