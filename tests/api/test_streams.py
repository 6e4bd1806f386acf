"""Tests of live streams: server-sent events that can be resumed at any point."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from harness import ProcessServer, Server, User, path
from millrace import Job
from millrace.sse import Decoder

STEPS = 40


@dataclass(frozen=True)
class StreamEvent:
    """One event of a stream."""

    kind: str
    id: str
    """ID of the event; empty outside of the numbered series."""
    data: dict[str, Any]


def listen(user: User, job: Job, what: str, last: str = "", **query: Any) -> Iterator[StreamEvent]:
    """Yields the events of one connection, resumed after the ID `last`, until the server closes it."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
    decoder = Decoder()
    with user.http.stream("GET", path(job, what), headers=headers, params={**query, "uid": job.uid}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/event-stream"
        for chunk in answer.iter_bytes():
            for event in decoder.feed(chunk):
                yield StreamEvent(event.event, event.id, json.loads(event.data, parse_float=str))


def numbered(received: list[StreamEvent]) -> list[StreamEvent]:
    return [each for each in received if each.id]


def kinds_and_data(received: list[StreamEvent], *, events: bool) -> list[tuple[str, dict[str, Any]]]:
    """Returns the events, or the journal entries; each of the two has its own order."""
    return [(each.kind, each.data) for each in received if (each.kind == "event") == events]


@dataclass(frozen=True)
class InterruptedClient:
    """What a client received of a running job, with a new connection for every entry."""

    job: Job
    seen: list[StreamEvent]
    connections: int


@pytest.fixture(scope="module")
def interrupted(shared: Server) -> InterruptedClient:
    user = shared.user
    job = user.submit("small", STEPS)
    seen: list[StreamEvent] = []
    connections = 0
    ended = False
    while not ended:
        connections += 1
        for received in listen(user, job, "follow", seen[-1].id if seen else ""):
            ended = received.kind == "end"
            if received.id:
                seen.append(received)
                break
    job.wait(10)
    return InterruptedClient(job, seen, connections)


@pytest.fixture
def small(interrupted: InterruptedClient) -> Job:
    """A small finished job with a few hundred entries."""
    return interrupted.job


def test_streams_and_pages_are_equal(shared: Server, small: Job) -> None:
    """Streams and pages have the same entries, in rising order; a stream finishes with `end`."""
    user = shared.user
    for what, kind in (("metrics", "metric"), ("logs", "log"), ("events", "event")):
        received = list(listen(user, small, what))
        assert received[-1].kind == "end" and not received[-1].id
        assert {each.kind for each in received[:-1]} == {kind}
        assert [each.data for each in received[:-1]] == list(user.pages(small, what, limit=7))
        numbers = [int(each.id) for each in received[:-1]]
        assert numbers == [each.data["number"] for each in received[:-1]]
        assert numbers == sorted(set(numbers)) and numbers


def test_follow_stream_is_complete(shared: Server, small: Job) -> None:
    """`follow` has the whole journal, numbered from 1 without gaps, the job and its events."""
    received = list(listen(shared.user, small, "follow"))
    assert received[0].kind == "job" and received[0].data["metadata"] == small.refresh().document["metadata"]
    entries = [each for each in numbered(received) if each.kind != "event"]
    assert [each.data["number"] for each in entries] == list(range(1, len(entries) + 1))
    assert {each.kind for each in entries} == {"metric", "log", "state", "checkpoint", "outcome"}
    assert [each.data["reason"] for each in received if each.kind == "event"] == [
        "Queued",
        "Starting",
        "Training",
        "Succeeded",
    ]
    for kind, what in (("metric", "metrics"), ("log", "logs")):
        assert [each.data for each in received if each.kind == kind] == list(shared.user.pages(small, what))
    assert received[-1].kind == "end"


@pytest.mark.parametrize("what", ["follow", "metrics"])
def test_finished_stream_resumes_at_any_entry(shared: Server, small: Job, what: str) -> None:
    """After a cut at any entry, the rest is exactly what is missing."""
    whole = numbered(list(listen(shared.user, small, what)))
    beyond = "1000000000.1000000000" if what == "follow" else "1000000000"
    for at, after in enumerate(["", *(each.id for each in whole), beyond]):
        rest = list(listen(shared.user, small, what, after))
        assert numbered(rest) == whole[at:], after
        assert rest[-1].kind == "end"
    # ?after= does the same for clients that can't set headers, for the journal only; the header takes precedence.
    entries = [at for at, each in enumerate(whole) if each.kind != "event"]
    middle = entries[len(entries) // 2]
    missing = whole[middle + 1 :]
    rest = list(listen(shared.user, small, what, after=whole[middle].data["number"]))
    assert kinds_and_data(numbered(rest), events=False) == kinds_and_data(missing, events=False)
    assert numbered(list(listen(shared.user, small, what, whole[middle].id, after=1))) == missing


def test_live_stream_survives_constant_reconnects(shared: Server, interrupted: InterruptedClient) -> None:
    """A client that reconnects after every entry of a running job receives each entry once."""
    seen = interrupted.seen
    assert interrupted.connections == len(seen) + 1
    whole = numbered(list(listen(shared.user, interrupted.job, "follow")))
    for events in (False, True):
        assert kinds_and_data(seen, events=events) == kinds_and_data(whole, events=events)
    assert [each.data["step"] for each in seen if each.kind == "metric"] == list(range(1, STEPS + 1))
    assert any(each.kind == "outcome" for each in seen)


@pytest.mark.needs("kill")
def test_abandoned_streams_are_closed(server: ProcessServer) -> None:
    """After a hundred abandoned streams the server responds, and stops gracefully."""
    user = server.user
    job = user.submit("idle", 5000)
    for _ in range(100):
        with user.http.stream("GET", path(job, "follow"), headers={"Accept": "text/event-stream"}) as answer:
            assert answer.status_code == 200
    assert user.http.get("/readyz").status_code == 200
    with httpx.Client(timeout=30) as other, other.stream("GET", f"{server.url}{path(job, 'follow')}") as answer:
        next(answer.iter_bytes())
        assert server.stop() < 10, "a stream that is still followed does not keep it"
