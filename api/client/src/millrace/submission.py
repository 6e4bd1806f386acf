"""Builds the multipart body of a submission: params, options, and the local files that params name.

    params  the user's file, unchanged: it is not rewritten, because YAML readers disagree about `1e-8`. A
            dict is sent as JSON, a subset of YAML, with every float as the shortest decimal that reads back
            to it. A string such as `1e-8`, which PyYAML does not recognize as a number, is sent as a number.
    job     name, labels and other fields of the TrainJob's spec; overrides of params; names and digests of
            uploads
    file    small local text files, each under the name that params have for it, and the params file of
            `model.pretrain_params_path`

All other local files are uploaded as blobs before the body is sent. The body is a function of the arguments
and of the files: a retry sends the same bytes.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import httpx
import yaml

from millrace.errors import BadParams, ConfigError, UnreadableFile
from millrace.uploads import Blob

log = logging.getLogger("millrace")

Verb = Literal["train", "eval", "plan"]


@dataclass(frozen=True)
class ParamsWithFiles:
    """Params, with the contents of files that they name."""

    params: Mapping[str, Any]
    uploads: Mapping[str, Blob]
    """The contents, by the names that the params have."""
    annotations: Mapping[str, str]
    """Annotations of the job."""
    module: Any
    """The PyTorch module, the Keras model or the function of TensorFlow that is trained."""
    directory: Any = field(repr=False)
    """The temporary directory of the contents, which exists as long as this object."""
    summary: Sequence[str] = ()
    """What was packed for the job, for the user."""


Params = str | os.PathLike[str] | Mapping[str, Any] | ParamsWithFiles

MAX_INLINE_BYTES = 1024 * 1024
"""Limit on the text files in the body, all together."""
MAX_UPLOADS = 1024
"""Limit on the files that are uploaded as blobs."""
# Parsers of multipart forms disagree about these characters in a file name.
_UNSENDABLE = re.compile(r'[\x00-\x1f"\\]')
# Numbers of YAML 1.2 that PyYAML reads as strings: an exponent without a decimal point or a sign.
_EXPONENT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+", re.ASCII)
# Keys of inputs with files, directories or globs, and those with one file, some of which models have too.
_PATH_KEYS = ("data_dir", "data_files", "data_file", "src_data_dir", "tgt_data_dir")
_MODEL_FILE_KEYS = ("vocab_file", "label_vocab_file")
_PRETRAINING_KEY = "pretrain_params_path"
_FILE_KEYS = ("tokenizer_file", "src_vocab_file", "tgt_vocab_file", *_MODEL_FILE_KEYS)
_OVERRIDES = frozenset(
    {
        "model",
        "max_steps",
        "eval_steps",
        "checkpoint_path",
        "load_checkpoint_states",
        "disable_strict_checkpoint_loading",
        "num_wgt_servers",
        "num_act_servers",
        "logging",
    }
)


@dataclass(frozen=True)
class Submission:
    """A request body and its content type. It can be sent any number of times."""

    content: bytes = field(repr=False)
    content_type: str
    files: tuple[str, ...]
    """Names of the files in the body."""
    blobs: Mapping[str, Blob]
    """What has to be uploaded before, by the names that params have."""
    graph: Blob | None
    """The graph document among them, which a plan needs."""


class SubmitOptions(TypedDict, total=False):
    """Options of a submission. A missing option, or None, is left to params or to the appliance's default."""

    num_csx: int | None
    min_csx: int | None
    name: str | None
    model: str | None
    mode: str | None
    max_steps: int | None
    eval_steps: int | None
    checkpoint_path: str | None
    load_checkpoint_states: str | None
    disable_strict_checkpoint_loading: bool | None
    num_wgt_servers: int | None
    num_act_servers: int | None
    logging: str | None
    priority: str | None
    job_time_sec: int | None
    labels: Mapping[str, str] | None
    mount_dirs: Mapping[str, str] | None
    suspend: bool | None
    spec: Mapping[str, Any] | None
    annotations: Mapping[str, str] | None


