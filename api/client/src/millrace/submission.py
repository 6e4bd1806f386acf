"""Builds the multipart body of a submission: params, options, and small text files that params name.

    params  the user's file, unchanged: it is not rewritten, because YAML readers disagree about `1e-8`. A
            dict is sent as JSON, a subset of YAML, with every float as the shortest decimal that reads back
            to it. A string such as `1e-8`, which PyYAML does not recognize as a number, is sent as a number.
    job     name, labels and other fields of the TrainJob's spec; overrides of params
    file    local text files, each under the name that params have for it

The body is a function of the arguments: a retry sends the same bytes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import httpx
import yaml

from millrace.errors import BadParams, ConfigError

log = logging.getLogger("millrace")

Verb = Literal["train", "eval", "plan"]
Params = str | os.PathLike[str] | Mapping[str, Any]

MAX_UPLOAD_BYTES = 1024 * 1024
# Parsers of multipart forms disagree about these characters in a file name.
_UNSENDABLE = re.compile(r'[\x00-\x1f"\\]')
# Numbers of YAML 1.2 that PyYAML reads as strings: an exponent without a decimal point or a sign.
_EXPONENT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+", re.ASCII)
# Keys of inputs with files, directories or globs, and those with one file, some of which models have too.
_PATH_KEYS = ("data_dir", "data_files", "src_data_dir", "tgt_data_dir")
_MODEL_FILE_KEYS = ("vocab_file", "label_vocab_file")
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
    """Names of the uploaded files."""


class SubmitOptions(TypedDict, total=False):
    """Options of a submission. A missing option, or None, is left to params or to the appliance's default."""

    num_csx: int | None
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


RunOptions = SubmitOptions
"""Deprecated alias of `SubmitOptions`, to be removed in the next release."""


def build(params: Params, options: SubmitOptions, verb: Verb) -> Submission:
    """Builds the body for these params and options.

    Raises ConfigError for an unknown option, BadParams if a dict can't be serialized, and OSError if the
    params file can't be read.
    """
    if unknown := sorted(options.keys() - SubmitOptions.__annotations__.keys()):
        raise ConfigError(f"unknown option {unknown[0]}: see Appliance.train for all options")
    content, filename, document, places = _read(params)
    texts = list(_uploads(document, places))
    parts: list[tuple[str, tuple[str | None, bytes, str]]] = [
        ("params", (filename, content, "application/yaml"))
    ]
    if job := _job(options, options.get("mode") or _mode(verb, document)):
        parts.append(("job", (None, _to_json(job, indent=None), "application/json")))
    parts += [("file", (name, text, "text/plain; charset=utf-8")) for name, text in texts]
    return _multipart(parts, tuple(name for name, _ in texts))


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
        "mode": mode,
        "suspend": options.get("suspend"),
        "priorityClassName": options.get("priority"),
        "deadlines": None if deadline is None else {"activeSeconds": deadline},
        "labels": dict(options.get("labels") or {}),
        **_mounts(options.get("mount_dirs") or {}),
        **(options.get("spec") or {}),
    }
    overrides = {key: value for key, value in options.items() if key in _OVERRIDES}
    metadata = {"name": options.get("name")}
    return _without_none(
        {
            "metadata": _without_none(metadata),
            "spec": _without_none(spec),
            "overrides": _without_none(overrides),
        }
    )


def _read(params: Params) -> tuple[bytes, str, Any, list[Path]]:
    """Returns the params as bytes, a file name, the parsed document, and the roots of relative paths."""
    if isinstance(params, Mapping):
        return _to_json(params, indent=2, numbers=True), "params.json", params, [Path()]
    path = Path(params)
    content = path.read_bytes()
    return content, path.name, _parse(content, path), [path.parent, Path()]


def _parse(content: bytes, path: Path) -> Any:
    """Parses params with PyYAML; returns None if it can't read them."""
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if b"\t" in content:
            # The appliance accepts tabs as separators, PyYAML does not.
            return _parse(content.replace(b"\t", b" "), path)
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


