"""Basics of the harness: paths, waiting for states, and the `millrace` command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

ROOT = Path(__file__).resolve().parents[3]
PARAMS = ROOT / "tests/api/params.yaml"
PROGRAMS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / os.environ.get("MILLRACE_TEST_PROFILE", "release")

Found = TypeVar("Found")


def until(what: str, look: Callable[[], Found | None], seconds: float = 60, every: float = 0.02) -> Found:
    """Calls `look` every `every` seconds until its result is true, and returns that result."""
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        time.sleep(every)
    return found


def trainjob(name: str | None, steps: int = 200, *, seed: int = 1, **spec: Any) -> dict[str, Any]:
    """Returns the params of the tests as a TrainJob for kubectl."""
    # PyYAML reads numbers such as 1e-3 as strings.
    params = yaml.safe_load(PARAMS.read_text().replace("e-", ".0e-"))
    params["runconfig"] |= {"max_steps": steps, "seed": seed}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name} if name else {},
        "spec": {"numCsx": 1, **spec, "params": params},
    }


@dataclass(frozen=True)
class CommandResult:
    """The result of a finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, parsed as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The error messages, one per line. Fails if there are none, or a traceback."""
        assert "Traceback" not in self.err, self.err
        messages = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert messages, self.err
        return "\n".join(message.removeprefix("error: ") for message in messages)


class RunningCommand:
    """A running `millrace` command, whose standard output and error are not terminals."""

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
                # In a background job of a shell, SIGINT is ignored, and child processes would inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def output(self) -> str:
        """The output so far, of both streams."""
        return self._out.read_text() + self._err.read_text()

    def wait_for_output(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Waits until the output matches a pattern."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.output)
            assert found or self._process.poll() is None, f"{self._words} ended without {pattern!r}:\n{self.output}"
            return found

        return until(f"{self._words} says {pattern!r}", look, seconds)

    def interrupt(self) -> None:
        """Sends SIGINT, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def end(self, seconds: float = 120) -> CommandResult:
        """Waits until the command ends."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{self._words} has not ended after {seconds:g} s:\n{self.output}") from None
        return CommandResult(code, self._out.read_text(), self._err.read_text())
