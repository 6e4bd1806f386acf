"""Files from the appliance to this machine: all that were asked for, or none.

They are put together in a directory beside the one they shall have, named after what it is, which gets its
name when every file is there. A file that was cut is asked for from where it ends; so is one of a checkpoint
that an earlier call has left. Other files may grow meanwhile: they are as they were when they were asked for.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal
from urllib.parse import quote

import httpx

from millrace.errors import ApplianceError, DownloadError
from millrace.records import Checkpoint, RemoteFile
from millrace.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millrace.job import Job


def checkpoint(
    job: Job,
    step: int | None,
    to: str | PathLike[str] | None,
    format: Literal["native", "hf"],
    *,
    progress: bool,
) -> Path:
    """See `Job.download`."""
    if format not in ("native", "hf"):
        raise DownloadError(f"There is no format {format!r}: native and hf are known.")
    chosen = _select_checkpoint(job, step)
    suffix = "-hf" if format == "hf" else ""
    target = Path(to if to is not None else f"{job.name}-checkpoint_{chosen.step}{suffix}")
    _refuse_existing(target)
    transport, base, query = (
        job._transport,
        job._path(f"/checkpoints/{chosen.step}"),
        {"uid": job.uid or None},
    )
    files = chosen.files
    # Another job, step or format is another directory: pieces of two are never put together.
    what = f"{job.uid} {chosen.step} {chosen.digest} {format}"
    if format == "hf":
        base, query = f"{base}:export", {**query, "format": "hf"}
        # The appliance writes it before it answers.
        listed = transport.json("GET", base, params=query, seconds=900.0)
        files = tuple(RemoteFile.read(each) for each in listed["files"])

    def fetch(file: RemoteFile, path: Path, advance: Callable[[int], None]) -> None:
        _fetch(transport, f"{base}/{quote(file.path)}", query, path, file.bytes, advance)

    return _download_all(target, what, files, fetch, progress)


def artifacts(job: Job, patterns: Sequence[str], to: str | PathLike[str] | None, *, progress: bool) -> Path:
    """See `Job.download_artifacts`."""
    target = Path(to if to is not None else f"{job.name}-artifacts")
    _refuse_existing(target)
    found = job.artifacts()
    for pattern in patterns:
        if not any(fnmatchcase(file.path, pattern) for file in found):
            there = ", ".join(file.path for file in found[:20]) or "none"
            raise DownloadError(f"{job.name} has no artifact {pattern}; there are: {there}.")
    files = [file for file in found if any(fnmatchcase(file.path, each) for each in patterns or ("*",))]
    transport, base, query = job._transport, job._path("/artifacts"), {"uid": job.uid or None}

    def fetch(file: RemoteFile, path: Path, advance: Callable[[int], None]) -> None:
        _fetch(transport, f"{base}/{quote(file.path)}", query, path, None, advance)

    return _download_all(target, f"{job.uid} artifacts {sorted(patterns)}", files, fetch, progress)


def _download_all(
    target: Path,
    what: str,
    files: Sequence[RemoteFile],
    fetch: Callable[[RemoteFile, Path, Callable[[int], None]], None],
    progress: bool,
) -> Path:
    """The directory `target` with `files`; `what` they are tells its beginnings from others of its name."""
    staging = target.with_name(f"{target.name}.{hashlib.sha256(what.encode()).hexdigest()[:12]}.part")
    staging.mkdir(parents=True, exist_ok=True)
    with _ByteProgress(target.name, sum(file.bytes for file in files), progress) as advance:
        for file in files:
            fetch(file, staging / _safe_path(file), advance)
    with suppress(FileNotFoundError):
        target.rmdir()  # an empty one: rename refuses it on some systems
    staging.rename(target)
    return target


def _select_checkpoint(job: Job, step: int | None) -> Checkpoint:
    found = job.checkpoints()
    if not found:
        raise DownloadError(f"{job.name} has no checkpoint yet ({job.summary}).")
    if step is None:
        return found[-1]
    for each in found:
        # From a notebook's field it may be a text.
        if str(each.step) == str(step):
            return each
    steps = ", ".join(str(each.step) for each in found)
    raise DownloadError(f"{job.name} has no checkpoint of step {step!r}; there are those of {steps}.")


def _refuse_existing(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise DownloadError(f"{target} exists already: name another directory, or move it away.")


def _safe_path(file: RemoteFile) -> PurePosixPath:
    """The file's path, if it stays inside the directory, whatever the appliance says."""
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in file.path or ":" in file.path:
        raise DownloadError(f"The appliance names a file {file.path!r}, which has no place in a directory.")
    return path


def _fetch(
    transport: Transport,
    url: str,
    query: dict[str, Any],
    path: Path,
    size: int | None,
    advance: Callable[[int], None],
) -> None:
    """One file: done already, or in a `.part` until it is whole. Without `size` it has that of its answer."""
    if size is not None and path.is_file() and path.stat().st_size == size:
        advance(size)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    etag: str | None = None
    retrying = transport.retrying()
    with part.open("r+b" if size is not None and part.exists() else "w+b") as out:
        begun = out.seek(0, os.SEEK_END)
        if size is not None and begun > size:
            begun = _empty(out)
        advance(begun)
        promised = size
        while promised is None or begun < promised:
            try:
                with transport.download(url, params=query, offset=begun, etag=etag) as answer:
                    etag = _strong(answer.headers.get("etag"))
                    end = _receive(answer, out, advance)
                promised = end if size is None else size
                if out.tell() < promised:
                    raise httpx.RemoteProtocolError("the file was cut")
            except (httpx.HTTPError, ApplianceError) as error:
                if out.tell() > begun:
                    retrying.succeeded()
                retrying.wait_or_raise(error)
            begun = out.tell()
        if begun != promised:
            _empty(out)
            raise DownloadError(
                f"{path.name} has {begun} bytes where the appliance promised {promised}: try again."
            )
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)


def _receive(answer: httpx.Response, out: BinaryIO, advance: Callable[[int], None]) -> int:
    """What is sent goes to the end of `out`, or makes it anew where it is the whole file; where it ends."""
    if answer.status_code != 206:
        advance(-out.tell())  # all of it again: it has changed, or ranges are not known there
        _empty(out)
    end = out.tell() + int(answer.headers.get("content-length", 0))
    for chunk in answer.iter_raw():
        out.write(chunk)
        advance(len(chunk))
    return end


def _empty(out: BinaryIO) -> int:
    out.seek(0)
    return out.truncate()


def _strong(etag: str | None) -> str | None:
    """A weak tag says nothing about single bytes."""
    return None if etag is None or etag.startswith("W/") else etag


class _ByteProgress:
    """A progress bar of bytes, where somebody looks."""

    def __init__(self, name: str, total: int, shown: bool) -> None:
        self._bar: Any = None
        if shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=total,
                desc=name,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
                disable=None,
                leave=False,
            )

    def __enter__(self) -> Callable[[int], None]:
        return self._advance

    def _advance(self, by: int) -> None:
        if self._bar is not None:
            self._bar.update(by)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