class ModuleOptions(TypedDict, total=False):
    """What the training of a module or a model needs, besides the options of every job."""

    loss: Any
    call: Any
    data: Any
    eval_data: Any
    example: Any
    num_workers: int
    optimizer: Any
    scheduler: Any
    batch_size: int
    shuffle: bool
    mixed_precision: bool
    runconfig: Mapping[str, Any]


class PlanOptions(SubmitOptions, ModuleOptions, total=False):
    """Options of a plan."""


RunOptions = SubmitOptions
"""Deprecated alias of `SubmitOptions`, to be removed in the next release."""


def unknown_option_error(name: str, known: Collection[str]) -> ConfigError:
    """Returns the error for an option that does not exist, with the one that is probably meant."""
    similar = difflib.get_close_matches(name, known, n=1)
    advice = (
        f"did you mean {similar[0]}?"
        if similar
        else "Appliance.train lists all options, and runconfig={...} takes further keys of the params"
    )
    return ConfigError(f"unknown option {name}: {advice}")


def build(
    params: Params,
    options: SubmitOptions,
    verb: Verb,
    *,
    has_blobs: bool = True,
) -> Submission:
    """Builds the body for these params and options.

    Without `has_blobs`, the appliance stores no uploads, and only small text files are sent.

    Raises ConfigError for an unknown option, BadParams if a dict can't be serialized, and OSError if the
    params file can't be read.
    """
    if unknown := sorted(options.keys() - SubmitOptions.__annotations__.keys()):
        raise unknown_option_error(unknown[0], SubmitOptions.__annotations__)
    named_blobs: Mapping[str, Blob] = {}
    if isinstance(params, ParamsWithFiles):
        options = {**options, "annotations": {**params.annotations, **(options.get("annotations") or {})}}
        named_blobs = params.uploads
        params = params.params
    content, filename, document, directories = _read(params)
    texts = _pretraining_params(document, directories)
    document = _with_inherited_model(document, texts)
    texts, blobs = _local_files(document, directories, has_blobs, texts)
    blobs.update(named_blobs)
    parts: list[tuple[str, tuple[str | None, bytes, str]]] = [
        ("params", (filename, content, "application/yaml"))
    ]
    job = _job(options, options.get("mode") or _mode(verb, document))
    if blobs:
        job["uploads"] = [{"path": name, "digest": blob.digest} for name, blob in sorted(blobs.items())]
    if job:
        parts.append(("job", (None, _to_json(job, indent=None), "application/json")))
    parts += [("file", (name, text, "text/plain; charset=utf-8")) for name, text in texts.items()]
    content, content_type = _multipart(parts)
    graph = next((blob for name, blob in blobs.items() if _is_graph(name, document)), None)
    return Submission(content, content_type, tuple(texts), blobs, graph)


def _mode(verb: Verb, document: Any) -> str | None:
    """Returns the mode to send. `train` trains even if the params select an evaluation."""
    if verb != "train":
        return "eval" if verb == "eval" else None
    runconfig = document.get("runconfig") if isinstance(document, Mapping) else None
    mode = runconfig.get("mode") if isinstance(runconfig, Mapping) else None
    return "train" if mode in ("eval", "eval_all") else None


def _job(options: SubmitOptions, mode: str | None) -> dict[str, Any]:
    """Builds the part `job`, which is empty if no option is set."""
    deadline = options.get("job_time_sec")
    spec = {
        "numCsx": options.get("num_csx"),
        "minCsx": options.get("min_csx"),
        "mode": mode,
        "suspend": options.get("suspend"),
        "priorityClassName": options.get("priority"),
        "deadlines": None if deadline is None else {"activeSeconds": deadline},
        "labels": dict(options.get("labels") or {}),
        **_mounts(options.get("mount_dirs") or {}),
        **(options.get("spec") or {}),
    }
    overrides = {key: value for key, value in options.items() if key in _OVERRIDES}
    metadata = {"name": options.get("name"), "annotations": dict(options.get("annotations") or {})}
    return _without_none(
        {
            "metadata": _without_none(metadata),
            "spec": _without_none(spec),
            "overrides": _without_none(overrides),
        }
    )


