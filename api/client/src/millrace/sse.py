"""Decodes server-sent events, as defined by the HTML standard.

* Lines end with CR, LF or CRLF, which may be split between two chunks. An event may have several data lines.
* An ID counts only when its event is complete.
* An event without data is dropped: a keep-alive comment is followed by an empty line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class ServerSentEvent:
    """One event. `id` is the event's own ID, empty if it has none."""

    event: str
    data: str
    id: str = ""


class Decoder:
    """Decodes a stream that arrives in chunks of any size. A new connection needs a new decoder."""

    def __init__(self) -> None:
        self.retry: float | None = None
        """Reconnection delay in seconds, if the server has set it."""
        self._at_start = True
        self._after_cr = False
        self._rest = b""
        self._event = ""
        self._data: list[str] = []
        self._id = ""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Returns the events that are completed by these bytes."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk, self._after_cr = chunk[1:], False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        events = (self._line(line) for line in lines)
        return [event for event in events if event is not None]

    def _line(self, raw: bytes) -> ServerSentEvent | None:
        line = raw.decode("utf-8", errors="replace")
        if self._at_start:
            line, self._at_start = line.removeprefix("\ufeff"), False
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._event = value
        elif field == "data":
            self._data.append(value)
        elif field == "id" and "\0" not in value:
            self._id = value
        elif field == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value) / 1000
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event, data, own_id = self._event or "message", self._data, self._id
        self._event, self._data, self._id = "", [], ""
        return ServerSentEvent(event, "\n".join(data), own_id) if data else None
