"""A submission as it travels: params byte for byte, what stands beside them, and small texts they name.

    params  the user's file as it is. It is never parsed and rewritten: YAML readers disagree about `1e-8`.
            A dict is sent as JSON, which is YAML too, with every float as the shortest decimal that reads
            back to it, and what PyYAML has taken for a text, as `1e-8`, as the number that it is.
    job     name, labels and the rest of the TrainJob's spec; overrides of params by flags
    file    local texts that params name, each under the name that params have for it

What is sent is a function of what is submitted: a retry sends the same bytes.
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
# Readers of forms disagree about these in a file's name.
_UNSENDABLE = re.compile(r'[\x00-\x1f"\\]')
# Numbers of YAML 1.2 that PyYAML may leave as texts: an exponent without a dot or a sign.
_EXPONENT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+", re.ASCII)
_PATH_KEYS = ("data_dir", "data_files")
_OVERRIDES = frozenset(
    {
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
    """A body and its type, ready to be sent as often as needed."""

    content: bytes = field(repr=False)
    content_type: str
    files: tuple[str, ...]
    """The names of the texts that travel along."""


class SubmitOptions(TypedDict, total=False):
    """What may be said beside params; None, as leaving it out, leaves it to params or to the appliance."""

    num_csx: int | None
    name: str | None
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
"""Deprecated name of `SubmitOptions`, kept for one release."""


def build(params: Params, options: SubmitOptions, verb: Verb) -> Submission:
    """What is sent for these params."""
    if unknown := sorted(options.keys() - SubmitOptions.__annotations__.keys()):
        raise ConfigError(f"There is no option {unknown[0]}: Appliance.train has all that there are.")
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
    """What the verb says, where params don't agree: `train` trains, also with the params of an evaluation."""
    if verb != "train":
        return "eval" if verb == "eval" else None
    runconfig = document.get("runconfig") if isinstance(document, Mapping) else None
    said = runconfig.get("mode") if isinstance(runconfig, Mapping) else None
    return "train" if said in ("eval", "eval_all") else None


def _job(options: SubmitOptions, mode: str | None) -> dict[str, Any]:
    """The part `job`: empty where params say everything."""
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
    """The bytes, a file name, what a Python reader makes of them, and where relative names may be found."""
    if isinstance(params, Mapping):
        return _to_json(params, indent=2, numbers=True), "params.json", params, [Path()]
    path = Path(params)
    content = path.read_bytes()
    return content, path.name, _parse(content, path), [path.parent, Path()]


def _parse(content: bytes, path: Path) -> Any:
    """What a Python reader makes of params; None of what it can't read."""
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if b"\t" in content:
            # The appliance's reader takes tabs between words, Python's does not.
            return _parse(content.replace(b"\t", b" "), path)
        # The appliance's own reader has the better message, with line and hint, or reads it all the same.
        log.warning(
            "%s can't be read here (%s): texts that it names stay on this machine", path, _first_line(error)
        )
        return None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _parse_float_strings(value: Any) -> Any:
    """Params of a dict as the appliance would have read them from their file."""
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
        if hasattr(value, "tolist"):  # numpy's and PyTorch's numbers and arrays
            return value.tolist()
        raise TypeError(f"a {type(value).__name__} in params has no form in YAML")

    try:
        if numbers:
            value = _parse_float_strings(value)
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=other).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadParams(
            f"The params can't be written down: {error}.", status=0, reason="BadParams"
        ) from error


def _uploads(document: Any, places: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each small local text that params name."""
    seen: set[str] = set()
    for named in _named_paths(document):
        for name, text in _entry(named, places):
            if name not in seen:
                seen.add(name)
                yield name, text


def _named_paths(document: Any) -> Iterator[str]:
    for section in ("train_input", "eval_input"):
        fields = document.get(section) if isinstance(document, Mapping) else None
        for key in _PATH_KEYS:
            value = fields.get(key) if isinstance(fields, Mapping) else None
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(each, (str, os.PathLike)):
                    yield os.fspath(each)


def _entry(named: str, places: Sequence[Path]) -> list[tuple[str, bytes]]:
    """The texts of one file or glob: all or none, for half of the data would train something else."""
    if not named or Path(named).is_absolute():
        return []
    for place in places:
        if (place / named).is_dir():
            _warn_not_uploaded(named, "it is a directory; single texts and globs as texts/*.txt travel along")
            return []
        names = (
            [named] if (place / named).is_file() else sorted(glob.glob(named, root_dir=place, recursive=True))
        )
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
    log.warning(
        "%s stays on this machine (%s): the appliance looks for %s among its own files", name, why, sought
    )


def _read_upload(place: Path, name: str) -> tuple[bytes | None, str]:
    """The file's content, or why it does not travel."""
    if _UNSENDABLE.search(name):
        return None, "a name with \", \\ or control characters can't be sent: rename it"
    path = place / name
    try:
        size = path.stat().st_size
        if size >= MAX_UPLOAD_BYTES:
            return None, f"{size / MAX_UPLOAD_BYTES:.1f} MiB; only texts under 1 MiB travel along"
        content = path.read_bytes()
        content.decode("utf-8")
        name.encode("utf-8")
    except UnicodeError:
        return None, "it is no UTF-8 text"
    except OSError as error:
        return None, f"it can't be read: {error.strerror}"
    return content, ""


def _mounts(mount_dirs: Mapping[str, str]) -> dict[str, Any]:
    """Volumes and where they are seen: `{"corpus": "/data"}`, or a part of one, `{"corpus/en": "/data"}`."""
    volumes: dict[str, dict[str, Any]] = {}
    mounts = []
    for source, path in mount_dirs.items():
        claim, _, sub_path = source.partition("/")
        # A volume's name has no dots, a claim's may have.
        volume = claim.replace(".", "-")
        volumes[volume] = {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
        mounts.append(_without_none({"path": path, "volume": volume, "subPath": sub_path.strip("/") or None}))
    return {"volumes": list(volumes.values()), "mountDirs": mounts} if mounts else {}


def mount_dirs_from(given: Iterable[str]) -> dict[str, str]:
    """`NAME=PATH` as a map, as the command has it."""
    return _pairs(given, "NAME=PATH, as corpus=/data (millrace get volumes lists the names)")


def labels_from(given: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` as a map, as the command has it."""
    return _pairs(given, "KEY=VALUE, as team=nlp")


def _pairs(given: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise ConfigError(f"{each} is not of the form {form}.")
        if pairs.setdefault(key, value) != value:
            raise ConfigError(f"{key} is given twice, as {pairs[key]} and as {value}.")
    return pairs


def _multipart(parts: list[tuple[str, tuple[str | None, bytes, str]]], files: tuple[str, ...]) -> Submission:
    digest = hashlib.sha256()
    for name, (filename, content, kind) in parts:
        head = f"{name}\0{filename}\0{kind}\0{len(content)}\0"
        digest.update(head.encode() + content)
    # Drawn from the content, so that no part can have it in it and a repetition has the same.
    content_type = f"multipart/form-data; boundary=millrace-{digest.hexdigest()[:40]}"
    request = httpx.Request("POST", "http://-/", headers={"Content-Type": content_type}, files=parts)
    return Submission(content=request.read(), content_type=content_type, files=files)


Value = TypeVar("Value")


def _without_none(fields: Mapping[str, Value | None]) -> dict[str, Value]:
    """Without what was not given."""
    return {key: value for key, value in fields.items() if value is not None and value != {}}
