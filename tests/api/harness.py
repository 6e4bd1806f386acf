"""The server under test, and users of it.

A `Server` is the whole appliance as a user node sees it. It is written so that cases know no backend: what not every backend
can is a capability, and a case says with `@pytest.mark.needs(...)` which ones it takes.

A `User` drives it the three ways there are: the `millrace` command as a process of its own, the Python client, and bare HTTP.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import httpx
import millrace
from millrace.errors import NotFound

ROOT = Path(__file__).resolve().parents[2]
PARAMS = Path(__file__).with_name("params.yaml")
PROGRAMS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
NAMESPACE = "default"

Found = TypeVar("Found")


def until(what: str, look: Callable[[], Found], seconds: float = 60) -> Found:
    """Wait until `look` finds something, and return that."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.02)
    return found


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The sentence it failed with; there is one, and no traceback."""
        assert "Traceback" not in self.err, self.err
        (sentence,) = [line for line in self.err.splitlines() if line.lower().startswith("error: ")]
        return sentence[len("error: ") :]


class Command:
    """A `millrace` command that runs, its standard output and error no terminals."""

    def __init__(self, words: tuple[object, ...], env: dict[str, str], home: Path) -> None:
        self._words = [str(word) for word in words]
        stem = home / f"command-{time.monotonic_ns()}"
        self._out, self._err = stem.with_suffix(".out"), stem.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millrace", *self._words],
                cwd=home,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # Whoever runs this suite in the background has Ctrl-C ignored, and so would its children.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def said(self) -> str:
        """Everything so far."""
        return self._out.read_text() + self._err.read_text()

    def until_says(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Wait until it has written something."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.said)
            assert found or self._process.poll() is None, f"{self._words} ended without {pattern!r}:\n{self.said}"
            return found

        return until(f"{self._words} says {pattern!r}", look, seconds)

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def end(self, seconds: float = 120) -> Done:
        """Wait for it."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{self._words} has not ended after {seconds:g} s:\n{self.said}") from None
        return Done(code, self._out.read_text(), self._err.read_text())


class User:
    """Somebody with an address, perhaps a token, and an empty directory of their own."""

    def __init__(self, url: str, home: Path, token: str | None = None) -> None:
        self.url, self.home, self.token = url, home, token
        home.mkdir(parents=True, exist_ok=True)

    @cached_property
    def appliance(self) -> millrace.Appliance:
        """The Python client."""
        return millrace.Appliance(self.url, self.token or "", NAMESPACE)

    @cached_property
    def http(self) -> httpx.Client:
        """Bare HTTP."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=False)

    def begin(self, *words: object) -> Command:
        """Begin a `millrace` command."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        env |= {"MILLRACE_URL": self.url, "MILLRACE_CONFIG": str(self.home / "contexts.yaml"), "PYTHONUNBUFFERED": "1"}
        if self.token:
            env["MILLRACE_TOKEN"] = self.token
        return Command(words, env, self.home)

    def millrace(self, *words: object, code: int = 0, seconds: float = 120) -> Done:
        """Run a `millrace` command to its end, which is to be with this code."""
        done = self.begin(*words).end(seconds)
        assert done.code == code, f"{words} ended with {done.code}, not {code}:\n{done.out}\n{done.err}"
        return done

    def submit(self, name: str, steps: int = 200, *flags: object, params: Path = PARAMS) -> millrace.Job:
        """Submit a job and leave it alone."""
        self.millrace("train", "-p", params, "-n", name, "--max_steps", steps, "--detach", *flags)
        return self.appliance.job(name)

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


