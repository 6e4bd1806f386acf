"""A flood by one user does not delay the responses to others."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from floods import FLOODS, IDLE_SECONDS, LIMIT_SECONDS, OtherUser, flooded, jobs_path, large_models, make_changed
from harness import Serve, Server, trainjob, until
from harness.common import PROGRAMS
from millrace import Job

TRIES = 15
DEBUG_SLOWDOWN = 5.0
"""Factor on the limit for unoptimized programs, for which a flood is more work."""
MAX_PENDING = 8
"""Maximum number of concurrent submissions of a user."""


@pytest.mark.needs("own appliance")
@pytest.mark.parametrize("name", FLOODS)
def test_flood_does_not_delay_other_users(serve: Serve, name: str) -> None:
    """Probes, submissions of another user and the control loop stay fast during a flood."""
    server = serve("--require-token")
    other = OtherUser(server.user_with(server.token("calm", "editor", server.namespace)))
    # One token, several connections.
    token = server.token("busy", "editor", server.namespace)
    busy = [server.user_with(token) for _ in range(4)]
    make_changed(busy[0])
    flood = FLOODS[name]()
    other.healthz()
    before = other.latencies(TRIES)
    with flooded(busy, flood) as statuses:
        # The first responses may take minutes; from now on requests are being processed.
        until("a second of the flood is over", lambda over=time.monotonic() + 1: time.monotonic() > over)
        during = other.latencies(TRIES)
    after = other.latencies(TRIES)
    figures = {"before": before, "during": during, "after": after}
    print(json.dumps({when: {what: asdict(each) for what, each in all.items()} for when, all in figures.items()}))
    print(f"{statuses.qsize()} answers")
    # How much slower this machine is than an idle one, apart from the flood.
    slowness = [calm[what].median / usual for what, usual in IDLE_SECONDS.items() for calm in (before, after)]
    slower = max(DEBUG_SLOWDOWN if PROGRAMS.name == "debug" else 1.0, *slowness)
    for what, latency in during.items():
        assert latency.median <= LIMIT_SECONDS * slower, f"{what}: {figures}"


@pytest.mark.needs("own appliance")
def test_stalled_bodies_count_against_their_user(serve: Serve) -> None:
    """A user with many unfinished submissions gets 429; another user can submit."""
    server = serve("--require-token")
    slow, calm = (server.user_with(server.token(name, "editor", server.namespace)) for name in ("slow", "calm"))
    address = urlsplit(server.url)
    head = (
        f"POST {jobs_path(slow)} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {slow.token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
    )
    with ExitStack() as connections:
        for _ in range(MAX_PENDING):
            connection = socket.create_connection((address.hostname or "", address.port or 80), timeout=60)
            connections.enter_context(connection).sendall(head.encode())
            # The server asks for the body once it counts the submission.
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        assert slow.http.post(jobs_path(slow), json=trainjob(None, suspend=True)).status_code == 429
        assert calm.http.post(jobs_path(calm), json=trainjob("calm", suspend=True)).status_code == 201


def test_user_with_too_many_requests_gets_429(shared: Server) -> None:
    """The error 429 has a reason and Retry-After."""
    refusals: list[httpx.Response] = []
    flood = large_models()

    def ask(number: int) -> None:
        answer = flood(shared.another_user(), number)
        if answer.status_code == 429:
            refusals.append(answer)

    in_threads(ask, 12)
    assert refusals[0].json()["reason"] == "TooManyRequests" and int(refusals[0].headers["Retry-After"]) >= 1


def in_threads(ask: Callable[[int], None], count: int) -> None:
    """Calls a function in several threads at once."""
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


@pytest.mark.needs("quick jobs")
def test_concurrent_exports_are_made_once(shared: Server, finished: Job) -> None:
    """Concurrent requests for an export get the same files."""
    listings: list[Any] = []
    place = jobs_path(shared.user, f"/{finished.name}/checkpoints/200:export?format=hf")
    in_threads(lambda _: listings.append(shared.another_user().http.get(place, timeout=120).json()), 6)
    assert len(listings) == 6 and listings[0]["files"]
    # Modification times are compared, too: a second export would have newer files.
    assert all(listing == listings[0] for listing in listings), listings
