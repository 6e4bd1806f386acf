"""Typed views of the appliance's JSON. Unknown keys are in `raw`; missing ones are None or empty."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from millrace import notebook, plan_text, times

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
    """Structured fields of the line, such as the epoch."""
    raw: Document = field(repr=False, compare=False)

    @classmethod
    def read(cls, item: Document) -> LogLine:
        """Reads an item of `logs`."""
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
    """An event of a job, as `kubectl describe` shows it."""

    number: int
    time: datetime | None
    type: str
    reason: str
    message: str
    raw: Document = field(repr=False, compare=False)

    @classmethod
    def read(cls, item: Document) -> Event:
        """Reads an item of `events`."""
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
    """A file that can be downloaded."""

    path: str
    bytes: int
    time: datetime | None = None
    """Time of the last change."""

    @classmethod
    def read(cls, item: Document) -> RemoteFile:
        """Reads an item of `files`."""
        return cls(
            path=str(item["path"]), bytes=int(item["bytes"]), time=times.parse_rfc3339(item.get("time"))
        )

    @property
    def document(self) -> Document:
        """The file as JSON."""
        return {"path": self.path, "bytes": self.bytes, "time": times.format_rfc3339(self.time)}


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint of a job."""

    step: int
    digest: str | None
    """BLAKE3 digest of the parameters: equal for runs with bit-identical results."""
    bytes: int
    time: datetime | None
    files: tuple[RemoteFile, ...] = field(repr=False)

    @classmethod
    def read(cls, item: Document) -> Checkpoint:
        """Reads an item of `checkpoints`."""
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
        """The checkpoint as JSON."""
        files = [file.document for file in self.files]
        time = times.format_rfc3339(self.time)
        return {"step": self.step, "digest": self.digest, "bytes": self.bytes, "time": time, "files": files}


@dataclass(frozen=True)
class Generation:
    """A text that the model of a checkpoint has continued."""

    prompt: str | tuple[int, ...]
    """The text, or the token ids, that the model has continued."""
    text: str
    """The text after the prompt; empty if the prompt consists of token ids."""
    tokens: tuple[int, ...]
    """The tokens after the prompt."""
    finish_reason: str
    """EndOfText, MaxTokens, or MaxPositions if all positions of the model are used."""
    step: int
    """Step of the checkpoint."""

    def __str__(self) -> str:
        if isinstance(self.prompt, str):
            return self.prompt + self.text
        return " ".join(map(str, (*self.prompt, *self.tokens)))

    @property
    def document(self) -> Document:
        """The continued text as JSON."""
        return {
            "prompt": self.prompt if isinstance(self.prompt, str) else list(self.prompt),
            "text": self.text,
            "tokens": list(self.tokens),
            "finishReason": self.finish_reason,
            "step": self.step,
        }


@dataclass(frozen=True)
class Volume:
    """A volume of the appliance that a job can mount."""

    name: str
    message: str


@dataclass(frozen=True)
class Identity:
    """The owner of a token."""

    name: str
    role: str
    namespaces: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The expected fate of a job: whether it fits, where, and when it would start."""

    fits: bool
    reason: str | None
    message: str
    systems: tuple[str, ...]
    """Names of the systems that the job would get."""
    queue_position: int | None
    """Position in the queue; None if the job would start at once."""
    estimated_start: datetime | None
    projected: Document = field(repr=False)
    """Projection for the emulated machine: stepSeconds, seconds, samplesPerSecond."""
    needs: Document = field(repr=False)
    """Agents by role: `count`, and the `bytes` of memory of each."""
    host: Document = field(repr=False)
    """Needs on the server's host: fits; memory (needed, total, available, in bytes); step.seconds.

    Empty if agents run on other machines.
    """
    epoch: Document = field(repr=False)
    """One pass over the training data: samples, tokens, steps; empty if unknown."""
    notes: tuple[str, ...] = field(repr=False)
    """Checks that were skipped."""
    raw: Document = field(repr=False, compare=False)

    @classmethod
    def read(cls, answer: Document) -> Plan:
        """Reads the response of `trainjobs:plan`."""
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

    def _repr_html_(self) -> str:
        """Returns a table for Jupyter."""
        agents = [f"{count} {role} of {size}" for role, count, size in plan_text.agents(self)]
        rows = {**plan_text.fields(self), "Agents": ", ".join(agents)}
        return notebook.table("Plan", {label: value for label, value in rows.items() if value})
