"""Writes the package of a dataset.

manifest.json     what the samples consist of, how the dataset is created
code.zip          the user's own modules, and cloudpickle
dataset.pickle    the dataset, unless a function creates it
"""

from __future__ import annotations

import importlib
import itertools
import json
import pickle
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from millrace import units
from millrace.errors import MillraceError
from millrace.loader.sources import Sources, modules_of_pickle

_NUMBERED_VERSION, _STREAM_VERSION = 1, 2
"""Versions of the manifest: of datasets whose samples have numbers, and of those only iterated over."""

_STREAM_WARNING = (
    "warning: the dataset is only iterated over. Each activation server reads all of it, with one worker; "
    "the appliance does not shuffle it; and after a restart, it is read again from its beginning, up to the "
    "step. The samples must be the same each time"
)


class UnsupportedDatasetError(MillraceError):
    """The appliance can't read the dataset: what is wrong with it, and what to do instead."""


@dataclass
class PythonDataset:
    """A dataset, and how it is read.

    `source` is an object with `__len__` and `__getitem__`, or one that is only iterated over, or the name
    MODULE:NAME of a function or class that creates one on the appliance, with `keywords`.
    """

    source: Any
    keywords: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] = ()
    """Names of the parts of samples that are tuples; by default `input_0`, ..., `labels`."""
    include: Sequence[str | Path] = ()
    """Files and directories below the working directory to pack."""
    workers: int | None = None
    """Worker processes of each activation server; by default 2."""
    timeout_seconds: int | None = None
    """Time to read one sample, after which its worker is replaced; by default 300."""
    samples: int | None = None
    """Number of samples; needed with `example` if the dataset can be created on the appliance only."""
    example: Mapping[str, Any] | None = None
    """A batch of two samples by name."""


@dataclass
class Package:
    """A package that was written."""

    files: dict[str, Path]
    """Its files by their names."""
    example: dict[str, np.ndarray[Any, Any]]
    """A batch of two samples."""
    summary: list[str] = field(default_factory=list)
    """What is packed and why, and what is not, for the user."""
    is_stream: bool = False
    """Whether the dataset is only iterated over."""


def is_dataset(data: Any) -> bool:
    """Returns whether data are a dataset: samples that have numbers, or that an iterator returns."""
    return isinstance(data, PythonDataset) or _has_numbers(data) or _is_stream(data)


def _has_numbers(data: Any) -> bool:
    """Returns whether the samples of a dataset have numbers."""
    has_samples = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return has_samples and not _is_value(data) and not _is_iterable_of_torch(data)


def _is_stream(data: Any) -> bool:
    """Returns whether data can only be iterated over, and more than once."""
    is_iterable = hasattr(data, "__iter__") and not hasattr(data, "__next__")
    has_length = hasattr(data, "__len__") and not _is_iterable_of_torch(data)
    # Datasets of TensorFlow can't be pickled.
    return is_iterable and not has_length and not _is_value(data) and not hasattr(data, "element_spec")


def _is_value(data: Any) -> bool:
    # An array is a value, not a dataset of rows; a tuple has inputs and labels.
    return isinstance(data, (str, bytes, tuple, Mapping)) or hasattr(data, "dtype")


def _is_iterable_of_torch(data: Any) -> bool:
    # It has the __getitem__ of its base class, which raises an exception.
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.utils.data.IterableDataset)


