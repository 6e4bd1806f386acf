"""Tests of model_dirs and checkpoints in an S3-compatible bucket: of runs on the command line, and of jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness import PARAMS, ROOT, Reference, Serve, until, until_step
from harness.bucket import BUCKET, PREFIX, Bucket
from harness.common import PROGRAMS
from harness.process import ProcessServer

pytestmark = pytest.mark.needs("local paths")

AGENT = PROGRAMS / "millrace-agent"
RUN = f"s3://{BUCKET}/{PREFIX}/run"


class Machine:
    """A machine with a cache of its own, on which runs are started."""

    def __init__(self, home: Path, params: Path) -> None:
        self.home, self.params = home, params

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [AGENT, *map(str, arguments)]
        env = {**os.environ, "XDG_CACHE_HOME": str(self.home)}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def run(self, *arguments: object) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def train(self, steps: int, *arguments: object) -> tuple[int, str, str]:
        return self.run("train", "-p", self.params, "--max_steps", steps, "-o", RUN, *arguments)


@pytest.fixture
def params(tmp_path: Path) -> Path:
    """Params with a checkpoint every 20 steps."""
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS.read_text().replace("checkpoint_steps: 100", "checkpoint_steps: 20"))
    return path


def complete(bucket: Bucket) -> list[int]:
    """Returns the steps of the complete checkpoints in the bucket."""
    names = [name for name in bucket.names("/run/checkpoint_") if name.endswith("/manifest.json")]
    return sorted(int(name.split("checkpoint_")[1].split("/")[0]) for name in names)


def assert_same(bucket: Bucket, reference: Reference, steps: int) -> None:
    """Asserts that the run in the bucket has the same digest and loss curve, with each step once."""
    manifest = json.loads(bucket.read(f"{PREFIX}/run/checkpoint_{steps}/manifest.json"))
    assert manifest["parameters_blake3"] == reference.digest
    lines = bucket.read(f"{PREFIX}/run/metrics.jsonl").decode().splitlines()
    points = [json.loads(line, parse_float=str) for line in lines]
    assert [(point["step"], point["loss"]) for point in points] == reference.curve


def test_run_continues_after_a_kill_and_on_another_machine(bucket: Bucket, params: Path, tmp_path: Path) -> None:
    """Checkpoints, metrics and the history of attempts follow a run to another machine."""
    reference = Reference.train(tmp_path / "here", 400, params)
    first, second = Machine(tmp_path / "first", params), Machine(tmp_path / "second", params)
    killed = first.start("train", "-p", params, "--max_steps", 100_000, "-o", RUN)
    until("a checkpoint is in the bucket", lambda: complete(bucket))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    newest = max(complete(bucket))
    assert newest < 380
    code, out, err = first.train(380)
    assert code == 0, err
    assert "Resuming from step" in out
    code, out, err = second.train(400)
    assert code == 0, err
    assert "Fetched checkpoint_380 from the bucket" in out
    assert_same(bucket, reference, 400)
    assert len(bucket.names("/run/events.out.tfevents")) >= 2
    code, out, err = second.run("generate", "-c", RUN, "--prompt", "In the", "-n", 5)
    assert code == 0, err
    assert out.startswith("In the")
    code, out, err = second.run("checkpoint", "info", f"{RUN}/checkpoint_400", "--json")
    assert json.loads(out)["parameters_blake3"] == reference.digest


def test_run_goes_on_without_the_bucket(bucket: Bucket, params: Path, tmp_path: Path) -> None:
    """A bucket that does not respond does not stop a run; everything is uploaded when it responds again."""
    machine = Machine(tmp_path / "machine", params)
    reference = Reference.train(tmp_path / "here", 300, params)
    run = machine.start("train", "-p", params, "--max_steps", 300, "-o", RUN)
    until("the first checkpoint is in the bucket", lambda: complete(bucket))
    bucket.stop()
    copies = tmp_path / "machine/millrace/buckets/runs"
    until("the run is done", lambda: list(copies.glob("*/checkpoint_300/manifest.json")))
    bucket.start()
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert_same(bucket, reference, 300)
    copied = json.loads(next(copies.glob("*/checkpoint_300/manifest.json")).read_bytes())
    assert copied["parameters_blake3"] == reference.digest


def test_unusable_addresses_are_rejected(bucket: Bucket, params: Path, tmp_path: Path) -> None:
    """An address that can't be used is rejected by one sentence, before anything is started."""
    machine = Machine(tmp_path / "machine", params)
    for arguments, code, says in (
        (("-o", "s3://nowhere-at-all/run"), 2, "the bucket nowhere-at-all does not exist"),
        (("-o", "s3://X"), 2, '"s3://X" is not the address of a bucket'),
        (("-o", tmp_path / "m", "--checkpoint_path", f"{RUN}/checkpoint_7"), 2, "there is no undamaged checkpoint in"),
    ):
        done = machine.run("train", "-p", params, *arguments)
        assert done[0] == code and f"error: {says}" in done[2], done
    assert not (tmp_path / "m").exists()
    assert machine.run("checkpoint", "verify", RUN)[0] == 2
    assert machine.train(20, "--validate_only")[0] == 0
    assert bucket.names() == []


def test_jobs_of_a_server_continue_from_the_bucket(
    bucket: Bucket, serve: Serve, params: Path, tmp_path: Path
) -> None:
    """The model_dirs of a server's jobs are in the bucket, and a server without its files fetches them."""
    reference = Reference.train(tmp_path / "here", 400, params)
    server = serve("--model-dir-store", f"s3://{BUCKET}/{PREFIX}")
    assert isinstance(server, ProcessServer)
    job = server.user.submit("job", 400, params=params)
    until_step(job, 60)
    job.suspend()
    until("the job is suspended", lambda: job.refresh().state == "Suspended")
    step = int(job.status["checkpoint"]["step"])
    manifest = f"{PREFIX}/{server.namespace}/job/model_dir/checkpoint_{step}/manifest.json"
    until("its checkpoint is in the bucket", lambda: manifest in bucket.names("manifest.json"))
    # It gives its lease up, for which another server would wait otherwise.
    server.stop()
    shutil.rmtree(server.data / "model_dirs")
    server.start()
    job.resume()
    job.wait(120)
    reference.assert_same(server.user, job)
    manifest = manifest.replace(f"checkpoint_{step}", "checkpoint_400")
    until("the last checkpoint is in the bucket", lambda: manifest in bucket.names("manifest.json"))
