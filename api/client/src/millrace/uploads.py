"""Uploads files to an appliance as blobs, addressed by the BLAKE3 digest of their content.

    announce   what the appliance has of a blob already: nothing, a part of it, or all
    append     the next part, until all is there; the appliance stores it as it arrives

* An interrupted upload continues where it was, within a part, also in a later run of the program.
* A blob that the appliance has is not sent again.
* Memory does not grow with the size of a file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import httpx
from blake3 import blake3

from millrace import errors, retry_budget
from millrace.endpoint import segment
from millrace.errors import UploadError
from millrace.progress import ByteProgress
from millrace.transport import Transport

_PART_BYTES = 64 << 20
"""Bytes of a request. A part takes longer than the time between two requests, also on a fast network."""
_SMALL_PART_BYTES = 4 << 20
"""Bytes of a request if a proxy, or an appliance of an earlier release, limits its length."""
_BLOCK_BYTES = 1 << 20
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

    def part(self, offset: int, length: int) -> Iterator[bytes]:
        """Yields the next `length` bytes from `offset` on, in blocks.

        Raises UploadError if the file has become shorter, and OSError if it can't be read.
        """
        with self._open() as file:
            file.seek(offset)
            while length:
                block = file.read(min(_BLOCK_BYTES, length))
                if not block:
                    raise UploadError(
                        f"{self.name} has become shorter during the upload: submit the job again"
                    )
                length -= len(block)
                yield block

    def _open(self) -> BinaryIO:
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")


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
    retries = transport.retrying()
    part_bytes = _PART_BYTES
    announcements = 0
    while received < blob.size:
        part = _Part(blob, received, min(part_bytes, blob.size - received), advance)
        try:
            total_received = _append(transport, path, part)
            retries.succeeded()
        except errors.PayloadTooLarge:
            if part_bytes <= _SMALL_PART_BYTES:
                raise
            part_bytes, total_received = _SMALL_PART_BYTES, received
        except (errors.Conflict, errors.NotFound) as error:
            # Another client uploads the same content, or the appliance was started again.
            total_received = _announce(transport, path, blob)
            announcements = 0 if total_received > received else announcements + 1
            if announcements > _MAX_ANNOUNCEMENTS:
                raise UploadError(f"the upload makes no progress: {error}") from error
            if announcements:
                retry_budget.sleep(retry_budget.INITIAL_DELAY_SECONDS)
        except (httpx.HTTPError, errors.ApplianceError) as error:
            retries.wait_or_raise(error)
            total_received = _announce(transport, path, blob)
            if total_received > received:
                retries.succeeded()
        # What was sent and not received is sent again.
        advance(total_received - received - part.sent)
        received = total_received


@dataclass
class _Part:
    """A part of a blob that is being sent."""

    blob: Blob
    offset: int
    length: int
    advance: Callable[[int], None]
    sent: int = 0

    def content(self) -> Iterator[bytes]:
        """Yields the content, and advances the progress bar."""
        for block in self.blob.part(self.offset, self.length):
            yield block
            self.sent += len(block)
            self.advance(len(block))


def _append(transport: Transport, path: str, part: _Part) -> int:
    """Sends a part once; returns how many bytes the appliance has then."""
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(part.length)}
    blob = part.blob
    try:
        status = transport.send(
            "PATCH",
            f"{path}/{blob.digest}",
            params={"offset": part.offset},
            content=part.content(),
            headers=headers,
        )
    except errors.Invalid as error:
        if part.offset + part.length == blob.size:
            raise UploadError(f"{blob.name} has changed during the upload: submit the job again") from error
        raise
    return int(status["received"])
