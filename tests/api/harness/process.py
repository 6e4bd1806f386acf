"""The process backend."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx

from .common import PROGRAMS, ROOT, until
from .server import Server
from .user import User


def new_database() -> str:
    """Creates an empty PostgreSQL database and returns its URL."""
    command: list[str | Path] = [ROOT / "tests/postgres", "database", f"api_{os.getpid()}_{time.monotonic_ns()}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    return done.stdout.strip()


class ProcessServer(Server):
    """A `millrace-api serve` with its own data directory; with MILLRACE_TEST_POSTGRES, also with its own PostgreSQL
    database.
    """

    can = frozenset(
        {"kill", "open", "own appliance", "own volumes", "local files", "local paths", "quick jobs", "exact times"}
    )
    namespace = "default"

    def __init__(self, home: Path, *flags: object, inputs: Path | None = ROOT) -> None:
        super().__init__(home)
        self._inputs: list[str | Path] = ["--input-dir", inputs] if inputs else []
        self.data = home / "data"
        self._database = {"MILLRACE_DATABASE": new_database()} if "MILLRACE_TEST_POSTGRES" in os.environ else {}
        self._flags = [str(flag) for flag in flags]
        self._listen = "127.0.0.1:0"
        self._metrics_url = ""
        self._log = home / "server.log"
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Starts the server, or starts it again with the same data and address."""
        assert not self.processes(), "an earlier one still runs"
        command: list[str | Path] = [PROGRAMS / "millrace-api", "serve", "--listen", self._listen]
        command += [*self._inputs, *self._flags, "--metrics-listen", "127.0.0.1:0"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._env, cwd=self.home, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], 30)
        first = self._process.stdout.readline().strip() if ready else "it says nothing"
        if not first.startswith("listening on http://"):
            self.kill()
            raise AssertionError(f"the server did not start: {first}\n{self.log}")
        self.url = first.removeprefix("listening on ")
        self._listen = self.url.removeprefix("http://")
        self._metrics_url = self._process.stdout.readline().strip().removeprefix("metrics on ")

    @property
    def _env(self) -> dict[str, str]:
        # Agents inherit it, which identifies them as this server's even after its end.
        return {**os.environ, **self._database, "MILLRACE_DATA": str(self.data)}

    def twin(self, data: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a second server on the same database, with the same or other data, while this one runs; returns its
        result.
        """
        database = self._database or {"MILLRACE_DATABASE": f"sqlite:{self.data / 'millrace.db'}"}
        env = {**self._env, **database, "MILLRACE_DATA": str(data or self.data)}
        command: list[str | Path] = [PROGRAMS / "millrace-api", "serve", "--listen", "127.0.0.1:0", "--input-dir", ROOT]
        return subprocess.run(command, env=env, cwd=self.home, capture_output=True, text=True, timeout=30)

    def kill(self) -> None:
        """Kills the server with SIGKILL and waits for its end."""
        self._end(signal.SIGKILL, 10)

    def stop(self, seconds: float = 90) -> float:
        """Stops the server with SIGTERM; returns how long that took, in seconds."""
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
        """Returns the PIDs of the server and of its agents. Zombies are not found, because they have no environment."""
        mark = f"MILLRACE_DATA={self.data}".encode()
        found = []
        for process in Path("/proc").iterdir():
            # The process may have ended, or belong to another user.
            with suppress(OSError):
                if process.name.isdecimal() and mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found

    def agents(self) -> dict[str, int]:
        """Returns the PIDs of the agents of all jobs, by name, such as `cs2-1`."""
        found = {}
        for process in self.processes():
            # The process may have ended.
            with suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
                if "role" in words:
                    (index,) = (word.removeprefix("--index=") for word in words if word.startswith("--index="))
                    found[f"{words[words.index('role') + 1]}-{index}"] = process
        return found

    def until_alone(self, seconds: float = 10) -> None:
        """Waits until none of the processes is left."""
        until(f"no process of {self.data} is left ({self.processes()})", lambda: not self.processes(), seconds)

    def close(self) -> None:
        """Kills the server if it runs, and checks that no process is left."""
        try:
            if self._process:
                self.kill()
            self.until_alone()
        finally:
            for left in self.processes():
                os.kill(left, signal.SIGKILL)

    def another_user(self) -> User:
        """Returns a local user without a token."""
        return self.user_with(None)

    def metrics(self) -> str:
        """Returns the server's Prometheus metrics."""
        return httpx.get(self._metrics_url, trust_env=False).raise_for_status().text

    def another_namespace(self) -> str:
        """Returns another namespace; with this backend namespaces exist when they are named."""
        return "elsewhere"

    def token(self, name: str, role: str, *namespaces: str, seconds: int | None = None) -> str:
        """Creates a token as an administrator of the server's machine."""
        words = ["--name", name, "--role", role, *(word for each in namespaces for word in ("--namespace", each))]
        if seconds is not None:
            words += ["--expires-in-seconds", str(seconds)]
        command: list[str | Path] = [PROGRAMS / "millrace-api", "token", *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    @property
    def log(self) -> str:
        """The log since the first start."""
        return self._log.read_text()
