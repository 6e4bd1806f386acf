"""Users of a server: the `millrace` command as a process of its own, the Python client, and bare HTTP."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import millrace
from millrace.errors import NotFound

from .common import PARAMS, CommandResult, RunningCommand, until


class User:
    """Somebody with an address, perhaps a token, and an empty directory of their own."""

    def __init__(self, url: str, home: Path, namespace: str, token: str | None, ca: Path | None) -> None:
        self.url, self.home, self.namespace, self.token, self.ca = url, home, namespace, token, ca
        home.mkdir(parents=True, exist_ok=True)

    @cached_property
    def appliance(self) -> millrace.Appliance:
        """The Python client."""
        return millrace.Appliance(self.url, self.token or "", self.namespace, ca=str(self.ca) if self.ca else None)

    @cached_property
    def http(self) -> httpx.Client:
        """Bare HTTP."""
        # kubectl's forwarding ends whenever a connection through it breaks, and is begun anew.
        return self.connection(patience=5 if self.ca else 0)

    def connection(self, patience: int = 0) -> httpx.Client:
        """Bare HTTP that asks for a connection so many times more."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        trusted = ssl.create_default_context(cafile=self.ca) if self.ca else True
        way = httpx.HTTPTransport(verify=trusted, trust_env=False, retries=patience)
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, transport=way)

    def begin(self, *words: object) -> RunningCommand:
        """Begin a `millrace` command."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        env |= {"MILLRACE_URL": self.url, "MILLRACE_NAMESPACE": self.namespace, "PYTHONUNBUFFERED": "1"}
        env["MILLRACE_CONFIG"] = str(self.home / "contexts.yaml")
        if self.token:
            env["MILLRACE_TOKEN"] = self.token
        if self.ca:
            env["MILLRACE_CA"] = str(self.ca)
        return RunningCommand(words, env, self.home)

    def millrace(self, *words: object, code: int = 0, seconds: float = 120) -> CommandResult:
        """Run a `millrace` command to its end, which is to be with this code."""
        done = self.begin(*words).end(seconds)
        assert done.code == code, f"{words} ended with {done.code}, not {code}:\n{done.out}\n{done.err}"
        return done

    def submit(self, name: str, steps: int = 200, *flags: object, params: Path = PARAMS) -> millrace.Job:
        """Submit a job and leave it alone."""
        self.millrace("train", "-p", params, "-n", name, "--max_steps", steps, "--detach", *flags)
        return self.appliance.job(name)

    def watch(self, name: str, steps: int, at_least: int, *flags: object) -> tuple[RunningCommand, millrace.Job]:
        """Submit a job with a `millrace` command that goes on watching it, and wait until it has come this far."""
        command = self.begin("train", "-p", PARAMS, "-n", name, "--max_steps", steps, "--every", 0, *flags)
        job = until_job(self, name)
        until_step(job, at_least)
        return command, job

    def curve(self, job: millrace.Job, **query: Any) -> list[tuple[int, str]]:
        """Step and loss of every point of training, the loss in the server's own digits."""
        return [(point["step"], point["loss"]) for point in self.pages(job, "metrics", mode="train", **query)]

    def pages(self, job: millrace.Job, what: str, **query: Any) -> Iterator[dict[str, Any]]:
        """All items of a collection under a job, page by page; numbers with a point in them as text."""
        after: int | None = 0
        while after is not None:
            answer = self.http.get(path(job, what), params={**query, "uid": job.uid, "after": after})
            page = json.loads(answer.raise_for_status().content, parse_float=str)
            yield from page["items"]
            after = page["next"]


def path(job: millrace.Job, below: str = "") -> str:
    """Where a job is, or what is below it."""
    return f"/v1/namespaces/{job.namespace}/trainjobs/{job.name}/{below}".rstrip("/")


def step(job: millrace.Job) -> int:
    """The last step that there is a point of."""
    points = job.metrics(max_points=2)
    return points[-1].step if points else 0


def until_job(user: User, name: str) -> millrace.Job:
    """Wait until there is a job of this name."""

    def look() -> millrace.Job | None:
        with suppress(NotFound):
            return user.appliance.job(name)
        return None

    return until(f"there is a job {name}", look)


def until_state(job: millrace.Job, *states: str, seconds: float = 60) -> None:
    """Wait until it is in one of these states."""
    until(f"{job.name} is {' or '.join(states)}", lambda: job.refresh().state in states, seconds)


def until_step(job: millrace.Job, at_least: int) -> int:
    """Wait until it trains and has come this far; returns how far."""

    def look() -> int:
        found = step(job)
        assert not job.refresh().is_finished, (
            f"{job.name} was over before anything could be done to it: ask for more steps"
        )
        return found if found >= at_least else 0

    return until(f"{job.name} is at step {at_least}", look)