def _uploads(document: Any, places: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of each small local text file that params name."""
    seen: set[str] = set()
    for named, is_pattern in _named_paths(document):
        for name, text in _entry(named, places, is_pattern):
            if name not in seen:
                seen.add(name)
                yield name, text


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


def _named_paths(document: Any) -> Iterator[tuple[str, bool]]:
    """Yields each path that params name, and whether it may be a glob."""
    sections: list[tuple[Any, Sequence[str]]] = [
        *((fields, (*_PATH_KEYS, *_FILE_KEYS)) for fields in _inputs(document)),
        *((fields, _MODEL_FILE_KEYS) for fields in _models(document)),
    ]
    for fields, keys in sections:
        for key in keys:
            value = fields.get(key) if isinstance(fields, Mapping) else None
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(each, (str, os.PathLike)):
                    yield os.fspath(each), key in _PATH_KEYS


def _entry(named: str, places: Sequence[Path], is_pattern: bool) -> list[tuple[str, bytes]]:
    """Returns the text files of one file name or glob: all or none, because a part of the data would change
    the training.
    """
    if not named or Path(named).is_absolute():
        return []
    for place in places:
        if (place / named).is_dir():
            _warn_not_uploaded(
                named, "a directory; only text files and globs such as texts/*.txt are uploaded"
            )
            return []
        if (place / named).is_file():
            names = [named]
        else:
            names = sorted(glob.glob(named, root_dir=place, recursive=True)) if is_pattern else []
        names = [name for name in names if (place / name).is_file()]
        if not names:
            continue
        texts = []
        for name in names:
            text, trouble = _read_upload(place, name)
            if text is None:
                _warn_not_uploaded(name, trouble, "it" if name == named else named)
                return []
            texts.append((name, text))
        return texts
    return []


def _warn_not_uploaded(name: str, why: str, sought: str = "it") -> None:
    log.warning("%s is not uploaded (%s): the appliance looks for %s among its own files", name, why, sought)


def _read_upload(place: Path, name: str) -> tuple[bytes | None, str]:
    """Returns the file's content, or None and the reason why it is not uploaded."""
    if _UNSENDABLE.search(name):
        return None, "a name with \", \\ or control characters can't be uploaded: rename it"
    path = place / name
    try:
        size = path.stat().st_size
        if size >= MAX_UPLOAD_BYTES:
            return None, f"{size / MAX_UPLOAD_BYTES:.1f} MiB; only text files under 1 MiB are uploaded"
        content = path.read_bytes()
        content.decode("utf-8")
        name.encode("utf-8")
    except UnicodeError:
        return None, "not UTF-8 text"
    except OSError as error:
        return None, f"can't be read: {error.strerror}"
    return content, ""


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


def mount_dirs_from(given: Iterable[str]) -> dict[str, str]:
    """Parses `NAME=PATH` arguments of the command line."""
    return _pairs(given, "NAME=PATH, such as corpus=/data (list the names with `millrace get volumes`)")


def labels_from(given: Iterable[str]) -> dict[str, str]:
    """Parses `KEY=VALUE` arguments of the command line."""
    return _pairs(given, "KEY=VALUE, such as team=nlp")


def _pairs(given: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise ConfigError(f"{each} does not have the form {form}")
        if pairs.setdefault(key, value) != value:
            raise ConfigError(f"{key} is given twice, with the values {pairs[key]} and {value}")
    return pairs


def _multipart(parts: list[tuple[str, tuple[str | None, bytes, str]]], files: tuple[str, ...]) -> Submission:
    digest = hashlib.sha256()
    for name, (filename, content, kind) in parts:
        head = f"{name}\0{filename}\0{kind}\0{len(content)}\0"
        digest.update(head.encode() + content)
    # Derived from the content: no part can contain it, and a retry uses the same one.
    content_type = f"multipart/form-data; boundary=millrace-{digest.hexdigest()[:40]}"
    request = httpx.Request("POST", "http://-/", headers={"Content-Type": content_type}, files=parts)
    return Submission(content=request.read(), content_type=content_type, files=files)


Value = TypeVar("Value")


def _without_none(fields: Mapping[str, Value | None]) -> dict[str, Value]:
    """Returns the fields that have a value."""
    return {key: value for key, value in fields.items() if value is not None and value != {}}
