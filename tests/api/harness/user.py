"""Users of a server: the `millrace` command in a process of its own, the Python client, and HTTP."""

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
from millrace import Job
from millrace.errors import NotFound

from .common import PARAMS, CommandResult, RunningCommand, until


class User:
    """A user with an address, an optional token, and an empty home directory."""

    def __init__(self, url: str, home: Path, namespace: str, token: str | None, ca: Path | None) -> None:
        self.url, self.home, self.namespace, self.token, self.ca = url, home, namespace, token, ca
        home.mkdir(parents=True, exist_ok=True)

    @cached_property
    def appliance(self) -> millrace.Appliance:
        """A Python client."""
        return millrace.Appliance(self.url, self.token or "", self.namespace, ca=str(self.ca) if self.ca else None)

    @cached_property
    def http(self) -> httpx.Client:
        """An HTTP client."""
        return self.connection()

    def connection(self) -> httpx.Client:
        """Returns an HTTP client with connections of its own."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        trusted = ssl.create_default_context(cafile=self.ca) if self.ca else True
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=trusted)

    def begin(self, *words: object) -> RunningCommand:
        """Starts a `millrace` command."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        env |= {"MILLRACE_URL": self.url, "MILLRACE_NAMESPACE": self.namespace, "PYTHONUNBUFFERED": "1"}
        env["MILLRACE_CONFIG"] = str(self.home / "contexts.yaml")
        if self.token:
            env["MILLRACE_TOKEN"] = self.token
        if self.ca:
            env["MILLRACE_CA"] = str(self.ca)
        return RunningCommand(words, env, self.home)

    def millrace(self, *words: object, code: int = 0, seconds: float = 120) -> CommandResult:
        """Runs a `millrace` command and checks its exit code."""
        done = self.begin(*words).end(seconds)
        assert done.code == code, f"{words} ended with {done.code}, not {code}:\n{done.out}\n{done.err}"
        return done

    def submit(self, name: str, steps: int = 200, *flags: object, params: Path = PARAMS) -> Job:
        """Submits a job without following it."""
        self.millrace("train", "-p", params, "-n", name, "--max_steps", steps, "--detach", *flags)
        return self.appliance.job(name)

    def watch(self, name: str, steps: int, at_least: int, *flags: object) -> tuple[RunningCommand, Job]:
        """Starts a `millrace train` that follows its job, and waits until the job has reached this step."""
        command = self.begin("train", "-p", PARAMS, "-n", name, "--max_steps", steps, "--every", 0, *flags)
        job = until_job(self, name)
        until_step(job, at_least)
        return command, job

    def curve(self, job: Job, **query: Any) -> list[tuple[int, str]]:
        """Returns step and loss of every training point, the loss with the server's digits."""
        return [(point["step"], point["loss"]) for point in self.pages(job, "metrics", mode="train", **query)]

    def pages(self, job: Job, what: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yields all items of a job's collection, page by page; numbers with a decimal point are strings."""
        after: int | None = 0
        while after is not None:
            answer = self.http.get(path(job, what), params={**query, "uid": job.uid, "after": after})
            page = json.loads(answer.raise_for_status().content, parse_float=str)
            yield from page["items"]
            after = page["next"]


def path(job: Job, below: str = "") -> str:
    """Returns the path of a job, or of a resource below it."""
    return f"/v1/namespaces/{job.namespace}/trainjobs/{job.name}/{below}".rstrip("/")


def step(job: Job) -> int:
    """Returns the newest step that has a point; 0 if there is none."""
    points = job.metrics(max_points=2)
    return points[-1].step if points else 0


def until_job(user: User, name: str, uid: str | None = None) -> Job:
    """Waits until the server has a job of this name, and of this UID if it is given."""

    def look() -> Job | None:
        with suppress(NotFound):
            return user.appliance.job(name, uid)
        return None

    return until(f"job {name} exists", look)


def until_state(job: Job, *states: str, seconds: float = 60) -> None:
    """Waits until the job is in one of these states."""
    until(f"{job.name} is {' or '.join(states)}", lambda: job.refresh().state in states, seconds)


def until_step(job: Job, at_least: int) -> int:
    """Waits until the job has reached this step; returns the step it has reached."""

    def look() -> int:
        found = step(job)
        assert not job.refresh().is_finished, (
            f"{job.name} was over before anything could be done to it: ask for more steps"
        )
        return found if found >= at_least else 0

    return until(f"{job.name} is at step {at_least}", look)