def _read(params: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[bytes, str, Any, list[Path]]:
    """Returns the params as bytes, a file name, the parsed document, and the roots of relative paths."""
    if isinstance(params, Mapping):
        return _to_json(params, indent=2, numbers=True), "params.json", params, [Path()]
    path = Path(params)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableFile(error.errno, error.strerror, str(path)) from error
    return content, path.name, parse(content, path), [path.parent, Path()]


def parse(content: bytes, path: Path) -> Any:
    """Parses params with PyYAML; returns None if it can't read them."""
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if b"\t" in content:
            # The appliance accepts tabs as separators, PyYAML does not.
            return parse(content.replace(b"\t", b" "), path)
        # The appliance reports syntax errors with line and hint, and may accept what PyYAML rejects.
        log.warning("can't parse %s (%s): files that it names are not uploaded", path, _first_line(error))
        return None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _parse_float_strings(value: Any) -> Any:
    """Returns the params of a dict as the appliance would have read them from the file."""
    if isinstance(value, Mapping):
        return {key: _parse_float_strings(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_parse_float_strings(each) for each in value]
    if isinstance(value, str) and _EXPONENT.fullmatch(value) and math.isfinite(float(value)):
        return float(value)
    return value


def _to_json(value: object, indent: int | None, *, numbers: bool = False) -> bytes:
    def other(value: Any) -> Any:
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, Mapping):
            return dict(value)
        if hasattr(value, "tolist"):  # numbers and arrays of NumPy and PyTorch
            return value.tolist()
        raise TypeError(f"a value of type {type(value).__name__} can't be written as YAML")

    try:
        if numbers:
            value = _parse_float_strings(value)
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=other).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadParams(f"can't serialize the params: {error}", status=0, reason="BadParams") from error


def _pretraining_params(document: Any, directories: Sequence[Path]) -> dict[str, bytes]:
    """Returns the params file that `model.pretrain_params_path` names, if it is on this machine.

    It is searched where `millrace-agent` does: beside the params, in the directory above them, and in the
    working directory. Raises BadParams if it is too long or no UTF-8 text, and OSError if it can't be read.
    """
    model = document.get("model") if isinstance(document, Mapping) else None
    name = model.get(_PRETRAINING_KEY) if isinstance(model, Mapping) else None
    if not isinstance(name, (str, os.PathLike)) or not os.fspath(name):
        return {}
    name = os.fspath(name)
    beside, *others = directories
    found = [each / name for each in (beside, beside / "..", *others) if (each / name).is_file()]
    if not found:
        return {}
    with found[0].open("rb") as file:
        content = file.read(MAX_INLINE_BYTES)
    reason = None
    if len(content) + len(name.encode(errors="replace")) >= MAX_INLINE_BYTES:
        reason = "which with its name has 1 MiB or more"
    elif _UNSENDABLE.search(name) or not _is_utf8(content) or not _is_utf8(name):
        reason = "which is no UTF-8 text, or has a name with quotes, backslashes or control characters"
    if reason is not None:
        message = f"model.{_PRETRAINING_KEY} names {name}, {reason}: name the params file of a model"
        raise BadParams(message, status=0, reason="BadParams")
    return {name: content}


def _with_inherited_model(document: Any, texts: Mapping[str, bytes]) -> Any:
    """Returns params whose model has the keys of the params file among the texts that it lacks."""
    for name, content in texts.items():
        other = parse(content, Path(name))
        inherited = other.get("model") if isinstance(other, Mapping) else None
        if isinstance(inherited, Mapping):
            return {**document, "model": {**inherited, **document["model"]}}
    return document


