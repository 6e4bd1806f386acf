"""Tests of the decoder, for all splits of a stream."""

from __future__ import annotations

import pytest

from millrace.sse import Decoder, ServerSentEvent

TEXT = (
    "\ufeff: hello\n\nretry: 1500\nid: 7\nevent: metric\ndata: {\ndata:  }\n\n: still here\n\n"
    "data: é\nid: 8\n\nevent: nothing\nid: 9\n\ndata\n\ndata: never whole"
)
EVENTS = [
    ServerSentEvent("metric", "{\n }", "7"),
    ServerSentEvent("message", "é", "8"),
    ServerSentEvent("message", "", ""),
]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_do_not_depend_on_chunks(ending: str, size: int) -> None:
    content = TEXT.replace("\n", ending).encode()
    decoder = Decoder()
    found = [event for at in range(0, len(content), size) for event in decoder.feed(content[at : at + size])]
    assert found == EVENTS
    assert decoder.retry == 1.5
