"""Floods of requests by one user, and the latency of another user during them.

Used by test_floods.py, which asserts bounds, and by tests/bench/floods, which prints the figures.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue

import httpx
from harness import PARAMS, User, trainjob, until

LIMIT_SECONDS = 0.1
"""Maximum median latency of other users during a flood, in seconds."""
IDLE_SECONDS = {"healthz": 0.002, "submission": 0.02}
"""Maximum median of each request without a flood, on an idle machine with two cores and optimized programs.

If a request takes N times as long, the machine is slower or busy, and the limit is N times as high. The control loop is
not in this table: it may spend most of its time waiting, which a faster machine does not shorten.
"""

Flood = Callable[[User, int], httpx.Response]


def jobs_path(user: User, rest: str = "") -> str:
    """Returns the path of the user's jobs."""
    return f"/v1/namespaces/{user.namespace}/trainjobs{rest}"


def measure_seconds(ask: Callable[[], object]) -> float:
    """Returns the duration of a call."""
    began = time.perf_counter()
    ask()
    return time.perf_counter() - began


@dataclass(frozen=True)
class Latency:
    """Median and 95th percentile, in seconds."""

    median: float
    p95: float

    @classmethod
    def of(cls, tries: list[float]) -> Latency:
        return cls(statistics.median(tries), sorted(tries)[round(0.95 * (len(tries) - 1))])


class OtherUser:
    """A user with few requests: /healthz, submissions, and waiting for the control loop to reconcile them."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._names = (f"calm-{number}" for number in itertools.count())

    def healthz(self) -> None:
        assert self._user.http.get("/healthz", timeout=60).status_code == 200

    def submit(self) -> str:
        # Suspended jobs pass the control loop and use no CPU time of agents.
        name = next(self._names)
        made = self._user.http.post(jobs_path(self._user), json=trainjob(name, suspend=True), timeout=60)
        assert made.status_code == 201, made.text
        return name

    def is_visited(self) -> None:
        name = self.submit()

        def visited() -> bool:
            job = self._user.http.get(jobs_path(self._user, f"/{name}"), timeout=60).raise_for_status().json()
            return bool(job.get("status", {}).get("conditions"))

        until("the control loop has visited the job", visited, every=0.01)

    def latencies(self, tries: int) -> dict[str, Latency]:
        """Returns the latency of each operation. Submissions are slow enough to reach no limit of this user."""
        asks: dict[str, Callable[[], object]]
        asks = {"healthz": self.healthz, "submission": self.submit, "control loop": self.is_visited}
        found: dict[str, list[float]] = {what: [] for what in asks}
        for _ in range(tries):
            for what, ask in asks.items():
                found[what].append(measure_seconds(ask))
        return {what: Latency.of(tries) for what, tries in found.items()}


@contextmanager
def flooded(users: list[User], flood: Flood) -> Iterator[Queue[int]]:
    """Sends requests of several users without a pause, each from its own process; yields the statuses of the responses.

    Real clients run on other machines. Here their processes have the lowest priority, so that the figures contain the
    time that the server spends on the flood, not the time it takes to send it.
    """
    world = multiprocessing.get_context("fork")
    statuses: Queue[int] = world.Queue()

    def run(user: User) -> None:
        os.nice(19)
        for number in itertools.count(os.getpid() << 16):
            try:
                statuses.put(flood(user, number).status_code)
            except httpx.TransportError:
                # The server closes the connection if it will not read the whole body.
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
    """Forms with as many files as fit in 8 MiB, and as many globs to match them."""
    globs = ", ".join(f"a*{number}" for number in range(20_000))
    params = PARAMS.read_text().replace("data_files: examples/data/kjv.txt", f"data_files: [{globs}]")
    edge = "edge-of-a-part"
    part = f'--{edge}\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n'
    files = "".join(part % ("file", f"f{number}", "") for number in range(58_000))
    body = (part % ("params", "params.yaml", params) + files + f"--{edge}--\r\n").encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={edge}", "Connection": "close"}

    def flood(user: User, _: int) -> httpx.Response:
        return user.http.post(jobs_path(user, ":plan"), content=body[: 8 << 20], headers=headers, timeout=300)

    return flood


def large_models() -> Flood:
    """Plans of models with 10,000 layers, each different."""

    def flood(user: User, number: int) -> httpx.Response:
        job = trainjob(f"large-{number}", seed=number)
        job["spec"]["params"]["model"]["num_hidden_layers"] = 10_000
        return user.http.post(jobs_path(user, ":plan"), json=job, timeout=300)

    return flood


def large_jobs() -> Flood:
    """Jobs with as many layers, which the control loop plans, too."""

    def flood(user: User, number: int) -> httpx.Response:
        job = trainjob(f"large-{number}", seed=number, suspend=True)
        job["spec"]["params"]["model"]["num_hidden_layers"] = 9_999
        return user.http.post(jobs_path(user), json=job, timeout=300)

    return flood


CHANGED = "changed"
"""The job that `changes` changes. It is suspended and never runs."""


def make_changed(user: User) -> None:
    """Creates the job that `changes` changes."""
    assert user.http.post(jobs_path(user), json=trainjob(CHANGED, suspend=True), timeout=60).status_code == 201


def changes() -> Flood:
    """Changes of one suspended job: each is written, and the ledger is checked."""

    def flood(user: User, number: int) -> httpx.Response:
        return user.http.post(jobs_path(user, f"/{CHANGED}/scale"), json={"numCsx": 1 + number % 2}, timeout=300)

    return flood


FLOODS: dict[str, Callable[[], Flood]] = {
    "many files": many_files,
    "large models": large_models,
    "large jobs": large_jobs,
    "changes": changes,
}