class Server:
    """The process backend: `millrace-api serve`, its data in a directory of its own."""

    can = frozenset({"kill", "own appliance", "own volumes", "own tokens", "local files"})

    def __init__(self, home: Path, *flags: object) -> None:
        self.home, self.data = home, home / "data"
        self._flags = [str(flag) for flag in flags]
        self._listen = "127.0.0.1:0"
        self._log = home / "server.log"
        self._process: subprocess.Popen[str] | None = None
        home.mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Start it, or start it again: with the same data and at the same address."""
        assert not self.processes(), "an earlier one still runs"
        command = [PROGRAMS / "millrace-api", "serve", "--listen", self._listen, "--inputs", ROOT, *self._flags]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._env, cwd=self.home, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout
        first = self._process.stdout.readline().strip()
        assert first.startswith("listening on http://"), f"the server did not start: {first}\n{self.log}"
        self.url = first.removeprefix("listening on ")
        self._listen = self.url.removeprefix("http://")

    @property
    def _env(self) -> dict[str, str]:
        # The roles inherit it, so that they are known as this server's even when it is gone.
        return {**os.environ, "MILLRACE_DATA": str(self.data)}

    def kill(self) -> None:
        """End it without a warning, as a lack of power does; returns when it is gone."""
        self._end(signal.SIGKILL, 10)

    def stop(self, seconds: float = 90) -> float:
        """Have it end in good order; returns how long that took."""
        begun = time.monotonic()
        assert self._end(signal.SIGTERM, seconds) == 0, self.log
        return time.monotonic() - begun

    def _end(self, how: signal.Signals, seconds: float) -> int:
        assert self._process and self._process.stdout
        self._process.send_signal(how)
        code = self._process.wait(seconds)
        self._process.stdout.close()
        self._process = None
        return code

    def processes(self) -> list[int]:
        """Every process of it that lives: itself and the roles of its jobs. Zombies have no environment any more."""
        mark = f"MILLRACE_DATA={self.data}".encode()
        found = []
        for process in Path("/proc").iterdir():
            # One that ends just now, or is another user's, is not ours.
            with suppress(OSError):
                if process.name.isdecimal() and mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found

    def until_alone(self, seconds: float = 10) -> None:
        """Wait until nothing of it lives."""
        until(f"no process of {self.data} is left ({self.processes()})", lambda: not self.processes(), seconds)

    def close(self) -> None:
        """End it, however it stands, and see that nothing stays."""
        try:
            if self._process:
                self.kill()
            self.until_alone()
        finally:
            for left in self.processes():
                os.kill(left, signal.SIGKILL)

    @cached_property
    def user(self) -> User:
        """Somebody on this machine, without a token."""
        return self.user_with(None)

    def user_with(self, token: str | None) -> User:
        """Somebody with a token."""
        return User(self.url, self.home / f"user-{time.monotonic_ns()}", token)

    def token(self, name: str, role: str, *namespaces: str, seconds: int | None = None) -> str:
        """A new token, as an administrator makes one on the server's machine."""
        words = ["--name", name, "--role", role, *(word for each in namespaces for word in ("--namespace", each))]
        if seconds is not None:
            words += ["--expires-in-seconds", str(seconds)]
        command = [PROGRAMS / "millrace-api", "token", *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    @property
    def log(self) -> str:
        """What it has logged, in all its lives."""
        return self._log.read_text()


BACKENDS = {"process": Server}
BACKEND = BACKENDS[os.environ.get("MILLRACE_TEST_BACKEND", "process")]

Serve = Callable[..., Server]


@contextmanager
def serving(home: Path) -> Iterator[Serve]:
    """Starts servers with flags of one's own; at the end they are gone, and have left nothing running."""
    servers: list[Server] = []

    def serve(*flags: object) -> Server:
        servers.append(BACKEND(home / f"server-{len(servers)}", *flags))
        return servers[-1]

    try:
        yield serve
    finally:
        for server in servers:
            print(f"--- log of {server.home.name}\n{server.log}")
            server.close()


@dataclass(frozen=True)
class Reference:
    """What the same params come to without any server: `millrace-agent train` on this machine."""

    digest: str
    curve: list[tuple[int, str]] = field(repr=False)
    model_dir: Path

    @classmethod
    def train(cls, model_dir: Path, steps: int, params: Path = PARAMS, cwd: Path = ROOT) -> Reference:
        """Train it."""
        command = [PROGRAMS / "millrace-agent", "train", "-p", params, "--max_steps", str(steps), "-o", model_dir]
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, timeout=120)
        manifest = json.loads((model_dir / f"checkpoint_{steps}/manifest.json").read_bytes())
        points = [json.loads(line, parse_float=str) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
        return cls(manifest["parameters_blake3"], [(point["step"], point["loss"]) for point in points], model_dir)

    def assert_same(self, user: User, job: millrace.Job) -> None:
        """That a job has come to the same bits, by the same way, each step told once."""
        assert job.refresh().state == "Succeeded", job.summary
        assert job.status["checkpoint"]["digest"] == self.digest
        assert user.curve(job, maxPoints=10_000) == self.curve
