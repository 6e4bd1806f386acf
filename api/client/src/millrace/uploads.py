"""Uploads files to an appliance as blobs, addressed by the BLAKE3 digest of their content.

    announce   what the appliance has of a blob already: nothing, a part of it, or all
    append     the next part, until all is there

* An interrupted upload continues where it was, also in a later run of the program.
* A blob that the appliance has is not sent again.
* Memory does not grow with the size of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from millrace import errors
from millrace.endpoint import segment
from millrace.errors import UploadError
from millrace.progress import ByteProgress
from millrace.transport import Transport

_PART_BYTES = 4 << 20
_MAX_ANNOUNCEMENTS = 5
"""Number of times that an upload is announced again without progress between them."""


@dataclass(frozen=True)
class Blob:
    """A content to upload."""

    digest: str
    """Its address: `blake3:` and the digest in hexadecimal digits."""
    size: int
    source: Path | bytes = field(repr=False)
    """The file, or the content itself."""

    @classmethod
    def of_file(cls, path: Path) -> Blob:
        """Reads a file and returns it as a blob. Raises OSError if it can't be read."""
        hasher = blake3(max_threads=blake3.AUTO)
        size = path.stat().st_size
        if size:
            hasher.update_mmap(path)
        return cls(f"blake3:{hasher.hexdigest()}", size, path)

    @classmethod
    def of_bytes(cls, content: bytes) -> Blob:
        """Returns a content as a blob."""
        return cls(f"blake3:{blake3(content).hexdigest()}", len(content), content)

    @property
    def name(self) -> str:
        """The path of the file, for messages."""
        return "the content" if isinstance(self.source, bytes) else str(self.source)

    def part(self, offset: int) -> bytes:
        """Returns the next bytes from `offset` on."""
        if isinstance(self.source, bytes):
            return self.source[offset : offset + _PART_BYTES]
        with self.source.open("rb") as file:
            file.seek(offset)
            return file.read(min(_PART_BYTES, self.size - offset))


def upload(transport: Transport, namespace: str, blobs: Iterable[Blob], *, progress: bool) -> None:
    """Uploads what the appliance does not have yet, with a progress bar.

    Raises NotFound if the appliance stores no uploads, PayloadTooLarge if they exceed its limit, UploadError
    if a file changes during the upload, and OSError if it can't be read.
    """
    path = f"/v1/namespaces/{segment(namespace)}/blobs"
    missing = []
    for blob in {blob.digest: blob for blob in blobs}.values():
        received = _announce(transport, path, blob)
        if received < blob.size:
            missing.append((blob, received))
    if not missing:
        return
    total = sum(blob.size - received for blob, received in missing)
    with ByteProgress("upload", total, progress) as advance:
        for blob, received in missing:
            _send(transport, path, blob, received, advance)


def _announce(transport: Transport, path: str, blob: Blob) -> int:
    """Returns how many bytes the appliance has."""
    status = transport.json("POST", path, json={"digest": blob.digest, "bytes": blob.size})
    return int(status["received"])


def _send(transport: Transport, path: str, blob: Blob, received: int, advance: Callable[[int], None]) -> None:
    """Sends a blob from byte `received` on."""
    announcements = 0
    while received < blob.size:
        part = blob.part(received)
        if not part:
            raise UploadError(f"{blob.name} has become shorter during the upload: submit the job again")
        try:
            status = _append(transport, path, blob, received, part)
        except (errors.Conflict, errors.NotFound) as error:
            # Another client uploads the same content, or the appliance was started again.
            announcements += 1
            if announcements > _MAX_ANNOUNCEMENTS:
                raise UploadError(f"the upload makes no progress: {error}") from error
            total_received = _announce(transport, path, blob)
        else:
            total_received = int(status["received"])
            if total_received > received:
                announcements = 0
        advance(total_received - received)
        received = total_received


def _append(transport: Transport, path: str, blob: Blob, offset: int, part: bytes) -> Any:
    headers = {"Content-Type": "application/octet-stream"}
    address = f"{path}/{blob.digest}"
    try:
        return transport.json("PATCH", address, params={"offset": offset}, content=part, headers=headers)
    except errors.Invalid as error:
        if offset + len(part) == blob.size:
            raise UploadError(f"{blob.name} has changed during the upload: submit the job again") from error
        raise