def _local_files(
    document: Any, directories: Sequence[Path], has_blobs: bool, texts: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[str, Blob]]:
    """Returns the small texts, besides those given, and the other files that params name and that are on this
    machine.

    Each name is either all in the body or all uploaded, because a part of the data would change the training.
    """
    texts = dict(texts)
    blobs: dict[str, Blob] = {}
    for params_path, is_pattern in _named_paths(document):
        found = {
            name: path for name, path in _found(params_path, directories, is_pattern) if name not in texts
        }
        small = _small_texts(found, MAX_INLINE_BYTES - sum(map(len, texts.values())))
        if small is not None and not _is_graph(params_path, document):
            texts.update(small)
        elif not has_blobs:
            _warn_not_uploaded(params_path, "the appliance stores only text files under 1 MiB")
        elif len(found) + len(blobs) > MAX_UPLOADS:
            _warn_not_uploaded(params_path, f"{len(found)} files; at most {MAX_UPLOADS} are uploaded")
        elif all(path.stat().st_size for path in found.values()):
            blobs.update((name, Blob.of_file(path)) for name, path in found.items())
        else:
            _warn_not_uploaded(params_path, "an empty file")
    return texts, blobs


def _is_graph(named: str, document: Any) -> bool:
    """Returns whether params name the file as the graph of the model."""
    return any(isinstance(model, Mapping) and model.get("graph") == named for model in _models(document))


def _small_texts(found: Mapping[str, Path], limit: int) -> dict[str, bytes] | None:
    """Returns the contents of these files if all of them are text and together smaller than the limit."""
    texts = {}
    for name, path in found.items():
        limit -= path.stat().st_size + len(name.encode(errors="replace"))
        if limit <= 0 or _UNSENDABLE.search(name):
            return None
        content = path.read_bytes()
        if not _is_utf8(content) or not _is_utf8(name):
            return None
        texts[name] = content
    return texts


def _is_utf8(value: bytes | str) -> bool:
    try:
        value.decode("utf-8") if isinstance(value, bytes) else value.encode("utf-8")
    except UnicodeError:
        return False
    return True


def _inputs(document: Any) -> Iterator[Any]:
    """Yields the inputs of params in the classic or in the `trainer` layout."""
    if not isinstance(document, Mapping):
        return
    yield document.get("train_input")
    yield document.get("eval_input")
    for inner in _trainers(document):
        for section, key in (
            ("fit", "train_dataloader"),
            ("fit", "val_dataloader"),
            ("validate", "val_dataloader"),
        ):
            fields = inner.get(section)
            yield fields.get(key) if isinstance(fields, Mapping) else None


