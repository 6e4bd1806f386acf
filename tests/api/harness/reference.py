"""Expected results of jobs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import millrace

from .common import PARAMS, PROGRAMS, ROOT
from .user import User


@dataclass(frozen=True)
class Reference:
    """The result of `millrace-agent train` with the same params on this machine."""

    digest: str
    curve: list[tuple[int, str]] = field(repr=False)
    model_dir: Path

    @classmethod
    def train(cls, model_dir: Path, steps: int, params: Path = PARAMS, cwd: Path = ROOT) -> Reference:
        """Trains and returns the result."""
        command: list[str | Path] = [PROGRAMS / "millrace-agent", "train", "-p", params]
        command += ["--max_steps", str(steps), "-o", model_dir]
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, timeout=120)
        manifest = json.loads((model_dir / f"checkpoint_{steps}/manifest.json").read_bytes())
        points = [json.loads(line, parse_float=str) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
        return cls(manifest["parameters_blake3"], [(point["step"], point["loss"]) for point in points], model_dir)

    def assert_same(self, user: User, job: millrace.Job) -> None:
        """Asserts that the job has the same digest and loss curve, with each step once."""
        assert job.refresh().state == "Succeeded", job.summary
        assert job.status["checkpoint"]["digest"] == self.digest
        assert user.curve(job, maxPoints=10_000) == self.curve