def pack(data: Any, directory: Path) -> Package:
    """Writes the package of a dataset into a new directory.

    Raises UnsupportedDatasetError if the appliance can't read the dataset.
    """
    dataset = data if isinstance(data, PythonDataset) else PythonDataset(data)
    directory.mkdir()
    sources = Sources()
    entry, pickled = _entry(dataset, sources)
    samples, example, fields = _describe(dataset, pickled)
    for path in dataset.include:
        try:
            sources.add_path(Path(path))
        except (OSError, ValueError) as error:
            raise UnsupportedDatasetError(
                f"include: {path} is no path below the working directory"
            ) from error
    manifest = {
        "version": _STREAM_VERSION if samples is None else _NUMBERED_VERSION,
        "python": {"version": f"{sys.version_info[0]}.{sys.version_info[1]}", "executable": sys.executable},
        "samples": samples,
        "workers": dataset.workers,
        "timeout_seconds": dataset.timeout_seconds,
        "inputs": [
            {
                "name": name,
                "type": "f32" if array.dtype.kind == "f" else "i32",
                "shape": list(array.shape[1:]),
            }
            for name, array in example.items()
        ],
        "fields": fields,
        "dataset": entry,
        "sources": {name: str(path) for name, path in sources.files.items()} | _script(pickled),
    }
    files = {name: directory / name for name in ("manifest.json", "code.zip")}
    files["manifest.json"].write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    sources.write(files["code.zip"], _cloudpickle() if pickled is not None else None)
    if pickled is not None:
        files["dataset.pickle"] = directory / "dataset.pickle"
        files["dataset.pickle"].write_bytes(pickled)
    summary = _summary(dataset, sources, pickled)
    return Package(files, example, ([_STREAM_WARNING] if samples is None else []) + summary, samples is None)


def _entry(dataset: PythonDataset, sources: Sources) -> tuple[dict[str, Any], bytes | None]:
    """Returns how the dataset is created, and its pickle. Adds its modules to `sources`."""
    if isinstance(dataset.source, str):
        module, _, name = dataset.source.partition(":")
        if not module or not name:
            raise UnsupportedDatasetError(
                f"{dataset.source} does not have the form MODULE:NAME, such as data:Train"
            )
        try:
            json.dumps(dict(dataset.keywords))
        except (TypeError, ValueError) as error:
            raise UnsupportedDatasetError(
                f"keywords of {dataset.source} must be numbers and strings: {error}"
            ) from error
        sources.add_modules([module], f"{dataset.source} creates the dataset")
        return {"function": dataset.source, "keywords": dict(dataset.keywords)}, None
    import cloudpickle

    kind = type(dataset.source)
    try:
        content: bytes = cloudpickle.dumps(dataset.source)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedDatasetError(
            f"the dataset {kind.__name__} can't be pickled: {error}. Create locks and connections when the "
            "first sample is read, or name a function that creates the dataset: PythonDataset('data:train')"
        ) from error
    sources.add_modules([kind.__module__], f"class {kind.__qualname__}")
    sources.add_modules(modules_of_pickle(content), "used by the dataset")
    return {"pickle": "dataset.pickle"}, content


def _describe(
    dataset: PythonDataset, pickled: bytes | None
) -> tuple[int | None, dict[str, np.ndarray[Any, Any]], list[Any]]:
    """Returns the number of samples, a batch of two of them, and how an input is found in a sample.

    The number is None if the dataset is only iterated over.
    """
    if dataset.samples is not None and dataset.example is not None:
        arrays = {name: _array(name, array) for name, array in dataset.example.items()}
        return dataset.samples, arrays, list(arrays)
    source = _created(dataset)
    count = None
    if _is_stream(source):
        # Iterating may change a dataset.
        copies = [source, _created(dataset)] if pickled is None else [pickle.loads(pickled) for _ in range(2)]
        (first, second), (again, _) = (_first_samples(copy) for copy in copies)
    elif not _has_numbers(source):
        raise UnsupportedDatasetError(
            f"data of type {type(source).__name__} have no numbered samples, and can't be iterated over "
            "again: give an object with __len__ and __getitem__, or with __iter__"
        )
    elif (count := len(source)) < 2:
        raise UnsupportedDatasetError(f"the dataset has {count} samples; at least two are needed")
    else:
        first, again, second = _read(source, 0), _read(source, 0), _read(source, 1)
    fields, names = _fields(first, dataset.names)
    example = {}
    for at, name in zip(fields, names, strict=True):
        values = [_array(name, _value(sample, at)) for sample in (first, again, second)]
        if not np.array_equal(values[0], values[1], equal_nan=values[0].dtype.kind == "f"):
            raise UnsupportedDatasetError(
                f"sample 0 has another {name} each time it is read: draw random numbers from random, "
                "numpy.random or torch, whose generators are seeded for each sample"
            )
        if values[0].shape != values[2].shape or values[0].dtype != values[2].dtype:
            found = " and ".join(f"{value.dtype} {value.shape}" for value in (values[0], values[2]))
            raise UnsupportedDatasetError(
                f"samples 0 and 1 have {name} of different shapes: {found}; pad them"
            )
        example[name] = np.stack([values[0], values[2]])
    return count, example, fields