def _trainers(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields each phase of the `trainer` layout."""
    phases = document.get("trainer")
    for phase in phases if isinstance(phases, (list, tuple)) else [phases]:
        inner = phase.get("trainer", phase) if isinstance(phase, Mapping) else None
        if isinstance(inner, Mapping):
            yield inner


def _models(document: Any) -> Iterator[Any]:
    """Yields the models of params in the classic or in the `trainer` layout."""
    if not isinstance(document, Mapping):
        return
    yield document.get("model")
    for inner in _trainers(document):
        init = inner.get("init")
        yield init.get("model") if isinstance(init, Mapping) else None


def _weights(document: Any) -> str | None:
    """Returns the safetensors file from which params start; a checkpoint is on the appliance."""
    runconfig = document.get("runconfig") if isinstance(document, Mapping) else None
    path = runconfig.get("checkpoint_path") if isinstance(runconfig, Mapping) else None
    return path if isinstance(path, str) and path.endswith(".safetensors") else None


def _named_paths(document: Any) -> Iterator[tuple[str, bool]]:
    """Yields each path that params name, and whether it may be a glob."""
    sections: list[tuple[Any, Sequence[str]]] = [
        *((fields, (*_PATH_KEYS, *_FILE_KEYS)) for fields in _inputs(document)),
        *((fields, ("graph", *_MODEL_FILE_KEYS)) for fields in _models(document)),
    ]
    if weights := _weights(document):
        yield weights, False
    for fields, keys in sections:
        for key in keys:
            value = fields.get(key) if isinstance(fields, Mapping) else None
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(each, (str, os.PathLike)):
                    yield os.fspath(each), key in _PATH_KEYS


def _found(path: str, directories: Sequence[Path], is_pattern: bool) -> Iterator[tuple[str, Path]]:
    """Yields name and path of the local files of one file name, directory or glob."""
    if not path or Path(path).is_absolute():
        return
    for directory in directories:
        if (directory / path).is_file():
            names = [path]
        elif (directory / path).is_dir():
            names = _files_below(directory, path) if is_pattern else []
        else:
            names = sorted(glob.glob(path, root_dir=directory, recursive=True)) if is_pattern else []
        names = [name for name in names if (directory / name).is_file()]
        if names:
            yield from ((name, directory / name) for name in names)
            return


def _files_below(directory: Path, path: str) -> list[str]:
    """Returns the files of a directory and those below it, without hidden ones."""
    if Path(path) == Path():
        _warn_not_uploaded(path, "the whole working directory")
        return []
    base = path.rstrip("/")
    names: list[str] = []
    for folder, below, files in os.walk(directory / path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        inside = Path(folder).relative_to(directory / path).as_posix()
        prefix = base if inside == "." else f"{base}/{inside}"
        names += [f"{prefix}/{name}" for name in sorted(files) if not name.startswith(".")]
        if len(names) > MAX_UPLOADS:
            _warn_not_uploaded(path, f"a directory of more than {MAX_UPLOADS} files")
            return []
    return names


def _warn_not_uploaded(name: str, reason: str) -> None:
    log.warning("%s is not uploaded (%s): the appliance looks for it among its own files", name, reason)


def _mounts(mount_dirs: Mapping[str, str]) -> dict[str, Any]:
    """Returns volumes and mounts for `{"corpus": "/data"}`, or, for a directory of a volume, `{"corpus/en":
    "/data"}`.
    """
    volumes: dict[str, dict[str, Any]] = {}
    mounts = []
    for source, path in mount_dirs.items():
        claim, _, sub_path = source.partition("/")
        # The name of a claim may contain dots, that of a volume may not.
        volume = claim.replace(".", "-")
        volumes[volume] = {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
        mounts.append(_without_none({"path": path, "volume": volume, "subPath": sub_path.strip("/") or None}))
    return {"volumes": list(volumes.values()), "mountDirs": mounts} if mounts else {}


def mount_dirs_from(arguments: Iterable[str]) -> dict[str, str]:
    """Parses `NAME=PATH` arguments of the command line."""
    return _pairs(arguments, "NAME=PATH, such as corpus=/data (list the names with `millrace get volumes`)")


def labels_from(arguments: Iterable[str]) -> dict[str, str]:
    """Parses `KEY=VALUE` arguments of the command line."""
    return _pairs(arguments, "KEY=VALUE, such as team=nlp")


def _pairs(arguments: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not key or not equals:
            raise ConfigError(f"{argument} does not have the form {form}")
        if pairs.setdefault(key, value) != value:
            raise ConfigError(f"{key} is given twice, with the values {pairs[key]} and {value}")
    return pairs


def _multipart(parts: list[tuple[str, tuple[str | None, bytes, str]]]) -> tuple[bytes, str]:
    """Returns the body of these parts, and its content type."""
    digest = hashlib.sha256()
    for name, (filename, content, kind) in parts:
        head = f"{name}\0{filename}\0{kind}\0{len(content)}\0"
        digest.update(head.encode() + content)
    # Derived from the content: no part can contain it, and a retry uses the same one.
    content_type = f"multipart/form-data; boundary=millrace-{digest.hexdigest()[:40]}"
    request = httpx.Request("POST", "http://-/", headers={"Content-Type": content_type}, files=parts)
    return request.read(), content_type


Value = TypeVar("Value")


def _without_none(fields: Mapping[str, Value | None]) -> dict[str, Value]:
    """Returns the fields that have a value."""
    return {key: value for key, value in fields.items() if value is not None and value != {}}
