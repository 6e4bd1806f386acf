"""Floods: what one user asks for does not keep the server from answering the others."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from typing import Any

import httpx
import pytest
from harness import PARAMS, Serve, Server, User, trainjob, until
from millrace import Job

SLACK = 0.5
"""Seconds that an answer may take longer during a flood. On a machine that does nothing else it is less than 0.1; a flood of which
the server does the work where it answers requests costs the others seconds to minutes.
"""
SAMPLES = 15

Flood = Callable[[User, int], httpx.Response]


def seconds(ask: Callable[[], object]) -> float:
    """How long something takes."""
    began = time.perf_counter()
    ask()
    return time.perf_counter() - began


def path(user: User, rest: str = "") -> str:
    """The jobs of a user's namespace."""
    return f"/v1/namespaces/{user.namespace}/trainjobs{rest}"


class Honest:
    """Somebody else, who looks whether the server lives, submits jobs, and waits for the control loop to see them."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._names = (f"calm-{number}" for number in itertools.count())

    def healthz(self) -> None:
        assert self._user.http.get("/healthz", timeout=60).status_code == 200

    def submit(self) -> str:
        # Suspended jobs go through the control loop and use no core of this machine.
        name = next(self._names)
        made = self._user.http.post(path(self._user), json=trainjob(name, suspend=True), timeout=60)
        assert made.status_code == 201, made.text
        return name

    def is_visited(self) -> None:
        name = self.submit()

        def visited() -> bool:
            job = self._user.http.get(path(self._user, f"/{name}"), timeout=60).json()
            return bool(job.get("status", {}).get("conditions"))

        until("the control loop has seen the job", visited)

    def latencies(self) -> dict[str, float]:
        """Of each thing the median of several tries."""
        asks = {"healthz": self.healthz, "submission": self.submit, "control loop": self.is_visited}
        return {what: statistics.median(seconds(ask) for _ in range(SAMPLES)) for what, ask in asks.items()}


@contextmanager
def flooded(users: list[User], flood: Flood) -> Iterator[Queue[int]]:
    """Several users send requests without a pause, each from a process of its own; the statuses of the answers, as they come."""
    world = multiprocessing.get_context("fork")
    statuses: Queue[int] = world.Queue()

    def run(user: User) -> None:
        for number in itertools.count(os.getpid() << 16):
            try:
                statuses.put(flood(user, number).status_code)
            except httpx.TransportError:
                # The server hangs up on a body that it will not read to its end.
                statuses.put(0)

    processes = [world.Process(target=run, args=(user,), daemon=True) for user in users]
    for process in processes:
        process.start()
    try:
        yield statuses
    finally:
        for process in processes:
            process.kill()
            process.join()


def many_files() -> Flood:
    """A form with as many files as eight megabytes hold, and as many globs that might find them."""
    globs = ", ".join(f"a*{number}" for number in range(20_000))
    params = PARAMS.read_text().replace("data_files: examples/data/kjv.txt", f"data_files: [{globs}]")
    edge = "edge-of-a-part"
    part = f'--{edge}\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n'
    files = "".join(part % ("file", f"f{number}", "") for number in range(58_000))
    body = (part % ("params", "params.yaml", params) + files + f"--{edge}--\r\n").encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={edge}", "Connection": "close"}

    def flood(user: User, _: int) -> httpx.Response:
        return user.http.post(path(user, ":plan"), content=body[: 8 << 20], headers=headers, timeout=300)

    return flood


def large_models() -> Flood:
    """Plans of models of ten thousand layers, no two of them the same."""

    def flood(user: User, number: int) -> httpx.Response:
        job = trainjob(f"large-{number}", seed=number)
        job["spec"]["params"]["model"]["num_hidden_layers"] = 10_000
        return user.http.post(path(user, ":plan"), json=job, timeout=300)

    return flood


def large_jobs() -> Flood:
    """Jobs of as many layers, which the control loop has to plan as well."""

    def flood(user: User, number: int) -> httpx.Response:
        job = trainjob(f"large-{number}", seed=number, suspend=True)
        job["spec"]["params"]["model"]["num_hidden_layers"] = 9_999
        return user.http.post(path(user), json=job, timeout=300)

    return flood


@pytest.mark.needs("own appliance")
@pytest.mark.parametrize("kind", [many_files, large_models, large_jobs])
def test_others_are_answered_while_one_floods(serve: Serve, kind: Callable[[], Flood]) -> None:
    """Probes, another user's submissions and the control loop go on as if nobody flooded the server."""
    server = serve("--require-token")
    honest = Honest(server.user_with(server.token("calm", "editor", server.namespace)))
    # One token, over several connections.
    token = server.token("busy", "editor", server.namespace)
    busy = [server.user_with(token) for _ in range(4)]
    flood = kind()
    honest.healthz()
    idle = honest.latencies()
    with flooded(busy, flood) as statuses:
        # The first answers may take minutes; from here on requests are under way.
        until("a second of the flood is over", lambda over=time.monotonic() + 1: time.monotonic() > over)
        meanwhile = honest.latencies()
    print(json.dumps({"idle": idle, "flooded": meanwhile, "answers": statuses.qsize()}))
    for what, bound in idle.items():
        # The flood is sent by this machine, too, which may have two cores and other work.
        assert meanwhile[what] <= SLACK + 4 * bound, f"{what}: {idle} {meanwhile}"


def test_a_user_with_too_much_under_way_is_told_to_wait(shared: Server) -> None:
    """A flood is refused with a sentence and the time to come again."""
    refusals: list[httpx.Response] = []
    flood = large_models()

    def ask(number: int) -> None:
        answer = flood(shared.another_user(), number)
        if answer.status_code == 429:
            refusals.append(answer)

    in_threads(ask, 12)
    assert refusals[0].json()["reason"] == "TooManyRequests" and int(refusals[0].headers["Retry-After"]) >= 1


def in_threads(ask: Callable[[int], None], count: int) -> None:
    """Does something several times at once."""
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


@pytest.mark.needs("quick jobs")
def test_an_export_is_made_once(shared: Server, finished: Job) -> None:
    """Those who ask for an export at the same time get the same files."""
    listings: list[Any] = []
    place = path(shared.user, f"/{finished.name}/checkpoints/200:export?format=hf")
    in_threads(lambda _: listings.append(shared.another_user().http.get(place, timeout=120).json()), 6)
    assert len(listings) == 6 and listings[0]["files"]
    # The same times, too: a second export would have newer files.
    assert all(listing == listings[0] for listing in listings), listings