def _created(dataset: PythonDataset) -> Any:
    """Returns the dataset, created here if it has a name."""
    if not isinstance(dataset.source, str):
        return dataset.source
    module, _, name = dataset.source.partition(":")
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        return function(**dataset.keywords)
    except Exception as error:
        raise UnsupportedDatasetError(
            f"{dataset.source} can't be created here: {type(error).__name__}: {error}. If it can be created "
            "on the appliance only, give samples= and example= (a batch of two samples by name)"
        ) from error


def _read(source: Any, index: int) -> Any:
    """Reads a sample as a worker does: with seeded generators."""
    _seed(index)
    return source[index]


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)


def _first_samples(source: Any) -> list[Any]:
    """Returns the first two samples of an iterator, as a worker reads them: with seeded generators."""
    _seed(0)
    samples = list(itertools.islice(source, 2))
    if len(samples) < 2:
        raise UnsupportedDatasetError(
            f"the iterator of the dataset returns {len(samples)} samples; at least two are needed"
        )
    return samples


def _fields(sample: Any, names: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Returns how each input is found in a sample, and its name."""
    if isinstance(sample, Mapping):
        return list(sample), [str(name) for name in sample]
    if isinstance(sample, (tuple, list)):
        count = len(sample)
        names = names or [f"input_{at}" for at in range(count - 1)] + ["labels"]
        if len(names) != count:
            raise UnsupportedDatasetError(
                f"sample 0 has {count} parts, and {len(names)} names are given: {', '.join(names)}"
            )
        return list(range(count)), list(names)
    return [None], [names[0] if names else "input_0"]


def _value(sample: Any, at: Any) -> Any:
    try:
        return sample if at is None else sample[at]
    except (KeyError, IndexError) as error:
        raise UnsupportedDatasetError(f"sample 0 has {at!r}, and sample 1 does not") from error


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Returns a value as an array of a type that the appliance reads.

    Raises UnsupportedDatasetError if it has another type.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype == np.float64 and isinstance(value, (float, list, tuple)):
        array = array.astype(np.float32)
    if array.dtype != np.float32 and (array.dtype.kind not in "biu" or array.dtype == np.uint64):
        raise UnsupportedDatasetError(
            f"{name} of a sample is of type {array.dtype}; give float32, integers or truth values"
        )
    return array


def _script(pickled: bytes | None) -> dict[str, str]:
    """Returns the file of the code that was pickled, by the name that cloudpickle gives its file."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return {"<dynamic-code>": script} if script and pickled is not None else {}


def _cloudpickle() -> dict[str, bytes]:
    """Returns the source of cloudpickle, which a pickled dataset needs."""
    import cloudpickle

    directory = Path(cloudpickle.__file__).parent
    return {f"cloudpickle/{path.name}": path.read_bytes() for path in sorted(directory.glob("*.py"))}


def _summary(dataset: PythonDataset, sources: Sources, pickled: bytes | None) -> list[str]:
    lines = [f"packed {name} ({why})" for name, why in sources.reasons.items()]
    if pickled is not None:
        kind = type(dataset.source).__name__
        lines.insert(0, f"packed the dataset {kind} ({units.size(len(pickled))})")
    return lines + [f"left out {path} ({why})" for path, why in sources.left_out.items()]
