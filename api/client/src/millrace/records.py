"""What the appliance answers, as values. Unknown keys are kept in `raw`, missing ones are None."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from millrace import times

Document = dict[str, Any]


@dataclass(frozen=True)
class LogLine:
    """A line of an agent's log."""

    number: int
    time: datetime | None
    attempt: int
    agent: str
    level: str
    message: str
    fields: dict[str, str]
    """What the line is about, such as the epoch."""
    raw: Document = field(repr=False, compare=False)

    @classmethod
    def read(cls, item: Document) -> LogLine:
        """From an item of `logs`."""
        return cls(
            number=int(item.get("number") or 0),
            time=times.parse_rfc3339(item.get("time")),
            attempt=int(item.get("attempt") or 0),
            agent=str(item.get("agent") or "?"),
            level=str(item.get("level") or "INFO"),
            message=str(item.get("message") or ""),
            fields={str(key): str(value) for key, value in (item.get("fields") or {}).items()},
            raw=item,
        )

    def __str__(self) -> str:
        clock = self.time.astimezone().strftime("%H:%M:%S.%f")[:-3] if self.time else "-"
        fields = "".join(f" {key}={value}" for key, value in sorted(self.fields.items()))
        return f"{clock} {self.agent:<13} {self.level:<7} {self.message}{fields}"


@dataclass(frozen=True)
class Event:
    """Something that happened to a job, as `kubectl describe` shows it."""

    number: int
    time: datetime | None
    type: str
    reason: str
    message: str
    raw: Document = field(repr=False, compare=False)

    @classmethod
    def read(cls, item: Document) -> Event:
        """From an item of `events`."""
        return cls(
            number=int(item.get("number") or 0),
            time=times.parse_rfc3339(item.get("time")),
            type=str(item.get("type") or "Normal"),
            reason=str(item.get("reason") or ""),
            message=str(item.get("message") or ""),
            raw=item,
        )


@dataclass(frozen=True)
class RemoteFile:
    """A file that the appliance can send, and its size."""

    path: str
    bytes: int
    time: datetime | None = None
    """When it was written last."""

    @classmethod
    def read(cls, item: Document) -> RemoteFile:
        """From an item of `files`."""
        return cls(
            path=str(item["path"]), bytes=int(item["bytes"]), time=times.parse_rfc3339(item.get("time"))
        )

    @property
    def document(self) -> Document:
        """As JSON has it."""
        return {"path": self.path, "bytes": self.bytes, "time": times.format_rfc3339(self.time)}


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint of a job."""

    step: int
    digest: str | None
    """BLAKE3 of its parameters: two runs that ended in the same weights have the same."""
    bytes: int
    time: datetime | None
    files: tuple[RemoteFile, ...] = field(repr=False)

    @classmethod
    def read(cls, item: Document) -> Checkpoint:
        """From an item of `checkpoints`."""
        files = tuple(RemoteFile.read(each) for each in item.get("files") or ())
        return cls(
            step=int(item["step"]),
            digest=item.get("digest"),
            bytes=int(item.get("bytes") or sum(file.bytes for file in files)),
            time=times.parse_rfc3339(item.get("time")),
            files=files,
        )

    @property
    def document(self) -> Document:
        """As JSON has it."""
        files = [file.document for file in self.files]
        time = times.format_rfc3339(self.time)
        return {"step": self.step, "digest": self.digest, "bytes": self.bytes, "time": time, "files": files}


@dataclass(frozen=True)
class Volume:
    """A volume of the appliance that a job can mount."""

    name: str
    message: str


@dataclass(frozen=True)
class Identity:
    """Who a token stands for."""

    name: str
    role: str
    namespaces: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What would become of a job."""

    fits: bool
    reason: str | None
    message: str
    systems: tuple[str, ...]
    """The systems it would get."""
    queue_position: int | None
    """Its place in the queue; None where it would start at once."""
    estimated_start: datetime | None
    projected: Document = field(repr=False)
    """What the machine that is emulated would need: stepSeconds, seconds, samplesPerSecond."""
    needs: Document = field(repr=False)
    """How many agents of each role it takes, and the bytes of each: count, bytes."""
    host: Document = field(repr=False)
    """The job on the host of the server: fits; memory (needed, total, available, in bytes); step.seconds.

    Empty where agents run on other machines."""
    epoch: Document = field(repr=False)
    """One pass over the training data: samples, tokens, steps; empty where that is not known."""
    notes: tuple[str, ...] = field(repr=False)
    """What was not checked."""
    raw: Document = field(repr=False, compare=False)

    @classmethod
    def read(cls, answer: Document) -> Plan:
        """From the answer of `trainjobs:plan`."""
        return cls(
            fits=bool(answer.get("fits")),
            reason=answer.get("reason"),
            message=str(answer.get("message") or ""),
            systems=tuple(answer.get("systems") or ()),
            queue_position=(answer.get("queue") or {}).get("position"),
            estimated_start=times.parse_rfc3339(answer.get("estimatedStart")),
            projected=answer.get("projected") or {},
            needs=answer.get("needs") or {},
            host=answer.get("host") or {},
            epoch=answer.get("epoch") or {},
            notes=tuple(answer.get("notes") or ()),
            raw=answer,
        )
