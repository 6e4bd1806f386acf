"""Downloads files of a job into a new directory: all of them, or none.

* Files are written to a staging directory next to the target, named after the target and a digest of what is
  downloaded. It is renamed to the target when all files are complete.
* An interrupted file resumes at its end. A later call for the same checkpoint reuses the staging directory.
* Files of a running job may grow during the download; each is downloaded with the length that it had when it
  was requested.
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
from millrace.progress import ByteProgress
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
    """Implements `Job.download`."""
    if format not in ("native", "hf"):
        raise DownloadError(f"unknown format {format!r}: choose native or hf")
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
    # The digest separates jobs, steps and formats, so that parts of different downloads are never mixed.
    what = f"{job.uid} {chosen.step} {chosen.digest} {format}"
    if format == "hf":
        base, query = f"{base}:export", {**query, "format": "hf"}
        # The appliance converts the checkpoint before it responds.
        listed = transport.json("GET", base, params=query, seconds=900.0)
        files = tuple(RemoteFile.read(each) for each in listed["files"])

    def fetch(file: RemoteFile, path: Path, advance: Callable[[int], None]) -> None:
        _fetch(transport, f"{base}/{quote(file.path)}", query, path, file.bytes, advance)

    return _download_all(target, what, files, fetch, progress)


def parameters(job: Job, step: int | None, scratch: Path, *, progress: bool = True) -> Path:
    """Downloads the parameters of a checkpoint without the state of the optimizer; returns its directory."""
    chosen = _select_checkpoint(job, step)
    base, query = job._path(f"/checkpoints/{chosen.step}"), {"uid": job.uid or None}
    files = [file for file in chosen.files if file.path.startswith("parameters/")]

    def fetch(file: RemoteFile, path: Path, advance: Callable[[int], None]) -> None:
        _fetch(job._transport, f"{base}/{quote(file.path)}", query, path, file.bytes, advance)

    return _download_all(scratch / job.name, f"{job.uid} {chosen.step} parameters", files, fetch, progress)


def artifacts(job: Job, patterns: Sequence[str], to: str | PathLike[str] | None, *, progress: bool) -> Path:
    """Implements `Job.download_artifacts`."""
    target = Path(to if to is not None else f"{job.name}-artifacts")
    _refuse_existing(target)
    found = job.artifacts()
    for pattern in patterns:
        if not any(fnmatchcase(file.path, pattern) for file in found):
            available = ", ".join(file.path for file in found[:20]) or "none"
            raise DownloadError(f"job {job.name} has no artifact {pattern}; available: {available}")
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
    """Downloads `files` into a new directory `target`. `what` identifies the content of the staging
    directory.
    """
    staging = target.with_name(f"{target.name}.{hashlib.sha256(what.encode()).hexdigest()[:12]}.part")
    staging.mkdir(parents=True, exist_ok=True)
    with ByteProgress(target.name, sum(file.bytes for file in files), progress) as advance:
        for file in files:
            fetch(file, staging / _safe_path(file), advance)
    with suppress(FileNotFoundError):
        target.rmdir()  # an empty directory; some systems reject a rename onto it
    staging.rename(target)
    return target


def _select_checkpoint(job: Job, step: int | None) -> Checkpoint:
    found = job.checkpoints()
    if not found:
        raise DownloadError(f"job {job.name} has no checkpoint yet ({job.summary})")
    if step is None:
        return found[-1]
    for each in found:
        # A widget of a notebook may pass a string.
        if str(each.step) == str(step):
            return each
    steps = ", ".join(str(each.step) for each in found)
    raise DownloadError(f"job {job.name} has no checkpoint of step {step!r}; available steps: {steps}")


def _refuse_existing(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise DownloadError(f"{target} already exists: choose another directory, or move it away")


def _safe_path(file: RemoteFile) -> PurePosixPath:
    """Returns the file's path. Raises DownloadError if it leads out of the directory."""
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in file.path or ":" in file.path:
        raise DownloadError(f"the appliance sent the unsafe file name {file.path!r}")
    return path


def _fetch(
    transport: Transport,
    url: str,
    query: dict[str, Any],
    path: Path,
    size: int | None,
    advance: Callable[[int], None],
) -> None:
    """Downloads one file, via a `.part` file until it is complete.

    Does nothing if a file of this size exists. Without `size`, the length is that of the response.
    """
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
        expected = size
        while expected is None or begun < expected:
            try:
                with transport.download(url, params=query, offset=begun, etag=etag) as answer:
                    tag = answer.headers.get("etag")
                    etag = tag if _is_strong_etag(tag) else None
                    end = _receive(answer, out, advance)
                expected = end if size is None else size
                if out.tell() < expected:
                    raise httpx.RemoteProtocolError("the response was truncated")
            except (httpx.HTTPError, ApplianceError) as error:
                if out.tell() > begun:
                    retrying.succeeded()
                retrying.wait_or_raise(error)
            begun = out.tell()
        if begun != expected:
            _empty(out)
            raise DownloadError(
                f"{path.name} has {begun} bytes, but the appliance announced {expected}: try again"
            )
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)


def _receive(answer: httpx.Response, out: BinaryIO, advance: Callable[[int], None]) -> int:
    """Appends the response's body to `out`, or replaces `out` if it is the whole file.

    Returns the length that `out` has if the body is complete.
    """
    if answer.status_code != 206:
        advance(-out.tell())  # the whole file: it has changed, or the server does not support ranges
        _empty(out)
    end = out.tell() + int(answer.headers.get("content-length", 0))
    for chunk in answer.iter_raw():
        out.write(chunk)
        advance(len(chunk))
    return end


def _empty(out: BinaryIO) -> int:
    out.seek(0)
    return out.truncate()


def _is_strong_etag(etag: str | None) -> bool:
    """Whether the tag identifies the exact bytes; a weak tag does not."""
    return etag is not None and not etag.startswith("W/")
